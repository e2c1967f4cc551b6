"""Parts of a matrix: rows, columns, elements, slices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError, DtypeError, StructureError
from xlakernel.sparse import COO, CSC, CSR

pytestmark = pytest.mark.usefixtures("plain_jax")

#: Indices of an axis of four or five that select several lines. Each number of entries compiles anew.
LISTS = [
    slice(None, None, -1),
    slice(-3, 100, 2),
    slice(2, 2),
    [3, 0, 0],
    np.array([-1, -4, 0], np.int16),
    jnp.array([2, 1]),
    range(1, 4, 2),
    [],
]


@pytest.mark.parametrize("index", [..., (..., 2), (1, ...), (..., 1, 2), (slice(2), ...), (..., slice(2))])
def test_an_ellipsis_stands_for_the_other_indices(matrix, dense, index):
    found = matrix[index]
    assert_array_equal(found if isinstance(found, jax.Array) else found.todense(), dense[index])


# Rows, columns, elements: dense


@pytest.mark.parametrize("i", [0, 4, -1, -5, np.int8(2), np.array(3), jnp.array(4)])
def test_a_row_is_dense(matrix, dense, i):
    assert_array_equal(matrix[i], dense[int(i)])
    assert_array_equal(matrix[i, :], dense[int(i)])


@pytest.mark.parametrize("j", [0, 3, -1, -4, np.uint8(2)])
def test_a_column_is_dense(matrix, dense, j):
    assert_array_equal(matrix[:, j], dense[:, int(j)])


def test_elements(matrix, dense):
    found = [[matrix[i, j] for j in range(-4, 4)] for i in (0, 2, -1)]
    assert_array_equal(found, dense[[0, 2, -1]][:, np.arange(-4, 4)])
    assert matrix[0, 2].shape == ()


@pytest.mark.parametrize("part", [*LISTS, np.array([True, False, True, False])])
def test_parts_of_a_row(build, odd, dense, part):
    matrix = build(CSR, odd)
    expected = dense[4][part if isinstance(part, slice) else np.array(part, dtype=int if part is LISTS[-1] else None)]
    assert_array_equal(matrix[4, part], expected)


@pytest.mark.parametrize("part", LISTS)
def test_parts_of_a_column(build, odd, dense, part):
    matrix = build(CSR, odd)
    expected = dense[:, 3][part if isinstance(part, slice) else np.array(part, dtype=int)]
    assert_array_equal(matrix[part, 3], expected)


def test_rows_one_by_one(matrix, dense):
    assert_array_equal(list(matrix), dense)


def test_equal_weights_and_other_dtypes(kind, build, odd, dense_of):
    expected = dense_of([(i, j, 2) for i, j, _ in odd])
    assert_array_equal(build(kind, odd, equal=2)[4], expected[4])
    assert build(kind, odd, equal=2, dtype="int8")[4].dtype == jnp.int8
    assert build(kind, odd, dtype="complex64")[:, 3].dtype == jnp.complex64


def test_weights_that_are_no_numbers_stay_in_their_rows(kind, build):
    matrix = build(kind, [(0, 1, np.nan), (1, 1, 2.0), (2, 3, np.inf)])
    assert_array_equal(matrix[1], [0, 2, 0, 0])
    assert_array_equal(matrix[:, 2], np.zeros(5))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_traced_rows_and_columns(matrix, dense, dtype):
    row, column = jax.jit(lambda i: matrix[i]), jax.jit(lambda j: matrix[:, j])
    for i in (0, 3, *((-1,) if dtype != "uint8" else ())):
        assert_array_equal(row(np.array(i, dtype)), dense[i])
        assert_array_equal(column(np.array(i, dtype)), dense[:, i])


@pytest.mark.parametrize(("dtype", "rows"), [("uint8", [3, 60, 200]), ("int8", [3, 127, -1]), ("int16", [3, 299, -2])])
def test_traced_indices_count_further_than_their_dtype(dtype, rows):
    """300 is no number of 8 bits, and -1 + 300 none either."""
    numbers = np.arange(300, dtype=np.float32)
    matrix = CSR.from_dense(numbers[:, None])
    traced = jnp.array(rows, dtype)
    assert_array_equal(jax.vmap(lambda i: matrix[i])(traced), numbers[rows][:, None])
    assert_array_equal(jax.vmap(lambda i: matrix[i, 0])(traced), numbers[rows])
    assert_array_equal(jax.vmap(lambda j: matrix.T[0, j])(traced), numbers[rows])


def test_traced_elements_of_a_traced_matrix(matrix, dense):
    element = jax.jit(lambda matrix, i, j: matrix[i, j])
    assert [element(matrix, i, j) for i, j in [(0, 2), (-1, -1), (4, 0)]] == [dense[0, 2], dense[4, 3], dense[4, 0]]


def test_traced_indices_out_of_range_are_brought_into_it_as_jax_does(matrix, dense):
    row = jax.jit(lambda i: matrix[i])
    assert_array_equal(row(99), dense[4])
    assert_array_equal(row(-99), dense[0])


def test_traced_elements_of_a_row(matrix, dense):
    columns = jnp.array([3, -1, 0, 9], jnp.int8)
    assert_array_equal(jax.jit(lambda columns: matrix[1, columns])(columns), dense[1, [3, 3, 0, 3]])
    assert_array_equal(jax.jit(lambda rows: matrix[rows, 2])(columns), dense[[3, 4, 0, 4], 2])


def test_several_rows_at_once(matrix, dense):
    rows = jnp.array([4, 0, 4])
    assert_array_equal(jax.vmap(lambda i: matrix[i])(rows), dense[rows])
    assert_array_equal(jax.vmap(lambda j: matrix[:, j])(jnp.array([3, 0])), dense.T[[3, 0]])


def test_gradients_pass_through_a_row(matrix, dense):
    gradient = jax.grad(lambda data: (matrix.with_data(data)[4] ** 2).sum())(matrix.data)
    row, column = map(np.asarray, matrix.coordinates())
    expected = [2 * dense[4, j] if i == 4 else 0 for i, j in zip(row, column, strict=True)]
    assert_array_equal(gradient, expected)


# Slices and lists: matrices of the same format


@pytest.mark.parametrize("count", [1, 20_000])
def test_rows_of_a_large_matrix(count):
    """Large arrays are not copied again, and rows follow each other at any position."""
    theirs = scipy.sparse.random_array((200, count), density=0.5, format="csr", dtype=np.float32, rng=0)
    matrix = CSR.from_scipy(theirs)
    for part in (slice(3, 150), np.arange(0, 200, 3), np.arange(100)[::-1], [-1, -200, 7]):
        assert_array_equal(matrix[part].to_scipy().toarray(), theirs[part].toarray())


# Each list with one of the formats, and the first two, an empty and a repeating one with all of them.
@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, part) for i, part in enumerate(LISTS) for j, kind in enumerate((CSR, CSC, COO)) if i < 4 or i % 3 == j],
)
def test_several_rows_or_columns_are_a_matrix(build, odd, dense, kind, part):
    matrix = build(kind, odd)
    index = part if isinstance(part, slice) else np.array(part, dtype=int)
    for found, expected in [
        (matrix[part], dense[index]),
        (matrix[:, part], dense[:, index]),
        (matrix[part, 1:3], dense[index][:, 1:3]),
    ]:
        assert type(found) is type(matrix)
        assert found.shape == expected.shape
        assert_array_equal(found.todense(), expected)


@pytest.mark.parametrize(
    "mesh",
    [np.ix_([3, 0, -1], [1, 1]), np.ix_([2], [3]), np.ix_([], [0, 2]), ([[1], [0]], [[2, 0, 1]])],
    ids=["many", "one", "none", "lists"],
)
def test_an_open_mesh_selects_rows_and_columns(matrix, dense, mesh):
    part = matrix[mesh]
    assert type(part) is type(matrix)
    np.testing.assert_array_equal(part.todense(), dense[mesh])


@pytest.mark.parametrize("mask", [[True, False, False, True, True], [False] * 5])
def test_bools_choose(matrix, dense, mask):
    assert_array_equal(matrix[mask].todense(), dense[np.array(mask)])
    assert_array_equal(matrix[:, jnp.array(mask[:4])].todense(), dense[:, np.array(mask[:4])])


def test_everything_is_the_matrix_itself(matrix):
    assert matrix[:] is matrix and matrix[:, :] is matrix and matrix[()] is matrix


@settings(max_examples=5)
@given(data=st.data())
def test_parts_are_those_of_the_dense_matrix(kind, build, dense_of, entries, data):
    found = data.draw(entries)
    rows = data.draw(st.lists(st.integers(-5, 4), max_size=6))
    columns = data.draw(st.slices(4))
    with use_backend("jax"):
        part = build(kind, found)[rows, columns]
        theirs = part.to_scipy().toarray()  # compiles less than todense
    assert part.shape == theirs.shape
    assert_array_equal(theirs, dense_of(found)[np.array(rows, int)][:, columns])


def test_equal_weights_stay_so(kind, build, odd, dense_of):
    part = build(kind, odd, equal=2)[[4, 4, 0], 2:]
    assert part.homogeneous
    assert_array_equal(part.todense(), dense_of([(i, j, 2) for i, j, _ in odd])[[4, 4, 0], 2:])


def test_an_only_entry_is_chosen_twice(kind, build):
    matrix = build(kind, [(1, 2, 5.0)], room=1)
    expected = np.zeros((3, 4))
    expected[[0, 2], 2] = 5
    assert_array_equal(matrix[[1, 0, 1]].todense(), expected)


def test_empty_matrices_have_parts(kind):
    matrix = kind.from_dense(np.zeros((0, 3), np.float32), nnz=2)
    assert matrix[:, 1:].shape == (0, 2)
    assert matrix[:0].shape == (0, 3)
    assert matrix[:, 1].shape == (0,)


def test_weights_may_be_traced(matrix, dense):
    """The number of entries of a part depends on the structure alone, which is known."""

    @jax.jit
    def part(data):
        return matrix.with_data(data)[[4, 0]][:, 2:].todense()

    assert_array_equal(part(2 * matrix.data), 2 * dense[[4, 0], 2:])


def test_native_kernels_are_used_while_tracing(build, odd, dense):
    matrix = build(CSR, odd)
    with use_backend("numba_cuda" if jax.default_backend() == "gpu" else "numba"):
        part = jax.jit(lambda data: matrix.with_data(data)[:, 2:].data)(matrix.data)
    assert part.shape == (5,)


def test_gradients_pass_through_a_slice(matrix, dense):
    def loss(data):
        return (matrix.with_data(data)[[4, 2], 2:].todense() ** 2).sum()

    row, column = map(np.asarray, matrix.coordinates())
    expected = [2 * dense[i, j] if i in (2, 4) and 2 <= j < 4 else 0 for i, j in zip(row, column, strict=True)]
    assert_array_equal(jax.grad(loss)(matrix.data), expected)
    assert_array_equal(jax.jit(jax.grad(loss))(matrix.data), expected)


def test_a_part_of_a_prepared_matrix(build, odd, dense):
    part = build(CSR, odd).prepare()[[4, 0]]
    assert part.prepared is None  # what was added is that of the whole
    assert_array_equal(part.todense(), dense[[4, 0]])


@pytest.mark.parametrize("part", [slice(1, 3), [2, 0, 2]])
@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16", "uint32", "complex64"])
def test_parts_keep_their_dtype(kind, build, odd, dense, dtype, part):
    matrix = build(kind, [(i, j, abs(weight)) for i, j, weight in odd], dtype=jnp.dtype(dtype))
    found = matrix[part]
    assert found.dtype == jnp.dtype(dtype)
    assert_array_equal(found.todense().astype(jnp.complex64), abs(matrix).todense().astype(jnp.complex64)[np.r_[part]])


@pytest.mark.parametrize("part", [slice(1, 3), [2, 0, 2], (slice(None), slice(1, 3))])
def test_indices_keep_their_dtype(kind, build, odd, part, x64):
    matrix = build(kind, odd, dtype="complex128", index="int64")
    found = matrix[part]
    assert found.dtype == jnp.complex128
    assert {array.dtype for array in found.structure} == {jnp.dtype("int64")}
    assert_array_equal(found.to_scipy().toarray(), matrix.to_scipy().toarray()[part])


def test_parts_of_a_wide_matrix_while_wide_types_are_off(build, odd, dense):
    """JAX would read memory of int64 as int32."""
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        matrix = build(CSR, odd, dtype="float64", index="int64")
    found = matrix[1:3]
    assert_array_equal(found.todense(), dense[1:3])


@pytest.mark.parametrize("part", [slice(1, 3), [4, 0], (slice(None), [3, 0])])
def test_parts_stay_on_the_device_of_the_matrix(kind, build, odd, dense, part):
    device = jax.devices("cpu")[-1]
    matrix = build(kind, odd)
    for whole, is_committed in ((matrix, False), (jax.device_put(matrix, device), True)):
        found = whole[part]
        for array, like in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
            assert array.committed == is_committed and array.sharding == like.sharding
            assert array.aval == jax.device_put(np.asarray(array)).aval
        assert_array_equal(found.todense(), dense[part])


# Errors


@pytest.mark.parametrize("index", [5, -6, (0, 4), (0, -5), (slice(None), 4), ([5],), ([0, -6],), (0, [4])])
def test_indices_out_of_range(matrix, index):
    with pytest.raises(IndexError, match=r"\[\.\.\.\]: the index -?\d is out of range for "):
        matrix[index]


def test_an_index_out_of_range_says_of_what(matrix):
    for index in ((slice(None), [0, 9]), (1, [9])):
        with pytest.raises(IndexError, match="the index 9 is out of range for 4 columns"):
            matrix[index]
    for index in ([-6], (np.array([200], np.uint8), 2)):
        with pytest.raises(IndexError, match=r"the index (-6|200) is out of range for 5 rows"):
            matrix[index]


@pytest.mark.parametrize("index", [[True, False], np.ones(6, bool), (slice(None), [True])])
def test_masks_of_another_length(matrix, index):
    with pytest.raises(IndexError, match=r"the index is a vector of \d bools; the matrix has (5 rows|4 columns)\."):
        matrix[index]


@pytest.mark.parametrize("index", [1.0, "text", True, np.zeros((2, 2), int), [1.5], (0, "text"), jnp.array(True)])
def test_other_types_of_indices(matrix, index):
    with pytest.raises(ArgumentError, match=r"expected an integer, a slice, or a vector of integers or of bools"):
        matrix[index]


@pytest.mark.parametrize("index", [None, (0, None), (0, 1, 2), (..., ...), (0, 1, 2, ...), (..., None)])
def test_indices_of_another_number(matrix, index):
    with pytest.raises(ArgumentError, match=r"expected one or two integers, slices or vectors"):
        matrix[index]


def test_more_entries_than_the_indices_count_are_refused(build):
    matrix = build(CSR, [], shape=(2, 4), room=1 << 16)
    matrix = CSR((matrix.data, matrix.indices, jnp.array([0, 1 << 16, 1 << 16])), shape=(2, 4))
    with pytest.raises(DtypeError, match=rf"CSR\[\.\.\.\]: numbers of entries up to {1 << 31} do not fit into int32"):
        matrix[np.zeros(1 << 15, int)]


@pytest.mark.parametrize("number", [1.5, True])
def test_traced_indices_are_integers(matrix, number):
    with pytest.raises(ArgumentError, match="expected an integer"):
        jax.jit(lambda i: matrix[i])(number)


def test_a_matrix_of_unknown_size_is_refused_while_tracing(matrix):
    with pytest.raises(StructureError, match=r"the matrix is traced.*jax\.vmap\(lambda i: A\[i\]\)\(rows\)"):
        jax.jit(lambda matrix: matrix[1:3])(matrix)
    with pytest.raises(StructureError, match=r"the index is traced"):
        jax.jit(lambda rows: matrix[rows])(jnp.array([0, 1]))
