"""Extremes, counts and places of elements, with SciPy's names and meanings."""

import gc
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError, StructureError
from xlakernel.sparse import CSR
from xlakernel.sparse.formats.duplicates import _KNOWN, Known, known_of

pytestmark = pytest.mark.usefixtures("plain_jax")


@settings(max_examples=6)
@given(data=st.data(), axis=st.sampled_from([None, 0, -1]), explicit=st.booleans())
def test_extremes_and_counts_are_those_of_scipy(kind, build, entries, data, axis, explicit):
    found = data.draw(entries)
    matrix = build(kind, found)
    known = matrix.to_scipy()
    known.sum_duplicates()
    for name in ("max", "min", "nanmax", "nanmin"):
        expected = getattr(known, name)(axis) if not explicit else _of_stored(known, name[-3:], axis)
        expected = expected.toarray().reshape(-1) if scipy.sparse.issparse(expected) else expected
        assert_array_equal(getattr(matrix, name)(axis, explicit=explicit), expected)
    assert_array_equal(matrix.count_nonzero(axis), np.count_nonzero(known.toarray(), axis))
    assert_array_equal(matrix.trace(), known.toarray().trace())
    assert set(zip(*map(np.asarray, matrix.nonzero()), strict=True)) == set(
        zip(*known.toarray().nonzero(), strict=True)
    )


