"""``A @ x`` and ``x @ A`` with every kind of operand, against dense matrices in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import use_backend
from xlakernel.core.errors import DifferentiationError, DtypeError, InputError, ShapeError
from xlakernel.sparse import COO, CSC, CSR, BinaryArray, BitPackedArray, CompactArray, WeightedArray

pytestmark = pytest.mark.usefixtures("plain_jax")

OPERANDS = {
    "dense": jnp.asarray,
    "numpy": np.asarray,
    "list": lambda x: x.tolist(),
    "binary": BinaryArray,
    "weighted": WeightedArray,
    "packed": BitPackedArray,
    "compact": CompactArray,
}
operands = pytest.mark.parametrize("operand", OPERANDS)
#: Without those that are converted to JAX's arrays, and are dense operands then.
own_operands = pytest.mark.parametrize("operand", [name for name in OPERANDS if name not in ("numpy", "list")])
#: Formats, and True if prepared.
FORMS = {
    "CSR": (CSR, False),
    "CSC": (CSC, False),
    "COO": (COO, False),
    "CSR prepared": (CSR, True),
    "CSC prepared": (CSC, True),
}


@pytest.fixture(scope="session", params=FORMS)
def make(request, build):
    """Return a function that builds a matrix of a format, prepared or not."""
    kind, prepared = FORMS[request.param]

    def make(*args, **options):
        matrix = build(kind, *args, **options)
        return matrix.prepare() if prepared else matrix

    return make


def value_of(operand, x):
    """Return the values of *x* as this kind of operand."""
    return (x != 0).astype(np.float64) if operand in ("binary", "packed", "compact") else x.astype(np.float64)


numbers = st.sampled_from([0, 0, 1, -2, 3])
vectors_of = {n: st.lists(numbers, min_size=n, max_size=n).map(lambda x: np.array(x, np.float32)) for n in (4, 5)}


# Values


@operands
@settings(max_examples=8)
@given(data=st.data())
def test_vectors(make, operand, dense_of, entries, data):
    found = data.draw(entries)
    x, y = data.draw(vectors_of[4]), data.draw(vectors_of[5])
    dense = dense_of(found)
    with use_backend("jax"):
        matrix = make(found)
        right, left = matrix @ OPERANDS[operand](x), OPERANDS[operand](y) @ matrix
    assert isinstance(right, jax.Array) and right.dtype == left.dtype == jnp.float32
    assert_array_equal(right, dense @ value_of(operand, x))
    assert_array_equal(left, value_of(operand, y) @ dense)


@pytest.mark.parametrize("operand", ["dense", "numpy", "list", "binary", "weighted", "packed"])
@settings(max_examples=8)
@given(data=st.data())
def test_matrices(make, operand, dense_of, entries, data):
    found, columns = data.draw(entries), 3
    x = np.stack([data.draw(vectors_of[4]) for _ in range(columns)], axis=1)
    y = np.stack([data.draw(vectors_of[5]) for _ in range(columns)])
    dense = dense_of(found)
    with use_backend("jax"):
        matrix = make(found)
        right, left = matrix @ OPERANDS[operand](x), OPERANDS[operand](y) @ matrix
    assert (right.shape, left.shape) == ((5, columns), (columns, 4))
    assert_array_equal(right, dense @ value_of(operand, x))
    assert_array_equal(left, value_of(operand, y) @ dense)


@own_operands
def test_native_kernels(make, operand, odd, dense):
    """The default on a CPU; its kernels have tests of their own."""
    x, y = np.array([2, 0, -1, 3], np.float32), np.array([0, 1, 0, -2, 3], np.float32)
    matrix = make(odd)
    with use_backend("numba"):
        assert_array_equal(matrix @ OPERANDS[operand](x), dense @ value_of(operand, x))
        assert_array_equal(OPERANDS[operand](y) @ matrix, value_of(operand, y) @ dense)


@own_operands
def test_equal_weights(make, operand, odd, dense_of):
    x, y = np.array([2, 0, -1, 3], np.float32), np.array([0, 1, 0, -2, 3], np.float32)
    matrix, dense = make(odd, equal=3.0), dense_of([(i, j, 3) for i, j, _ in odd])
    assert_array_equal(matrix @ OPERANDS[operand](x), dense @ value_of(operand, x))
    assert_array_equal(OPERANDS[operand](y) @ matrix, value_of(operand, y) @ dense)


# The formats in turn, each with every operand and every shape but one: each compiles programs.
@pytest.mark.parametrize(
    ("kind", "operand", "shape"),
    [
        pytest.param(kind, operand, shape, marks=[pytest.mark.slow] * ((i + j + k) % 3 > 0))
        for i, kind in enumerate((CSR, CSC, COO))
        for j, operand in enumerate(("dense", "binary", "compact"))
        for k, shape in enumerate([(0, 0), (0, 3), (3, 0), (3, 2)])
    ],
)
def test_matrices_without_entries(kind, operand, shape):
    x, y = np.ones(shape[1], np.float32), np.ones(shape[0], np.float32)
    for nnz in (0, 2):  # 2: padding
        matrix = kind.from_dense(np.zeros(shape, np.float32), nnz=nnz)
        assert_array_equal(matrix @ OPERANDS[operand](x), np.zeros(shape[0]))
        assert_array_equal(OPERANDS[operand](y) @ matrix, np.zeros(shape[1]))


@pytest.mark.parametrize("columns", [0, 1])
def test_few_columns(make, odd, dense, columns):
    x, y = np.ones((4, columns), np.float32), np.ones((columns, 5), np.float32)
    matrix = make(odd)
    for kind in (jnp.asarray, BinaryArray, WeightedArray):
        assert_array_equal(matrix @ kind(x), dense @ x)
        assert_array_equal(kind(y) @ matrix, y @ dense)


def test_it_is_jitted_and_mapped(make, odd, dense):
    matrix = make(odd)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert_array_equal(jax.jit(lambda matrix, x: matrix @ x)(matrix, x[0]), dense @ x[0])
    assert_array_equal(jax.vmap(lambda x: matrix @ x)(x), x @ dense.T)
    assert_array_equal(jax.vmap(lambda x: BinaryArray(x) @ matrix.T)(x), (x != 0) @ dense.T)
    weights = jnp.stack([matrix.data, 2 * matrix.data])
    several = jax.vmap(lambda data: matrix.with_data(data) @ x[1])(weights)
    assert_array_equal(several, [dense @ x[1], 2 * dense @ x[1]])


# Inactive elements and padding


def test_zeros_of_events_hide_weights_that_are_no_numbers(make):
    """0 * inf is not a number, but where there is no event nothing is added."""
    matrix = make([(0, 0, np.inf), (1, 0, np.nan), (0, 1, 2.0)])
    x = np.array([0, 1, 0, 0], np.float32)
    for kind in (BinaryArray, WeightedArray, BitPackedArray, CompactArray):
        assert_array_equal(matrix @ kind(x), [2, 0, 0, 0, 0])
        assert_array_equal(kind(x) @ matrix.T, [2, 0, 0, 0, 0])
    assert np.isnan(matrix @ x)[:2].all()


def test_nan_is_an_event(make):
    x = np.array([np.nan, 0, 0, 0], np.float32)
    matrix = make([(0, 0, 2.0), (1, 1, 3.0)])
    for kind in (BinaryArray, BitPackedArray, CompactArray):
        assert_array_equal(matrix @ kind(x), [2, 0, 0, 0, 0])
    assert_array_equal(matrix @ WeightedArray(x), [np.nan, 0, 0, 0, 0])


def test_padding_is_never_seen(make):
    """Its weights are NaN, its places those of the first row and column."""
    matrix = make([(3, 3, 1.0)])
    assert np.isnan(matrix.data).any()
    for x in (np.ones(4, np.float32), np.ones((4, 2), np.float32)):
        assert not np.isnan(matrix @ x).any()
        assert not np.isnan(x.T @ matrix.T).any()


# Dtypes


DTYPES = [
    ("float32", "int32", "float32"),
    ("float32", "bool", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float32", "float32"),
    ("bfloat16", "float16", "float32"),
    ("int8", "int8", "int8"),
    ("uint8", "int16", "int16"),
    ("int32", "float32", "float32"),
    ("int32", "bool", "int32"),
    ("complex64", "float32", "complex64"),
    ("float32", "complex64", "complex64"),
    ("float16", "complex64", "complex64"),
]


# The formats in turn: the dtypes are chosen before the formats differ.
@pytest.mark.parametrize(
    ("form", "weights", "x", "result"),
    [(["CSR", "COO", "CSC prepared"][i % 3], *dtypes) for i, dtypes in enumerate(DTYPES)],
)
def test_dtypes_are_those_of_jax(build, odd, form, weights, x, result):
    kind, prepared = FORMS[form]
    matrix = build(kind, [(i, j, abs(weight)) for i, j, weight in odd], dtype=weights)
    matrix = matrix.prepare() if prepared else matrix
    dense = np.asarray(matrix.todense()).astype("complex64")
    given = jnp.array([1, 0, 3, 2], x)
    for operand in (given, WeightedArray(given)):
        found = matrix @ operand
        assert found.dtype == jnp.dtype(result)
        assert_array_equal(np.asarray(found).astype("complex64"), dense @ np.asarray(given).astype("complex64"))
    if given.dtype.kind != "c":  # events have no dtype of their own
        found = BinaryArray(given) @ matrix.T
        assert found.dtype == jnp.dtype(weights)
        assert_array_equal(np.asarray(found).astype("complex64"), dense @ (np.asarray(given) != 0))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64", "uint64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_64_bits(build, odd, dtype, index):
    matrix = build(CSR, [(i, j, abs(weight)) for i, j, weight in odd], dtype=dtype, index=index)
    x = np.array([1, 0, 3, 2**40]).astype(dtype)
    assert (matrix @ x).dtype == dtype
    assert_array_equal(matrix @ x, np.asarray(matrix.todense()) @ x)
    assert_array_equal(x @ matrix.T, np.asarray(matrix.todense()) @ x)


def test_half_precision_is_summed_in_single(make):
    matrix = make([(0, 0, 2048.0), (0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0), (0, 3, 1.0)], dtype="float16")
    ones = np.ones(4, np.float16)
    for x in (ones, BinaryArray(ones), WeightedArray(ones)):
        assert (matrix @ x)[0] == 2052  # 2048 + 1 is 2048 in float16


def test_complex_weights_are_not_conjugated(make):
    matrix = make([(0, 1, 1 + 2j)], dtype="complex64")
    x = np.array([0, 1j, 0, 0], np.complex64)
    assert (matrix @ x)[0] == (1 + 2j) * 1j
    assert (x @ matrix.T)[0] == (1 + 2j) * 1j


# Derivatives: each product's own are tested with the operators


@pytest.mark.parametrize("operand", ["dense", "binary", "weighted"])
def test_gradients_are_those_of_dense_matrices(make, operand, odd, dense):
    matrix = make(odd, room=7)
    x = jnp.array([2.0, 0.0, -1.0, 0.5])
    weights = jnp.arange(1.0, 6.0)

    def loss(data, x):
        return ((matrix.with_data(data) @ OPERANDS[operand](x)) * weights).sum()

    by_data, by_x = jax.jit(jax.grad(loss, (0, 1)))(matrix.data, x)
    row, column = map(np.asarray, matrix.coordinates())
    assert_allclose(by_data, np.asarray(weights)[row] * value_of(operand, np.asarray(x))[column])
    assert_allclose(by_x, np.asarray(weights) @ dense)


def test_a_prepared_matrix_is_differentiated_by_its_data(build, odd):
    matrix = build(CSR, odd).prepare()
    with pytest.raises(DifferentiationError, match=r"A\.with_data\(w\)\)\)\(A\.data\)"):
        jax.grad(lambda matrix: (matrix @ jnp.ones(4)).sum(), allow_int=True)(matrix)


# Errors


@operands
def test_lengths_that_do_not_fit(make, operand, odd):
    matrix, x = make(odd), OPERANDS[operand](np.ones(7, np.float32))
    with pytest.raises(ShapeError, match=r"@ x: x has the shape \(7,\); .* it must be \(4,\) or \(4, k\)"):
        matrix @ x
    with pytest.raises(ShapeError, match=r"x @ .*: x has the shape \(7,\).* it must be \(5,\) or \(k, 5\)"):
        x @ matrix


@pytest.mark.parametrize("shape", [(), (5, 4, 1), (5, 1), (1, 4)])
def test_ranks_and_sides_that_do_not_fit(make, odd, shape):
    matrix, x = make(odd), np.ones(shape, np.float32)
    for operand in (x, BinaryArray(x), WeightedArray(x)):
        with pytest.raises(ShapeError, match="x has the shape"):
            matrix @ operand
        with pytest.raises(ShapeError, match="x has the shape"):
            operand @ matrix


def test_operands_of_other_types(make, odd):
    matrix = make(odd)
    for wrong in ("text", None, object()):
        with pytest.raises(InputError, match=r"@ x: x is .*; expected an array"):
            matrix @ wrong
        with pytest.raises(InputError, match=r"x @ .*: x is .*; expected an array"):
            wrong @ matrix
    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        matrix @ jnp.ones(4, "float8_e4m3fn")


def test_a_matrix_of_scipy_is_not_multiplied(make, odd):
    matrix = make(odd)
    with pytest.raises(InputError, match="both are sparse"):
        matrix @ matrix.T.to_scipy()
    with pytest.raises(InputError, match="expected an array"):  # which is of SciPy's too, but not sparse
        matrix @ scipy.sparse.linalg.aslinearoperator(np.eye(4))
