"""Conversion of dense arrays, of matrices of SciPy's and of `jax.experimental.sparse`, and between the formats."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO, BCSR
from numpy.testing import assert_array_equal

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import COO, CSC, CSR

pytestmark = pytest.mark.usefixtures("plain_jax")

KINDS = (CSR, CSC, COO)
TO = {CSR: "tocsr", CSC: "tocsc", COO: "tocoo"}
SCIPY = {CSR: "csr", CSC: "csc", COO: "coo"}


def convert(matrix, kind):
    converted = getattr(matrix, TO[kind])()
    assert type(converted) is kind and converted.shape == matrix.shape and converted.dtype == matrix.dtype
    return converted


def ascends_within_lines(matrix):
    """Return True if places ascend in each row of a CSR and each column of a CSC."""
    indices, indptr = map(np.asarray, matrix.structure)
    return all((np.diff(indices[start:end]) >= 0).all() for start, end in pairwise(indptr))


# Between the formats


@settings(max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("target", KINDS, ids=TO.get)
def test_formats_convert_into_each_other(kind, target, build, dense_of, entries, data):
    found = data.draw(entries)
    with use_backend("jax"):
        converted = convert(build(kind, found), target)
        assert_array_equal(converted.todense(), dense_of(found))
        assert converted.nnz == 10  # no entry is added or lost: duplicates and zeros are entries
        assert_array_equal(convert(converted, kind).todense(), dense_of(found))
        assert COO in (kind, target) or target is kind or ascends_within_lines(converted)
        equal = convert(build(kind, found, equal=2), target)
        assert equal.homogeneous
        assert_array_equal(equal.todense(), dense_of([(i, j, 2) for i, j, _ in found]))


@pytest.mark.parametrize("target", KINDS, ids=TO.get)
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_matrices_without_entries_convert(kind, target, build, shape):
    assert_array_equal(convert(build(kind, [], shape, room=0), target).todense(), np.zeros(shape))
    assert_array_equal(convert(build(kind, [], shape, room=0, equal=1.0), target).todense(), np.zeros(shape))
    padded = kind.from_dense(np.zeros(shape, np.float32), nnz=3)
    assert_array_equal(convert(padded, target).todense(), np.zeros(shape))


def test_to_its_own_format_it_is_itself(matrix):
    assert getattr(matrix, TO[type(matrix)])() is matrix


@pytest.mark.parametrize("target", KINDS, ids=TO.get)
def test_formats_convert_inside_of_jit(matrix, dense, target):
    converted = jax.jit(lambda matrix: convert(matrix, target))(matrix)
    assert_array_equal(converted.todense(), dense)


@pytest.mark.parametrize("target", KINDS, ids=TO.get)
def test_gradients_pass_through_a_conversion(matrix, dense, target):
    def loss(data):
        return (convert(matrix.with_data(data), target).todense() ** 2).sum()

    expected = jax.grad(lambda data: (matrix.with_data(data).todense() ** 2).sum())(matrix.data)
    assert_array_equal(jax.grad(loss)(matrix.data), expected)
    assert_array_equal(jax.jit(jax.grad(loss))(matrix.data), expected)


@pytest.mark.parametrize("target", KINDS, ids=TO.get)
def test_matrices_are_converted_in_batches(matrix, dense, target):
    weights = jnp.stack([matrix.data, 2 * matrix.data])
    found = jax.vmap(lambda data: convert(matrix.with_data(data), target).todense())(weights)
    assert_array_equal(found, np.stack([dense, 2 * dense]))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("target", KINDS, ids=TO.get)
def test_indices_of_64_bits_stay_so(kind, build, odd, dense, target):
    converted = convert(build(kind, odd, index="int64"), target)
    assert [array.dtype for array in converted.structure] == [jnp.int64] * 2
    assert_array_equal(converted.todense(), dense)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint32", "complex64"])
def test_other_dtypes_convert(kind, build, odd, dense, dtype):
    matrix = build(kind, [(i, j, abs(weight)) for i, j, weight in odd], dtype=dtype)
    for target in KINDS:
        assert_array_equal(convert(matrix, target).todense().real.astype("float32"), abs(dense))


# Dense arrays


@given(values=st.lists(st.sampled_from([0, 0, 1, -2]), min_size=20, max_size=20))
def test_dense_and_back(kind, values):
    dense = np.array(values, np.float32).reshape(5, 4)
    with use_backend("jax"):
        matrix = kind.from_dense(dense, nnz=20)
        assert_array_equal(matrix.todense(), dense)
        assert int(np.count_nonzero(matrix.todense())) == np.count_nonzero(values)


def test_what_is_not_zero_is_an_entry(kind):
    dense = np.array([[0, np.nan, -0.0], [np.inf, 0, 1e-30]], np.float32)
    matrix = kind.from_dense(dense)
    assert matrix.nnz == 3  # NaN, inf and the smallest number, but not -0.0
    assert_array_equal(matrix.todense(), dense)
    assert matrix.structure[0].dtype == matrix.structure[1].dtype == jnp.int32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint32", "complex64"])
def test_dense_arrays_keep_their_dtype(kind, dense, dtype):
    given = jnp.asarray(abs(dense), dtype)
    matrix = kind.from_dense(given)
    assert matrix.dtype == given.dtype
    assert_array_equal(matrix.todense(), given)


def test_lists_are_dense(kind):
    assert_array_equal(kind.from_dense([[0, 1], [2, 0]]).todense(), [[0, 1], [2, 0]])


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_dense_without_entries(kind, shape):
    matrix = kind.from_dense(np.zeros(shape, np.float32))
    assert (matrix.nnz, matrix.shape) == (0, shape)
    assert_array_equal(matrix.todense(), np.zeros(shape))


def test_room_for_more_is_padding(kind, dense):
    matrix = kind.from_dense(dense, nnz=np.int64(12))
    assert matrix.nnz == 12
    assert_array_equal(matrix.todense(), dense)
    assert matrix.to_scipy().nnz == np.count_nonzero(dense)


def test_dense_in_jit_needs_a_number_of_entries(kind, dense):
    def convert(dense, nnz):
        return kind.from_dense(dense, nnz=nnz).todense()

    convert = jax.jit(convert, static_argnums=1)
    entries = np.count_nonzero(dense)
    for nnz in (entries, entries + 3):
        assert_array_equal(convert(dense, nnz), dense)
    with pytest.raises(ArgumentError, match=r"from_dense: dense is traced.*give nnz"):
        convert(dense, None)


def test_too_little_room_in_jit_is_seen_as_nan(kind, dense):
    entries = np.count_nonzero(dense)
    matrix = jax.jit(lambda dense: kind.from_dense(dense, nnz=entries - 1))(dense)
    assert np.isnan(matrix.data).all()
    assert np.isnan(matrix.todense()).sum() == entries - 1
    with pytest.raises(ArgumentError, match=r"dense is traced, of dtype float32, and nnz is 0"):
        jax.jit(lambda dense: kind.from_dense(dense, nnz=0))(dense)
    assert jax.jit(lambda dense: kind.from_dense(dense, nnz=0))(dense[:0]).nnz == 0


def test_no_nan_is_made_where_there_is_room(kind, dense):
    def weights(dense):
        return kind.from_dense(dense, nnz=12).data

    with jax.debug_nans(True):
        jax.vjp(weights, dense)
        assert jax.vmap(weights)(dense[None]).shape == (1, 12)


def test_traced_integers_are_refused(kind):
    with pytest.raises(ArgumentError, match=r"dense is traced, of dtype int32, and nnz is 2.*real or complex numbers"):
        jax.jit(lambda dense: kind.from_dense(dense, nnz=2))(jnp.eye(2, dtype=jnp.int32))


def test_too_little_room_is_refused_where_it_can_be_seen(kind, dense):
    with pytest.raises(ShapeError, match="from_dense: nnz is 2, but 5 elements are not zero"):
        kind.from_dense(dense, nnz=2)


@pytest.mark.parametrize("nnz", [-1, 2.0, "4", True])
def test_room_is_a_number_of_entries(kind, dense, nnz):
    with pytest.raises(ArgumentError, match=r"nnz is .* expected a number of entries"):
        kind.from_dense(dense, nnz=nnz)


def test_gradients_pass_to_dense_and_from_it(kind, dense):
    gradient = jax.grad(lambda dense: (kind.from_dense(dense, nnz=9).todense() ** 2).sum())(jnp.asarray(dense))
    assert_array_equal(gradient, 2 * dense)


@pytest.mark.parametrize("dense", [np.ones(3, "float32"), np.ones((1, 2, 3), "float32"), 1.0])
def test_dense_of_other_ranks_is_refused(kind, dense):
    with pytest.raises(ShapeError, match=r"from_dense: dense has the shape .*two dimensions"):
        kind.from_dense(dense)


def test_dense_bools_are_refused(kind):
    with pytest.raises(DtypeError, match="from_dense: dense is of dtype bool"):
        kind.from_dense(np.eye(2, dtype=bool))


# SciPy


@pytest.mark.parametrize("container", ["array", "matrix"])
@pytest.mark.parametrize("form", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
def test_scipy_in_all_formats(kind, dense, form, container):
    given = getattr(scipy.sparse, f"{form}_{container}")(dense)
    matrix = kind.from_scipy(given)
    assert type(matrix) is kind and matrix.dtype == jnp.float32
    assert_array_equal(matrix.todense(), dense)


@settings(max_examples=8)
@given(data=st.data())
def test_scipy_and_back(kind, build, dense_of, entries, data):
    found = data.draw(entries)
    with use_backend("jax"):
        theirs = build(kind, found).to_scipy()
        assert theirs.format == SCIPY[kind] and isinstance(theirs, scipy.sparse.sparray)
        assert theirs.nnz == len(found)  # without padding
        assert_array_equal(theirs.toarray(), dense_of(found))
        equal = build(kind, found, equal=2).to_scipy()
        assert_array_equal(equal.toarray(), dense_of([(i, j, 2) for i, j, _ in found]))
    theirs.sum_duplicates()  # in place, so it must be SciPy's own
    theirs.data *= 2
    assert_array_equal(theirs.toarray(), 2 * dense_of(found))


def test_scipy_may_not_change_ours(matrix, dense):
    theirs = matrix.to_scipy()
    theirs.data[:] = 99
    if theirs.format != "coo":
        theirs.indices[:] = 0
    assert_array_equal(matrix.todense(), dense)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scipy_knows_no_half_precision(kind, build, odd, dense, dtype):
    theirs = build(kind, odd, dtype=dtype).to_scipy()
    assert theirs.dtype == np.float32
    assert_array_equal(theirs.tocsr().tocsc().toarray(), dense)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "complex64"])
def test_scipy_keeps_other_dtypes(kind, build, odd, dense, dtype):
    theirs = build(kind, [(i, j, abs(weight)) for i, j, weight in odd], dtype=dtype).to_scipy()
    assert theirs.dtype == dtype
    again = kind.from_scipy(theirs)
    assert again.dtype == jnp.dtype(dtype)
    assert_array_equal(again.todense(), abs(dense))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_scipy_without_entries(kind, shape):
    theirs = kind.from_scipy(scipy.sparse.csr_array(shape, dtype=np.float32)).to_scipy()
    assert theirs.shape == shape and theirs.nnz == 0


@pytest.mark.usefixtures("x64")
def test_scipy_in_double_precision(kind, dense):
    theirs = scipy.sparse.csr_array(dense.astype(np.float64) / 3)
    theirs.indices, theirs.indptr = theirs.indices.astype(np.int64), theirs.indptr.astype(np.int64)
    matrix = kind.from_scipy(theirs)
    assert matrix.dtype == jnp.float64
    assert_array_equal(matrix.to_scipy().toarray(), theirs.toarray())


def test_only_scipy_comes_by_from_scipy(kind, dense):
    with pytest.raises(InputError, match=r"from_scipy: got ndarray.*from_dense"):
        kind.from_scipy(dense)
    with pytest.raises(ShapeError, match=r"from_scipy: the array has the shape \(3,\)"):
        kind.from_scipy(scipy.sparse.coo_array(np.ones(3)))
    with pytest.raises(DtypeError, match=r"data is of dtype bool.*astype\('float32'\)"):
        kind.from_scipy(scipy.sparse.csr_array(np.eye(2, dtype=bool)))


def test_scipy_outside_of_jit_only(matrix):
    with pytest.raises(StructureError, match="to_scipy: the matrix is traced"):
        jax.jit(lambda matrix: matrix.to_scipy().nnz)(matrix)


# jax.experimental.sparse


def test_bcoo_and_back(matrix, dense):
    bcoo = matrix.to_bcoo()
    assert isinstance(bcoo, BCOO) and bcoo.nse == 10
    assert_array_equal(bcoo.todense(), dense)
    again = type(matrix).from_bcoo(bcoo)
    assert type(again) is type(matrix)
    assert_array_equal(again.todense(), dense)


def test_bcsr_and_back(matrix, dense):
    bcsr = matrix.to_bcsr()
    assert isinstance(bcsr, BCSR)
    assert_array_equal(bcsr.todense(), dense)
    again = type(matrix).from_bcsr(bcsr)
    assert type(again) is type(matrix)
    assert_array_equal(again.todense(), dense)


def test_one_weight_becomes_many(kind, build, odd, dense_of):
    expected = dense_of([(i, j, 2.0) for i, j, _ in odd])
    matrix = build(kind, odd, equal=2.0)
    assert_array_equal(matrix.to_bcoo().todense(), expected)
    assert_array_equal(matrix.to_bcsr().todense(), expected)


def test_padding_of_bcoo_and_bcsr(kind, dense):
    """JAX marks padding by indices out of range, in BCSR behind the end of the last row."""
    assert_array_equal(kind.from_bcoo(BCOO.fromdense(dense, nse=9)).todense(), dense)
    assert_array_equal(kind.from_bcsr(BCSR.fromdense(dense, nse=9)).todense(), dense)


def test_duplicates_of_bcoo_add_up(kind):
    bcoo = BCOO((jnp.array([1.0, 2.0, 4.0]), jnp.array([[0, 1], [0, 1], [1, 0]])), shape=(2, 2))
    assert_array_equal(kind.from_bcoo(bcoo).todense(), [[0, 3], [4, 0]])


def test_bcoo_and_bcsr_are_converted_inside_of_jit(matrix, dense):
    kind = type(matrix)
    assert_array_equal(jax.jit(lambda matrix: kind.from_bcoo(matrix.to_bcoo()).todense())(matrix), dense)
    assert_array_equal(jax.jit(lambda matrix: kind.from_bcsr(matrix.to_bcsr()).todense())(matrix), dense)


def test_other_types_are_not_bcoo_or_bcsr(kind, dense):
    bcoo, bcsr = BCOO.fromdense(dense), BCSR.fromdense(dense)
    with pytest.raises(InputError, match=r"from_bcoo: got BCSR; expected a jax.experimental.sparse.BCOO"):
        kind.from_bcoo(bcsr)
    with pytest.raises(InputError, match=r"from_bcsr: got BCOO; expected a jax.experimental.sparse.BCSR"):
        kind.from_bcsr(bcoo)


def test_batch_and_dense_dimensions_are_refused(kind):
    batch = BCOO.fromdense(jnp.ones((2, 3, 4)), n_batch=1)
    with pytest.raises(ShapeError, match=r"1 batch and 0 dense dimensions; expected a matrix without either"):
        kind.from_bcoo(batch)
    with pytest.raises(ShapeError, match=r"0 batch and 1 dense dimensions"):
        kind.from_bcoo(BCOO.fromdense(jnp.ones((2, 3)), n_dense=1))
    with pytest.raises(ShapeError, match=r"1 batch and 0 dense dimensions"):
        kind.from_bcsr(BCSR.from_bcoo(batch))
