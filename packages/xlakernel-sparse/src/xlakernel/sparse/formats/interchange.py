"""Matrices of others: dense arrays, SciPy, and `jax.experimental.sparse`."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, ShapeError

from ..operators.arguments import as_array, check_room
from ..operators.dtypes import check_dtype

Coordinates = tuple[jax.Array, jax.Array, jax.Array]


def coordinates_of_dense(who: str, dense: Any, nnz: int | None) -> Coordinates:
    """Return the data, row and column of each element that is not zero, by rows; padding up to *nnz*."""
    dense = as_array(who, "dense", dense)
    if dense.ndim != 2:
        raise ShapeError(f"{who}: dense has the shape {dense.shape}; expected two dimensions.")
    check_dtype(who, "dense", dense.dtype)
    if nnz is not None and (isinstance(nnz, bool) or not isinstance(nnz, (int, np.integer)) or nnz < 0):
        raise ArgumentError(f"{who}: nnz is {nnz!r}; expected a number of entries, an integer from 0 on, or None.")
    check_room(who, "numbers of elements", "int64", dense.size)  # which JAX counts before it takes them apart
    traced = isinstance(dense, jax.core.Tracer)
    if traced and nnz == 0 and dense.size:
        raise ArgumentError(
            f"{who}: nnz is 0 and dense is traced: without entries nothing could say that some are missing."
        )
    found = jnp.count_nonzero(dense)
    if nnz is None:
        if traced:
            raise ArgumentError(
                f"{who}: dense is traced, so how many elements are not zero is not known yet. Say how many entries to "
                "make room for, with nnz=, or convert outside of jit."
            )
        nnz = int(found)
    elif not traced and int(found) > nnz:
        raise ShapeError(f"{who}: nnz is {nnz}, but {found} elements are not zero.")
    # Of a program with a derivative even the integers have one, which operators would refuse.
    row, col = _nonzero_places(jax.lax.stop_gradient(dense), nnz)
    data = _elements_at(dense, row, col)
    if traced:
        data = _spoil(who, data, found > nnz)
    return data, row, col


@functools.partial(jax.jit, static_argnums=1)
def _nonzero_places(dense: jax.Array, nnz: int) -> tuple[jax.Array, jax.Array]:
    """Return the rows and columns of *nnz* elements that are not zero, by rows, and behind them padding."""
    if dense.size:
        row, col = jnp.nonzero(dense, size=nnz, fill_value=dense.shape)
    else:  # for an empty array JAX fills with 0
        row, col = (jnp.full(nnz, extent) for extent in dense.shape)
    return row.astype(jnp.int32), col.astype(jnp.int32)


@jax.jit
def _elements_at(dense: jax.Array, row: jax.Array, col: jax.Array) -> jax.Array:
    """Return the elements at these places; 0 where they are out of range."""
    if not dense.size:  # JAX gathers nothing
        return jnp.zeros(row.shape, dense.dtype)
    return dense.at[row, col].get(mode="fill", fill_value=0)


def _spoil(who: str, data: jax.Array, condition: jax.Array) -> jax.Array:
    """Return NaN instead of *data* where entries would be missing."""
    if not jnp.issubdtype(data.dtype, jnp.inexact):
        raise ArgumentError(
            f"{who}: dense is traced and of dtype {data.dtype}. Whether all of its elements that are not zero find "
            "room is seen when the program runs, and integers cannot say that they do not, as NaN does. Convert "
            "outside of jit, or cast to real numbers first."
        )
    spoilt: jax.Array = _nan_where(condition, data)
    return spoilt


@jax.jit  # where JAX looks for NaN, that of a constant is none of its concern
def _nan_where(condition: jax.Array, data: jax.Array) -> jax.Array:
    return jnp.where(condition, jnp.asarray(jnp.nan, data.dtype), data)


def coordinates_of_bcoo(who: str, bcoo: Any) -> Coordinates:
    """Return the data, row and column of each entry of a `jax.experimental.sparse.BCOO`."""
    from jax.experimental.sparse import BCOO

    _check_kind(who, bcoo, BCOO)
    check_room(who, "rows and columns", bcoo.indices.dtype, max(bcoo.shape))
    return bcoo.data, *_rows_and_columns(bcoo.indices, bcoo.shape)


@functools.partial(jax.jit, static_argnums=1)
def _rows_and_columns(indices: jax.Array, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Return the row and the column of each entry; those of *shape* where one is out of range."""
    row, col = indices[:, 0], indices[:, 1]
    rows, columns = shape
    outside = (row >= rows) | (col >= columns)
    return jnp.where(outside, rows, row), jnp.where(outside, columns, col)


def rows_of_bcsr(who: str, bcsr: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the data, indices and indptr of a `jax.experimental.sparse.BCSR`."""
    from jax.experimental.sparse import BCSR

    _check_kind(who, bcsr, BCSR)
    check_room(who, "numbers of entries", bcsr.indptr.dtype, bcsr.indices.shape[0])
    return bcsr.data, _without_padding(bcsr.indices, bcsr.indptr), bcsr.indptr


@jax.jit
def _without_padding(indices: jax.Array, indptr: jax.Array) -> jax.Array:
    """Return the indices, where those of padding, which are out of range, are 0."""
    return jnp.where(jnp.arange(indices.shape[0]) < indptr[-1], indices, 0)


def _check_kind(who: str, matrix: Any, kind: Any) -> None:
    if not isinstance(matrix, kind):
        raise InputError(f"{who}: got {type(matrix).__name__}; expected a jax.experimental.sparse.{kind.__name__}.")
    if matrix.ndim != 2 or matrix.n_batch or matrix.n_dense:
        raise ShapeError(
            f"{who}: the {kind.__name__} has the shape {matrix.shape} with {matrix.n_batch} batch and "
            f"{matrix.n_dense} dense dimensions; expected a matrix without either. Batches are made with jax.vmap."
        )


def is_of_scipy(matrix: Any) -> bool:
    """Whether it is a sparse matrix or array of SciPy's, which then has been imported."""
    theirs = sys.modules.get("scipy.sparse")
    return theirs is not None and bool(theirs.issparse(matrix))


def scipy_matrix(who: str, matrix: Any, kind: str) -> Any:
    """Return a matrix of SciPy's, of any format, in the format *kind*."""
    import scipy.sparse

    if not scipy.sparse.issparse(matrix):
        raise InputError(
            f"{who}: got {type(matrix).__name__}; expected a sparse matrix or array of SciPy's. A dense one is "
            "converted by from_dense, one of ours by A.tocsr(), tocsc() or tocoo()."
        )
    if matrix.ndim != 2:
        raise ShapeError(f"{who}: the array has the shape {matrix.shape}; expected two dimensions.")
    return getattr(scipy.sparse, kind)(matrix)


def host_data(data: jax.Array, entries: int) -> np.ndarray:
    """Return weights as a NumPy array with one for each entry, of a dtype that SciPy knows, which may be written to."""
    known = np.array(data.astype(jnp.float32) if data.dtype in (jnp.float16, jnp.bfloat16) else data)
    return np.repeat(known, entries) if data.shape == (1,) else known
