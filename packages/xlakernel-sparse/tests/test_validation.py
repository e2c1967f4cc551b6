"""Invalid arguments of the constructors: kernels would read and write out of bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse

from xlakernel.core.errors import DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import COO, CSC, CSR, BinaryArray

pytestmark = pytest.mark.usefixtures("plain_jax")

DATA = np.array([1, 2, 3], np.float32)
INDICES = np.array([2, 0, 1], np.int32)
INDPTR = np.array([0, 1, 3], np.int32)
#: The arrays of a matrix of three entries in each format; the shapes are (2, 3), (3, 2) and (2, 3).
GOOD = {
    CSR: (DATA, INDICES, INDPTR),
    CSC: (DATA, INDICES, INDPTR),
    COO: (DATA, np.array([0, 1, 1], np.int32), INDICES),
}
SHAPES = {CSR: (2, 3), CSC: (3, 2), COO: (2, 3)}


def make(kind, shape=None, check=True, **changes):
    names = ("data", "row", "col") if kind is COO else ("data", "indices", "indptr")
    arrays = dict(zip(names, GOOD[kind], strict=True)) | changes
    return kind(tuple(arrays.values()), shape=SHAPES[kind] if shape is None else shape, check=check)


compressed = pytest.mark.parametrize(
    ("kind", "line", "place"), [(CSR, "row", "column"), (CSC, "column", "row")], ids=["CSR", "CSC"]
)


def test_valid_arrays_pass(kind):
    for check in (True, False):
        assert make(kind, check=check).nnz == 3


def test_another_byte_order_is_named():
    with pytest.raises(InputError, match="Convert it to the native byte order"):
        make(CSR, data=DATA.astype(">f4"))


# Values of compressed structures


@compressed
@pytest.mark.parametrize(("wrong", "where"), [(3, 1), (-1, 0), (2**31 - 1, 2), (-(2**31), 2)])
def test_indices_out_of_range(kind, line, place, wrong, where):
    indices = INDICES.copy()
    indices[where] = wrong
    message = rf"^{kind.__name__}: indices\[{where}\] is {wrong}; a matrix with 3 {place}s has {place}s 0 to 2\.$"
    with pytest.raises(StructureError, match=message):
        make(kind, indices=indices)


@compressed
def test_the_first_of_several_is_named(kind, line, place):
    with pytest.raises(StructureError, match=r"indices\[0\] is 7"):
        make(kind, indices=np.array([7, 8, 9]))


@compressed
def test_padding_is_checked_too(kind, line, place):
    arrays = np.ones(4, np.float32), np.append(INDICES, 99), INDPTR
    with pytest.raises(StructureError, match=r"indices\[3\] is 99"):
        kind(arrays, shape=SHAPES[kind])


@compressed
@pytest.mark.parametrize("first", [-1, 1])
def test_indptr_begins_at_0(kind, line, place, first):
    with pytest.raises(StructureError, match=rf"indptr begins with {first}; the first {line} begins at 0"):
        make(kind, indptr=np.array([first, 1, 3]))


@compressed
def test_indptr_never_falls(kind, line, place):
    arrays = DATA, INDICES, np.array([0, 2, 1, 3])
    shape = (3, 3)
    with pytest.raises(StructureError, match=rf"indptr decreases from 2 to 1 at {line} 1; it must not"):
        kind(arrays, shape=shape)


@compressed
@pytest.mark.parametrize("last", [4, 2**31 - 1])
def test_indptr_ends_with_at_most_the_number_of_entries(kind, line, place, last):
    with pytest.raises(StructureError, match=rf"indptr ends with {last}, but there are 3 indices"):
        make(kind, indptr=np.array([0, 1, last]))


@compressed
def test_no_place_is_in_range_of_none(kind, line, place):
    shape = (2, 0) if kind is CSR else (0, 2)
    with pytest.raises(StructureError, match=rf"a matrix with 0 {place}s"):
        make(kind, shape=shape)


# Values of coordinates


@pytest.mark.parametrize(
    ("what", "wrong", "message"),
    [
        ("row", -1, r"row\[1\] is -1; a matrix with 2 rows has rows 0 to 1"),
        ("row", 3, r"row\[1\] is 3; a matrix with 2 rows"),
        ("col", -1, r"col\[1\] is -1; a matrix with 3 columns has columns 0 to 2"),
        ("col", 4, r"col\[1\] is 4; a matrix with 3 columns"),
        ("row", 2, r"entry 1 is at \(2, 0\), and the shape is \(2, 3\)"),
        ("col", 3, r"entry 1 is at \(1, 3\), and the shape is \(2, 3\)"),
    ],
)
def test_coordinates_out_of_range(what, wrong, message):
    good = dict(zip(("data", "row", "col"), GOOD[COO], strict=True))
    changed = good[what].copy()
    changed[1] = wrong
    with pytest.raises(StructureError, match=message):
        make(COO, **{what: changed})


def test_entries_wholly_out_of_range_are_padding():
    matrix = COO((DATA, np.array([0, 2, 1]), np.array([2, 3, 1])), shape=(2, 3), check=True)
    assert matrix.todense().tolist() == [[0, 0, 1], [0, 3, 0]]


# Which indices are checked


def test_trusted_indices_are_not_checked(kind):
    """The result is undefined, so nothing is computed here."""
    wrong = {"row": np.array([9, 9, 9])} if kind is COO else {"indices": np.array([9, 9, 9])}
    assert make(kind, check=False, **wrong).nnz == 3


def test_traced_indices_are_trusted(kind):
    @jax.jit
    def entries(arrays):
        return kind(arrays, shape=SHAPES[kind]).nnz

    assert entries(GOOD[kind]) == 3


def test_traced_weights_do_not_hinder_a_check(kind):
    assert jax.jit(lambda data: make(kind, data=data).todense().sum())(DATA) == 6
    wrong = {"row": np.array([9, 9, 9])} if kind is COO else {"indices": np.array([9, 9, 9])}
    with pytest.raises(StructureError):
        jax.jit(lambda data: make(kind, data=data, **wrong).nnz)(DATA)


@pytest.mark.parametrize("known", [np.array, list, tuple, jnp.array, lambda indices: np.array(indices, np.int8)])
def test_known_indices_are_checked_inside_of_jit(kind, known):
    names = ("row", "col") if kind is COO else ("indices", "indptr")
    for last in (9, 1):
        arrays = {name: known(array.tolist()) for name, array in zip(names, GOOD[kind][1:], strict=True)}
        arrays[names[0]] = known([*GOOD[kind][1].tolist()[:-1], last])
        total = jax.jit(lambda data, arrays=arrays: make(kind, data=data, **arrays).sum())
        if last == 9:
            with pytest.raises(StructureError, match=r"\[2\] is 9"):
                total(DATA)
        else:
            assert total(DATA) == 6


def test_a_list_of_traced_indices_is_trusted():
    total = jax.jit(lambda last: CSR((DATA, [2, 0, last], range(0, 6, 3)), shape=(1, 3)).sum())
    assert total(1) == 6


def test_padding_where_there_are_no_places():
    """As conversions make it: its places are 0."""
    matrix = CSR.from_dense(np.zeros((4, 0), np.float32), nnz=3)
    again = CSR((matrix.data, *matrix.structure), shape=(4, 0))
    assert CSR.from_bcsr(again.to_bcsr()).nnz == 3
    with pytest.raises(StructureError, match=r"indices\[0\] is 1"):
        CSR((DATA, np.array([1, 0, 0]), np.zeros(5, int)), shape=(4, 0))
    with pytest.raises(StructureError, match=r"indices\[0\] is 0; a matrix with 0 columns"):
        CSR((DATA, np.zeros(3, int), np.array([0, 1, 1, 1, 1])), shape=(4, 0))


# Lengths, ranks, dtypes: always


@compressed
@pytest.mark.parametrize("length", [0, 2, 4])
def test_indptr_has_one_more_than_there_are_lines(kind, line, place, length):
    with pytest.raises(ShapeError, match=rf"indptr has {length} elements; a matrix with 2 {line}s has 3, one more"):
        make(kind, indptr=np.zeros(length, np.int32), check=False)


@pytest.mark.parametrize("data", [np.ones(2, "float32"), np.ones(4, "float32"), np.ones(0, "float32")])
def test_data_is_as_long_as_indices(kind, data):
    with pytest.raises(ShapeError, match=r"data has the shape .*; expected \(3,\).* or \(1,\)"):
        make(kind, data=data, check=False)


@pytest.mark.parametrize("data", [np.float32(1), np.ones((3, 1), "float32")])
def test_data_has_one_dimension(kind, data):
    with pytest.raises(ShapeError, match="data has the shape"):
        make(kind, data=data, check=False)


def test_coordinates_are_equally_many():
    with pytest.raises(ShapeError, match=r"row.*col"):
        make(COO, row=np.array([0, 1]), check=False)


@pytest.mark.parametrize("position", [1, 2])
def test_index_arrays_have_one_dimension(kind, position):
    arrays = list(GOOD[kind])
    arrays[position] = arrays[position][:, None]
    with pytest.raises(ShapeError, match=r"has the shape \(3, 1\); expected one dimension"):
        kind(tuple(arrays), shape=SHAPES[kind], check=False)


def test_no_indices_are_integers_too(kind):
    matrix = kind(([], [], []) if kind is COO else ([], [], [0] * (SHAPES[kind][kind is CSC] + 1)), shape=SHAPES[kind])
    assert matrix.nnz == 0 and matrix.structure[0].dtype == "int32"


@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64"])
@pytest.mark.parametrize("position", [1, 2])
def test_indices_are_integers(kind, position, dtype):
    arrays = list(GOOD[kind])
    arrays[position] = arrays[position].astype(dtype)
    with pytest.raises(DtypeError, match=f"is of dtype {dtype}; expected int32 or int64"):
        kind(tuple(arrays), shape=SHAPES[kind], check=False)


@pytest.mark.parametrize("dtype", ["bool", "float8_e4m3fn", "int4"])
def test_weights_are_numbers_that_can_be_summed(kind, dtype):
    with pytest.raises(DtypeError, match=f"data is of dtype {dtype}; allowed: float16, bfloat16"):
        make(kind, data=jnp.ones(3, dtype))


@pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="long double is float64 on this platform")
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_weights_of_numpy_that_jax_lacks(kind, dtype):
    with pytest.raises(DtypeError, match=f"data is of dtype {np.dtype(dtype)}; allowed: float16, bfloat16"):
        make(kind, data=np.ones(3, dtype))


def test_keys_are_no_numbers(kind):
    with pytest.raises(DtypeError, match=r"x is of dtype key<fry>; allowed: float16"):
        make(kind) @ jax.random.split(jax.random.key(0), SHAPES[kind][1])


@pytest.mark.parametrize(("number", "dtype"), [(2**31, "int64"), (-(2**32), "int64"), (2**32 - 1, "uint32")])
def test_indices_that_would_wrap_into_range_are_refused(kind, number, dtype):
    """Without 64-bit types JAX keeps the lower half, and -2**32 would become 0."""
    arrays = list(GOOD[kind])
    arrays[1] = np.array([number, 0, 1], dtype)
    with pytest.raises(DtypeError, match=f"holds {number}; int32 ranges from.*jax_enable_x64"):
        kind(tuple(arrays), shape=SHAPES[kind])


@pytest.mark.usefixtures("x64")
def test_indices_that_would_wrap_at_64_bits_are_refused(kind):
    arrays = list(GOOD[kind])
    arrays[1] = np.array([2**64 - 1, 0, 1], np.uint64)
    with pytest.raises(DtypeError, match=f"holds {2**64 - 1}; int64 ranges from .* to {2**63 - 1}.$"):
        kind(tuple(arrays), shape=SHAPES[kind])


@pytest.mark.usefixtures("x64")
def test_indices_beyond_32_bits_are_known_with_64_bit_types(kind):
    arrays = list(GOOD[kind])
    arrays[1] = np.array([2**40, 0, 1])
    with pytest.raises(StructureError, match=r"\[0\] is 1099511627776"):
        kind(tuple(arrays), shape=SHAPES[kind])


# The shape, and other arguments


@pytest.mark.parametrize("shape", [3, (2,), (2, 3, 4), (2.0, 3), ("2", 3), None, (2, None)])
def test_a_shape_is_two_integers(kind, shape):
    with pytest.raises(ShapeError, match=r"shape is .*; expected \(rows, columns\), two integers"):
        kind(GOOD[kind], shape=shape)


def test_a_missing_shape_is_reported_after_the_arrays(kind):
    with pytest.raises(ShapeError, match=r"shape is None; expected \(rows, columns\), two integers"):
        kind(GOOD[kind])
    with pytest.raises(InputError, match="from_dense"):
        kind(np.eye(3))


def test_a_shape_may_be_the_second_argument(kind):
    assert kind(GOOD[kind], SHAPES[kind]).shape == SHAPES[kind]


def test_a_shape_is_not_negative(kind):
    with pytest.raises(ShapeError, match=r"shape is \(-1, 3\); both must be at least 0"):
        kind(GOOD[kind], shape=(-1, 3))


def test_integers_of_numpy_make_a_shape(kind):
    matrix = kind(GOOD[kind], shape=np.array(SHAPES[kind]))
    assert matrix.shape == SHAPES[kind] and all(type(extent) is int for extent in matrix.shape)


@pytest.mark.parametrize("arrays", [None, 3, (DATA, INDICES), (DATA, INDICES, INDPTR, DATA)])
def test_three_arrays_make_a_matrix(kind, arrays):
    with pytest.raises(InputError, match=r"expected the tuple \(data, .*from_dense and from_scipy"):
        kind(arrays, shape=(2, 3))


@pytest.mark.parametrize(
    ("arrays", "described"),
    [
        ((DATA, (INDICES, INDICES)), "a tuple of 2"),
        (np.eye(3), "of type ndarray"),
        (jnp.eye(3), "of type ArrayImpl"),
        (scipy.sparse.eye_array(3), "of type .*_array"),
        (None, "of type NoneType"),
        ("abc", "of type str"),
        ({"data": DATA, "indices": INDICES, "indptr": INDICES}, "of type dict"),
        ({1, 2, 3}, "of type set"),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [{}, {"shape": (3, 3)}], ids=["without shape", "with shape"])
def test_other_arguments_are_named(kind, arrays, described, shape):
    with pytest.raises(InputError, match=rf"the first argument is {described}; .*\(data, \(row, col\)\) is COO\("):
        kind(arrays, **shape)


@pytest.mark.parametrize("jax_kind", [sparse.BCOO, sparse.BCSR])
def test_the_converter_of_a_matrix_of_jax_is_named(kind, jax_kind):
    with pytest.raises(InputError, match=rf"{kind.__name__}\.from_{jax_kind.__name__.lower()}"):
        kind(jax_kind.fromdense(jnp.eye(3)))


@pytest.mark.parametrize("wrong", ["text", None, object(), [[1], [1, 2]], [2**70, 0, 1], [None, 0, 1]])
def test_other_types_are_refused(kind, wrong):
    arrays = list(GOOD[kind])
    arrays[1] = wrong
    with pytest.raises(InputError, match=r"of type .*; expected an array"):
        kind(tuple(arrays), shape=SHAPES[kind])


def test_a_list_of_wide_integers_is_refused(kind):
    arrays = list(GOOD[kind])
    arrays[1] = [2**40, 0, 1]
    with pytest.raises(DtypeError, match=r"holds 1099511627776; int32 ranges from.*jax_enable_x64"):
        kind(tuple(arrays), shape=SHAPES[kind])


# Operands


@pytest.mark.parametrize(
    ("left", "right", "hint"),
    [
        ("A", np.ones(2), r"It fits on the other side: x @ A\.$"),
        (np.ones(3), "A", r"It fits on the other side: A @ x\.$"),
        ("A", np.ones((7, 2)), r"It fits on the other side: x @ A\.$"),
        (np.ones((3, 7)), "A", r"It fits on the other side: A @ x\.$"),
        ("A", np.ones((7, 3)), r"It fits transposed: give x\.T\.$"),
        (np.ones((2, 7)), "A", r"It fits transposed: give x\.T\.$"),
        ("A", np.ones(7), r"it must be \(3,\) or \(3, k\)\.$"),
        ("A", np.ones((7, 7)), r"it must be \(3,\) or \(3, k\)\.$"),
        ("A", np.ones(()), r"it must be \(3,\) or \(3, k\)\.$"),
    ],
    ids=str,
)
@pytest.mark.parametrize("operand", [jnp.asarray, BinaryArray], ids=["dense", "binary"])
def test_a_hint_names_the_fitting_side(operand, left, right, hint):
    A = make(CSR)
    left, right = (A if isinstance(side, str) else operand(side) for side in (left, right))
    with pytest.raises(ShapeError, match=hint):
        left @ right
