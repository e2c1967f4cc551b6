"""`FixedNumPerPre` and `FixedNumPerPost`, against dense matrices in double precision."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import (
    COO,
    CSC,
    CSR,
    BinaryArray,
    BitPackedArray,
    CompactArray,
    FixedNumPerPost,
    FixedNumPerPre,
    WeightedArray,
    vstack,
)

pytestmark = pytest.mark.usefixtures("plain_jax")

LINES, PLACES, NUMBER = 5, 4, 3
#: Unsorted, with a duplicate in lines 0 and 3.
INDICES = np.array([[2, 0, 2], [1, 3, 0], [3, 2, 1], [0, 0, 0], [1, 2, 3]], np.int32)
DATA = np.array([[1, -2, 3], [2, 2, -1], [0, 1, 4], [-3, 1, 1], [2, -2, 5]], np.float32)
OPERANDS = [jnp.asarray, BinaryArray, WeightedArray, BitPackedArray, CompactArray]


@pytest.fixture(params=[FixedNumPerPre, FixedNumPerPost], ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.fixture
def shape(kind):
    return shape_of(kind)


@pytest.fixture
def A(kind, shape):
    return kind(DATA, INDICES, shape=shape)


@pytest.fixture
def dense(kind):
    return dense_of(kind)


def axis_of(matrix):
    return 0 if isinstance(matrix, FixedNumPerPre) else 1


def lines_at(axis, matrix, numbers):
    return matrix[numbers] if axis == 0 else matrix[:, numbers]


def shape_of(kind):
    return (LINES, PLACES) if kind is FixedNumPerPre else (PLACES, LINES)


def dense_of(kind, data=DATA, indices=INDICES, places=PLACES):
    """Return the dense matrix of weights and indices in double precision, or in complex numbers."""
    wide = np.complex128 if np.iscomplexobj(data) else np.float64
    dense = np.zeros((len(indices), places), wide)
    np.add.at(dense, (np.arange(len(indices))[:, None], indices), np.asarray(data).astype(wide))
    return dense if kind is FixedNumPerPre else dense.T


def general(kind):
    return CSR if kind is FixedNumPerPre else CSC


def test_it_has_the_arrays_it_was_made_of(kind, shape, dense):
    data, indices = jnp.asarray(DATA), jnp.asarray(INDICES)
    for A in (kind(data, indices, shape=shape), kind((data, indices), shape=shape)):
        assert A.data is data
        assert A.indices is indices
        assert (A.num_pre, A.num_post) == A.shape == shape
        assert (A.num_conn, A.nnz, A.dtype, A.homogeneous) == (NUMBER, 15, jnp.float32, False)
        assert repr(A) == f"{kind.__name__}(float32[{shape[0]},{shape[1]}], nnz=15)"
        assert_array_equal(A.todense(), dense)


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("prepared", [False, True])
def test_products(A, dense, operand, prepared):
    A = A.prepare() if prepared else A
    left, right = (np.arange(extent, dtype=np.float32) % 3 for extent in A.shape)
    values = [x if operand in (jnp.asarray, WeightedArray) else x != 0 for x in (left, right)]
    assert_array_equal(operand(jnp.asarray(left)) @ A, values[0] @ dense)
    assert_array_equal(A @ operand(jnp.asarray(right)), dense @ values[1])
    if operand is not CompactArray:
        left, right = np.stack([left, left + 1]), np.stack([right, right + 1], axis=1)
        values = [x if operand in (jnp.asarray, WeightedArray) else x != 0 for x in (left, right)]
        assert_array_equal(operand(jnp.asarray(left)) @ A, values[0] @ dense)
        assert_array_equal(A @ operand(jnp.asarray(right)), dense @ values[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "complex64"])
@pytest.mark.parametrize("index", ["int8", "uint32", "int64"])
@pytest.mark.usefixtures("x64")
def test_dtypes(kind, shape, dtype, index):
    data = DATA.astype(dtype) * (1j if dtype == "complex64" else 1)
    A = kind(data.astype(dtype), INDICES.astype(index), shape=shape)
    assert A.dtype == dtype
    assert A.indices.dtype == A.indptr.dtype == ("int32" if index == "int8" else "int64")
    x = jnp.arange(A.shape[1]).astype(dtype)
    assert_array_equal(np.asarray(A @ x, np.complex128), dense_of(kind, data) @ np.arange(A.shape[1]))


@pytest.mark.parametrize("number", [2.0, np.float32(2), jnp.ones(1) * 2])
def test_one_number_for_all_entries(kind, shape, number):
    A = kind(number, INDICES, shape=shape)
    assert A.data.shape == (1,)
    assert A.homogeneous
    dense = dense_of(kind, np.full_like(DATA, 2))
    assert_array_equal(A.prepare().T.todense(), dense.T)
    assert_array_equal(A @ jnp.ones(A.shape[1]), dense.sum(1))


def test_conversions_share_the_order_of_entries(A, kind, dense):
    same = A.tocsr() if kind is FixedNumPerPre else A.tocsc()
    assert type(same) is general(kind)
    for mine, found in zip((DATA, INDICES, np.arange(6) * 3), (same.data, same.indices, same.indptr), strict=True):
        assert_array_equal(found, mine.ravel())
    for other, format in ((A.tocsr(), CSR), (A.tocsc(), CSC), (A.tocoo(), COO)):
        assert type(other) is format
        assert_array_equal(other.todense(), dense)
    assert_array_equal(A.to_scipy().todense(), dense)
    assert_array_equal(A.to_bcoo().todense(), dense)
    assert_array_equal(A.to_bcsr().todense(), dense)


def test_transposed_it_shares_the_arrays(A, kind, dense):
    other = A.T
    assert {kind, type(other)} == {FixedNumPerPre, FixedNumPerPost}
    assert other.data is A.data
    assert other.indices is A.indices
    assert_array_equal(other.todense(), dense.T)
    assert type(other.T) is kind


def test_other_weights(A, kind, dense):
    for data in (2 * DATA, (2 * DATA).ravel()):
        for B in (A.with_data(data), A.prepare().with_data(data)):
            assert type(B) is kind
            assert B.indices is A.indices
            assert_array_equal(B.data, 2 * DATA)
            assert_array_equal(jnp.ones(A.shape[0]) @ B, 2 * dense.sum(0))
            assert_array_equal(B @ jnp.ones(A.shape[1]), 2 * dense.sum(1))
    assert_array_equal(A.with_data(2.0).todense(), dense_of(kind, np.full_like(DATA, 2)))
    with pytest.raises(
        ShapeError, match=r"with_data: data has the shape \(3, 5\); expected \(5, 3\), like the indices"
    ):
        A.with_data(DATA.T)


def test_results_with_the_same_structure_are_of_the_same_format(A, kind, dense):
    row = np.arange(1.0, A.shape[1] + 1, dtype=np.float32)
    for found, expected in (
        (2 * A, 2 * dense),
        (-A, -dense),
        (abs(A), abs(dense)),
        (A * row, dense * row),
        (A.multiply(dense), dense**2),
        (A + A, 2 * dense),
        (A.astype("int32"), dense),
    ):
        assert type(found) is kind
        assert found.data.shape == (5, 3)
        assert_array_equal(found.todense(), expected)


def test_results_with_another_structure_are_compressed(A, kind, dense):
    transposed = A.T.tocsr() if kind is FixedNumPerPre else A.T.tocsc()
    for found, expected in (
        (A + A.tocoo(), 2 * dense),
        (A @ transposed, dense @ dense.T),
        (A.sum_duplicates(), dense),
        (A.reshape(2, 10), dense.reshape(2, 10)),
        (vstack([A, A]), np.vstack([dense, dense])),
    ):
        assert type(found) is general(kind)
        assert_array_equal(found.todense(), expected)
    assert_array_equal(A.sum(0), dense.sum(0))
    assert_array_equal(A.max(1), dense.max(1))
    assert_array_equal(A.diagonal(), dense.diagonal())
    assert_array_equal(A.dot(A.T.todense()), dense @ dense.T)


def test_parts(A, kind, dense):
    along = (slice(1, 3), slice(None))
    across = (slice(None), [3, 1])
    if kind is FixedNumPerPost:
        along, across = along[::-1], across[::-1]
    part = A[along]
    assert type(part) is kind
    assert part.data.shape == (2, 3)
    assert_array_equal(part.todense(), dense[along])
    assert_array_equal(part @ jnp.ones(part.shape[1]), dense[along].sum(1))
    part = A[across]
    assert type(part) is general(kind)
    assert_array_equal(part.todense(), dense[across])
    assert_array_equal(A[2], dense[2])
    assert_array_equal(A[:, 2], dense[:, 2])
    assert A[-1, 0] == dense[-1, 0]
    equal = A.with_data(jnp.ones(1))
    assert equal[along].homogeneous
    assert_array_equal(equal[along].todense(), equal.todense()[along])


def test_a_converted_matrix_has_a_known_structure_under_jit(A, dense):
    name = general(type(A)).__name__.lower()
    other = general(type(A)).from_dense(dense[::-1])

    def total(data):
        return (A.with_data(data).asformat(name) + other).todense()

    assert_array_equal(jax.jit(total)(A.data), dense + dense[::-1])


@pytest.mark.parametrize("weights", ["each", "equal"])
def test_lines_of_traced_numbers(A, dense, weights):
    """The number of entries is known, unlike that of other matrices; numbers are clipped to the range, as by JAX."""
    A, dense = (A, dense) if weights == "each" else (A.with_data(2.0), A.with_data(1.0).todense() * 2)
    axis = axis_of(A)
    at = functools.partial(lines_at, axis)
    chosen = jnp.array([3, 0, 3, -1, 99])
    expected = np.take(dense, [3, 0, 3, LINES - 1, LINES - 1], axis)
    part = jax.jit(at)(A, chosen)
    assert type(part) is type(A)
    assert_array_equal(part.todense(), expected)
    assert_array_equal(jax.jit(lambda lines: at(A, lines).todense())(chosen), expected)
    assert_array_equal(jax.jit(lambda matrix: at(matrix, slice(1, 3)).todense())(A), at(dense, slice(1, 3)))
    mapped = jax.vmap(lambda lines: at(A, lines).todense())(chosen[:4].reshape(2, 2))
    assert_array_equal(mapped[1], at(expected, slice(2, 4)))
    with pytest.raises(StructureError, match="the index is traced"):
        jax.jit(functools.partial(lines_at, 1 - axis))(A, chosen)


def test_the_gradient_of_lines_of_traced_numbers(A):
    def loss(data, lines):
        return (lines_at(axis_of(A), A.with_data(data), lines).data ** 2).sum()

    expected = np.zeros_like(DATA)
    expected[3], expected[1] = 4 * DATA[3], 2 * DATA[1]
    assert_array_equal(jax.grad(loss)(A.data, jnp.array([3, 1, 3])), expected)


def test_known_structures_are_known_under_jit(A, dense):
    other, transposed = A.tocoo(), A.T.tocsr()

    @jax.jit
    def run(data):
        B = A.with_data(data)
        return (abs(B) + other).todense(), B[:2].todense(), (B @ transposed).todense()

    expected = 2 * abs(dense) + dense, 2 * dense[:2], 2 * dense @ dense.T
    for found, wanted in zip(run(2 * A.data), expected, strict=True):
        assert_array_equal(found, wanted)


@pytest.mark.parametrize("prepared", [False, True])
def test_updates(A, kind, prepared):
    B = A.prepare() if prepared else A
    pre, post = (np.arange(extent, dtype=np.float32) for extent in A.shape)
    line = np.arange(LINES)[:, None]
    row, column = (line, INDICES) if kind is FixedNumPerPre else (INDICES, line)
    for found, active, trace in (
        (B.update_on_pre(pre % 2 == 0, post, -1, 4), (pre % 2 == 0)[row], post[column]),
        (B.update_on_post(pre, BinaryArray(post > 1), -1, 4), (post > 1)[column], pre[row]),
    ):
        expected = np.where(active, np.clip(DATA + trace, -1, 4), DATA)
        assert type(found) is kind
        assert_array_equal(found.data, expected)
        assert_array_equal(found @ jnp.ones(A.shape[1]), dense_of(kind, expected).sum(1))
    assert_array_equal(B.apply_on_pre(lambda w, *_: 2 * w, pre > 1), (DATA * np.where(pre > 1, 2, 1)[row]).ravel())


@pytest.mark.parametrize("prepared", [False, True])
def test_gradients(A, kind, prepared):
    B = A.prepare() if prepared else A
    x = jnp.arange(1.0, A.shape[1] + 1)

    def loss(data, x):
        return ((B.with_data(data) @ x) ** 2).sum()

    def dense_loss(data, x):
        line = jnp.arange(LINES)[:, None]
        places = (line, INDICES) if kind is FixedNumPerPre else (INDICES, line)
        return ((jnp.zeros(A.shape).at[places].add(data) @ x) ** 2).sum()

    for found, expected in zip(jax.grad(loss, (0, 1))(A.data, x), jax.grad(dense_loss, (0, 1))(A.data, x), strict=True):
        assert found.shape == expected.shape
        assert_allclose(found, expected, rtol=1e-6)
    of_matrix = jax.grad(lambda A: (A @ x).sum(), allow_int=True)(A)
    assert of_matrix.data.shape == A.data.shape


def test_batches_of_weights_structures_and_operands(A, dense):
    x = jnp.arange(1.0, A.shape[1] + 1)
    data = jnp.stack([A.data, 2 * A.data])
    assert_array_equal(jax.vmap(lambda data: A.with_data(data) @ x)(data), [dense @ x, 2 * dense @ x])
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), A)
    assert repr(batch).endswith("batch=(2,))")
    assert_array_equal(jax.vmap(lambda A: A @ x)(batch), [dense @ x] * 2)
    assert_array_equal(jax.vmap(lambda x: A @ x)(jnp.stack([x, 2 * x])), [dense @ x, 2 * dense @ x])
    equal = jax.vmap(A.with_data)(jnp.ones((2, 1)))
    for several in (batch, equal, A._like(data=jnp.ones((2, 1)))):
        with pytest.raises(ShapeError, match="this is a batch of matrices"):
            several @ x


def test_it_is_a_pytree(A, kind, dense):
    names = [path[0].name for path, _ in jax.tree_util.tree_flatten_with_path(A)[0]]
    assert names == ["data", "indices", "indptr"]
    assert_array_equal(jax.jit(lambda A: A)(A).todense(), dense)
    assert_array_equal(pickle.loads(pickle.dumps(A)).todense(), dense)
    assert type(jax.eval_shape(lambda A: A.T, A)) is type(A.T)
    made = jax.jit(lambda data, indices: kind(data, indices, shape=A.shape) + kind(data, indices, shape=A.shape))
    assert_array_equal(made(A.data, A.indices).todense(), 2 * dense)
    program = export.export(jax.jit(lambda A: (A @ jnp.ones(A.shape[1]), A.T)))(A)
    product, transposed = export.deserialize(program.serialize()).call(A)
    assert_array_equal(product, dense.sum(1))
    assert_array_equal(transposed.todense(), dense.T)


def test_a_program_is_exported_for_any_number_of_entries(kind, shape, dense):
    (number,) = export.symbolic_shape("k")
    arguments = [jax.ShapeDtypeStruct((LINES, number), dtype) for dtype in (jnp.float32, jnp.int32)]
    product = jax.jit(lambda data, indices: kind(data, indices, shape=shape) @ jnp.ones(shape[1]))
    assert_array_equal(export.export(product)(*arguments).call(DATA, INDICES), dense.sum(1))


@pytest.mark.parametrize(("lines", "places", "number"), [(0, 4, 0), (0, 4, 2), (4, 0, 0), (4, 5, 0), (0, 0, 0)])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_matrix_may_be_empty(kind, lines, places, number, prepared):
    shape = (lines, places) if kind is FixedNumPerPre else (places, lines)
    A = kind(np.zeros((lines, number), np.float32), np.zeros((lines, number), np.int32), shape=shape)
    A = A.prepare() if prepared else A
    assert_array_equal(A.todense(), np.zeros(shape))
    assert_array_equal(A @ jnp.ones(shape[1]), np.zeros(shape[0]))
    assert_array_equal(BinaryArray(jnp.ones(shape[0], bool)) @ A, np.zeros(shape[1]))
    assert_array_equal((A + A.T.T).tocoo().todense(), np.zeros(shape))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6), st.integers(0, 4))
def test_products_of_any_matrix(seed, lines, places, number):
    rng = np.random.default_rng(seed)
    data, indices = rng.integers(-3, 4, (lines, number)), rng.integers(0, places, (lines, number))
    for kind in (FixedNumPerPre, FixedNumPerPost):
        dense = dense_of(kind, data, indices, places)
        A = kind(data.astype(np.float32), indices.astype(np.int32), shape=dense.shape)
        left, right = (rng.integers(-1, 2, extent).astype(np.float32) for extent in dense.shape)
        assert_array_equal(A @ right, dense @ right)
        assert_array_equal(BinaryArray(left) @ A, (left != 0) @ dense)


def test_other_constructors(kind, A, dense):
    full = np.arange(1.0, 13, dtype=np.float32).reshape(3, 4)
    B = kind.from_dense(full)
    assert type(B) is kind
    assert_array_equal(B.todense(), full)
    for found in (kind.from_scipy(B.to_scipy()), kind.from_bcoo(B.to_bcoo()), kind.from_bcsr(B.to_bcsr())):
        assert type(found) is kind
        assert_array_equal(found.todense(), full)
    assert FixedNumPerPre.random(jax.random.key(0), (4, 9), per_row=2).data.shape == (4, 2)
    line, place = ("row", "CSR") if kind is FixedNumPerPre else ("column", "CSC")
    with pytest.raises(StructureError, match=rf"the {line}s have 1 to 2 entries, and the matrix 3; .* use {place}\."):
        kind.from_dense(jnp.asarray([[1.0, 0], [1, 1]]) if line == "row" else jnp.asarray([[1.0, 1], [0, 1]]))
    with pytest.raises(StructureError, match=r"the .*s have 2 to 2 entries, and the matrix 5;"):
        kind.from_dense(np.ones((2, 2)), nnz=5)
    with pytest.raises(StructureError, match=r"the number of entries of each .* is traced"):
        jax.jit(lambda dense: kind.from_dense(dense, nnz=4))(jnp.ones((2, 2)))


def test_it_is_spread_over_devices(A, dense):
    sharded = A.shard(jax.make_mesh((2,), ("x",)), "x")
    assert_array_equal(sharded @ jnp.ones(A.shape[1]), dense.sum(1))


def test_errors(kind, shape):
    name, (line, place) = kind.__name__, ("row", "column") if kind is FixedNumPerPre else ("column", "row")
    outside = INDICES.copy()
    outside[3, 1] = PLACES
    for arguments, error, message in (
        (
            (DATA, outside),
            StructureError,
            rf"{name}: indices\[3, 1\] is 4; a matrix with 4 {place}s has {place}s 0 to 3",
        ),
        ((DATA, -INDICES), StructureError, rf"{name}: indices\[0, 0\] is -2"),
        ((DATA[:4], INDICES[:4]), ShapeError, rf"indices has the shape \(4, 3\); expected \(5, k\), .* of each {line}"),
        ((DATA.T, INDICES), ShapeError, r"data has the shape \(3, 5\); expected \(5, 3\), like the indices"),
        ((DATA, INDICES[0]), ShapeError, r"indices has the shape \(3,\); expected two dimensions"),
        ((DATA, DATA), DtypeError, "indices is of dtype float32"),
        ((DATA > 0, INDICES), DtypeError, "bool"),
        ((DATA,), InputError, rf"got one argument of type ndarray; expected {name}\(data, indices, shape=...\)"),
        (((DATA, INDICES, INDICES),), InputError, "got one argument of type tuple"),
    ):
        with pytest.raises(error, match=message):
            kind(*arguments, shape=shape)
    with pytest.raises(ArgumentError, match="check=True, but the indices are traced"):
        jax.jit(lambda indices: kind(DATA, indices, shape=shape, check=True).data)(INDICES)
    with pytest.raises(DtypeError, match=r"numbers of entries up to .* do not fit into int32"):
        jax.eval_shape(lambda x: kind(1.0, x, shape=(2**16, 2**16)).data, jax.ShapeDtypeStruct((2**16, 2**15), "int32"))
    kind(DATA, outside, shape=shape, check=False)