def _of_stored(known, name, axis):
    """Return the extremes of the stored elements; SciPy counts zeros that are not stored in before 1.15."""
    known = known.tocoo()
    if axis is None:
        return getattr(known.data, name)() if known.nnz else 0
    lines = (known.coords if hasattr(known, "coords") else (known.row, known.col))[1 - axis % 2]
    values = [known.data[lines == i] for i in range(known.shape[1 - axis % 2])]
    return np.array([getattr(each, name)() if each.size else 0 for each in values])


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "nanmax", "count_nonzero", "sum", "mean"])
def test_reductions_without_promotion_of_dtypes(kind, name):
    dense = np.array([[3, -1, 0], [0, 2, 0]], np.float32)
    reduced = getattr(kind.from_dense(dense), name)
    for axis in (None, 0, 1):
        expected = reduced(axis)
        with jax.numpy_dtype_promotion("strict"):
            assert_array_equal(reduced(axis), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16", "float64"])
def test_dtypes_of_extremes(dtype, x64):
    dense = np.array([[3, 1], [2, 0]]).astype(dtype)
    matrix = CSR.from_dense(dense)
    for axis in (None, 1):
        assert matrix.max(axis).dtype == matrix.min(axis).dtype == dtype
        assert_array_equal(matrix.max(axis), dense.max(axis))
        assert_array_equal(matrix.min(axis), dense.min(axis))


def test_extremes_are_nan_where_an_element_is(kind):
    matrix = kind.from_dense(np.array([[1, np.nan], [2, 0]], np.float32))
    assert jnp.isnan(matrix.max()) and jnp.isnan(matrix.min())
    assert_array_equal(matrix.max(axis=1), [np.nan, 2])


def test_extremes_of_equal_weights_and_under_transformations(kind, build, odd):
    matrix = build(kind, odd, equal=-2.0)
    assert_array_equal(matrix.min(axis=0), matrix.toarray().min(0))
    assert_array_equal(jax.jit(lambda a: a.max(axis=1))(matrix), matrix.toarray().max(1))
    weights = jnp.stack([jnp.arange(10.0), -jnp.arange(10.0)])
    matrix = build(kind, odd)
    found = jax.vmap(lambda w: matrix.with_data(w).max(axis=0))(weights)
    assert_array_equal(found, np.stack([matrix.with_data(w).toarray().max(0) for w in weights]))
    gradient = jax.grad(lambda w: matrix.with_data(w).max())(matrix.data.at[7:].set(jnp.nan))
    assert_allclose(gradient.sum(), 2)  # the element has two entries


def test_extremes_that_do_not_exist(kind):
    matrix = kind.from_dense(np.zeros((0, 3), np.float32))
    assert matrix.max(axis=1).shape == (0,)
    for axis in (None, 0):
        with pytest.raises(ShapeError, match=r"max: a matrix of shape \(0, 3\) has no elements there"):
            matrix.max(axis)
    with pytest.raises(ShapeError, match="min: axis is 2"):
        matrix.min(2)
    with pytest.raises(DtypeError, match="max: the matrix is of dtype complex64"):
        matrix.astype("complex64").max(1)


def test_places_of_elements_under_jit(kind, build, odd):
    matrix = build(kind, odd)
    row, column = jax.jit(lambda a: a.nonzero(size=8))(matrix)
    expected = matrix.toarray().nonzero()
    assert sorted(zip(row.tolist(), column.tolist(), strict=True)) == [
        *zip(*map(np.ndarray.tolist, map(np.asarray, expected)), strict=True),
        *[(5, 4)] * (8 - expected[0].size),
    ]
    with pytest.raises(StructureError, match=r"nonzero: the matrix is traced.*A\.nonzero\(size=A\.nnz\)"):
        jax.jit(lambda a: a.nonzero())(matrix)
    for size in (1.5, -1):
        with pytest.raises(ArgumentError, match=rf"nonzero: size is {size}; expected an integer of at least 0"):
            matrix.nonzero(size=size)
    for known, traced in zip(matrix.nonzero(), jax.jit(lambda: matrix.nonzero())(), strict=True):
        assert_array_equal(known, traced)  # a constant of the program
    empty = kind.from_dense(np.zeros((3, 2), np.float32))
    assert [along.shape for along in empty.nonzero()] == [(0,), (0,)]
    assert [along.tolist() for along in empty.nonzero(size=2)] == [[3, 3], [2, 2]]


def test_a_single_zero_among_many_places():
    """float32 does not tell the numbers of places and of stored elements apart."""
    rows = columns = 4097
    indptr = np.append(np.arange(rows) * columns, rows * columns - 1)
    indices = np.tile(np.arange(columns, dtype=np.int32), rows)[:-1]
    matrix = CSR((jnp.ones(1), indices, indptr.astype(np.int32)), (rows, columns))
    assert matrix.min() == 0 and (-matrix).max() == 0


@settings(max_examples=6)
@given(data=st.data(), axis=st.sampled_from([None, 0, 1]), has_nan=st.booleans())
def test_positions_of_extremes(kind, build, entries, data, axis, has_nan):
    """Those of dense matrices, the first of equal elements; with duplicates, stored zeros and padding."""
    matrix = build(kind, [(i, j, np.nan if has_nan and w == 3 else w) for i, j, w in data.draw(entries)])
    dense = np.asarray(matrix.toarray())
    for name in ("argmax", "argmin"):
        found = getattr(matrix, name)(axis)
        assert found.dtype == jnp.argmax(dense).dtype
        assert_array_equal(found, getattr(dense, name)(axis))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_stored_extremes(kind, name):
    dense = np.array([[0, 2, 0, 2], [0, -1, 0, -1], [0, 0, 0, 0]], np.float32)
    matrix = kind.from_dense(dense)
    assert_array_equal(getattr(matrix, name)(1, explicit=True), [1, 1, 0])
    assert_array_equal(jax.jit(lambda a: getattr(a, name)(1, explicit=True))(matrix), [1, 1, 0])
    assert getattr(matrix, name)(explicit=True) == (1 if name == "argmax" else 5)
    full = kind.from_dense(np.array([[-1, -2], [0, 3]], np.float32))
    assert_array_equal(full.argmax(1), [0, 1])
    assert_array_equal(full.argmin(0), [0, 0])


def test_positions_of_extremes_under_vmap(kind, build, odd):
    weights = jnp.stack([jnp.arange(10.0), -jnp.arange(10.0)])
    matrix = build(kind, odd)
    found = jax.vmap(lambda w: matrix.with_data(w).argmax(axis=1))(weights)
    assert_array_equal(found, np.stack([matrix.with_data(w).toarray().argmax(1) for w in weights]))


def test_positions_that_cannot_be_numbered():
    wide = CSR((jnp.ones(1), np.zeros(1, np.int32), np.array([0, 1] + [1] * 69_999)), (70_000, 70_000))
    assert_array_equal(wide.argmax(1)[:2], 0)
    with pytest.raises(DtypeError, match="argmax: positions up to 4900000000 do not fit"):
        wide.argmax()


def test_extremes_without_nan(kind):
    matrix = kind.from_dense(np.array([[1, np.nan], [np.nan, np.nan], [-3, 0]], np.float32))
    assert matrix.nanmax() == 1 and matrix.nanmin() == -3
    assert_array_equal(matrix.nanmax(axis=1), [1, np.nan, 0])
    assert_array_equal(matrix.nanmin(axis=1), [1, np.nan, -3])
    assert_array_equal(matrix.nanmax(axis=1, explicit=True), [1, np.nan, -3])
    assert_array_equal(matrix.nanmax(axis=0, explicit=True), [1, np.nan])
    infinite = kind.from_dense(np.array([[-np.inf, -np.inf], [np.nan, 0]], np.float32))
    assert_array_equal(infinite.nanmax(axis=1), [-np.inf, 0])
    assert_array_equal(matrix.astype("int32").nanmax(axis=0), matrix.astype("int32").max(axis=0))


@pytest.mark.parametrize("backend", [None, "jax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64"])
def test_reductions_of_large_matrices(dtype, backend):
    """By kernels of several threads, and with equal elements, whose derivatives are equal."""
    rng = np.random.default_rng(1)
    matrix = CSR.random(jax.random.key(0), (300, 300), per_row=250)
    matrix = matrix.with_data(jnp.asarray(rng.integers(-3, 4, matrix.nnz)).astype(dtype))
    dense = np.asarray(matrix.toarray().astype("complex64" if dtype == "complex64" else "float32"))
    with use_backend(backend) if backend else nullcontext():
        for axis in (None, 0, 1):
            assert_allclose(matrix.sum(axis).astype(dense.dtype), dense.sum(axis), rtol=1e-2, atol=1)
            assert_array_equal(matrix.count_nonzero(axis), np.count_nonzero(dense, axis))
            for name in ("max", "min", "argmax") if dtype != "complex64" else ():
                assert_array_equal(getattr(matrix, name)(axis).astype(dense.dtype), getattr(dense, name)(axis))
        if dtype == "float32":
            of_matrix = jax.grad(lambda w: matrix.with_data(w).max(axis=1).sum())(matrix.data)
            of_dense = jax.grad(lambda x: jnp.max(x, axis=1).sum())(matrix.toarray())
            assert_allclose(matrix.with_data(of_matrix).toarray(), jnp.where(dense != 0, of_dense, 0), rtol=1e-6)


def test_counts_of_prepared_matrices():
    matrix = CSR.from_dense(np.array([[1, -2], [0, 3]], np.float32)).prepare()
    assert_array_equal(matrix.count_nonzero(axis=0), [1, 2])
    assert_array_equal(matrix.count_nonzero(axis=1), [2, 1])


def test_facts_about_a_structure_are_dropped_with_it(kind):
    gc.collect()  # matrices of a test that failed
    before = len(_KNOWN)
    matrix = kind.from_dense(np.eye(3, dtype=np.float32))
    assert known_of(matrix) == Known(distinct=True, whole=True) and len(_KNOWN) == before + 1
    assert known_of(matrix.with_data(2 * matrix.data)) is known_of(matrix)
    assert jax.jit(lambda a, b=matrix: known_of(a) == Known() and known_of(b).whole)(matrix)
    del matrix
    gc.collect()
    assert len(_KNOWN) == before


def test_facts_are_those_of_arrays_that_live():
    """Identities of arrays are used again, and an array may be shared by many matrices."""
    column = jnp.array([1, 1, 0])
    for _ in range(50):
        indptr = jnp.array([0, 2, 3])
        repeated = CSR((jnp.array([1.0, 2.0, 1.0]), column, indptr), (2, 2))
        assert repeated.max() == 3
        del repeated, indptr
        assert CSR((jnp.array([1.0, 2.0, 1.0]), column, jnp.array([0, 1, 3])), (2, 2)).max() == 2
    assert len(_KNOWN[id(column)][1]) <= 2
    identity = id(column)
    del column
    gc.collect()
    assert identity not in _KNOWN


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
def test_sums_and_means_in_a_dtype(axis, dtype, x64):
    dense = np.array([[100, 100, 0], [0, 100, 0], [100, 100, 100]], np.int8)  # sums overflow the dtype
    matrix = CSR.from_dense(dense)
    for method in ("sum", "mean"):
        found = getattr(matrix, method)(axis, dtype=dtype)
        assert found.dtype == dtype
        assert_allclose(found, getattr(jnp, method)(dense, axis, dtype=dtype), rtol=1e-6)
