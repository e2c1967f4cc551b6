"""Conversion of dense arrays, and of sparse matrices of SciPy and of `jax.experimental.sparse`."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, ShapeError, StructureError

from ..operators.arguments import as_array, as_integer, check_room, device_of, is_on_cpu
from ..operators.dtypes import check_dtype

Coordinates = tuple[jax.Array, jax.Array, jax.Array]


def coordinates_of_dense(caller: str, dense: Any, nnz: int | None) -> Coordinates:
    """Return the data, row and column of each nonzero element, sorted by rows and followed by padding up to *nnz*."""
    dense = as_array(caller, "dense", dense)
    if dense.ndim != 2:
        raise ShapeError(f"{caller}: dense has the shape {dense.shape}; expected two dimensions.")
    check_dtype(caller, "dense", dense.dtype)
    room = as_integer(nnz)
    if nnz is not None and (room is None or room < 0):
        raise ArgumentError(f"{caller}: nnz is {nnz!r}; expected a number of entries, at least 0, or None.")
    check_room(caller, "numbers of elements", "int64", dense.size)  # JAX computes flat positions
    traced = isinstance(dense, jax.core.Tracer)
    if traced and (room is None or not jnp.issubdtype(dense.dtype, jnp.inexact) or (room == 0 and dense.size)):
        raise ArgumentError(
            f"{caller}: dense is traced, of dtype {dense.dtype}, and nnz is {nnz!r}. The number of its elements that "
            "are not zero is not known yet: give nnz, at least 1, and real or complex numbers, which become NaN if "
            "there are more; or convert outside of jit."
        )
    if is_on_cpu(dense):
        return _coordinates_on_cpu(caller, dense, room)
    found = jnp.count_nonzero(dense)
    room = int(found) if room is None else room
    if not traced:
        _check_enough(caller, int(found), room)
    # In a differentiated program even integers have tangents, which operators would reject.
    row, col = _nonzero_places(jax.lax.stop_gradient(dense), room)
    data = _elements_at(dense, row, col)
    return (_nan_where(found > room, data) if traced else data), row, col


def _check_enough(caller: str, found: int, room: int) -> None:
    if found > room:
        raise ShapeError(f"{caller}: nnz is {room}, but {found} elements are not zero.")


def _coordinates_on_cpu(caller: str, dense: jax.Array, room: int | None) -> Coordinates:
    """Return the data, row and column of each nonzero element, with padding up to *room*; NumPy finds them sooner."""
    known = np.asarray(dense)
    (places,) = np.nonzero((known != 0).reshape(-1))
    room = places.size if room is None else room
    _check_enough(caller, places.size, room)
    data = np.zeros(room, known.dtype)
    row, col = (np.full(room, extent, np.int32) for extent in known.shape)
    data[: places.size] = known.reshape(-1)[places]
    if places.size:
        row[: places.size], col[: places.size] = np.divmod(places, known.shape[1])
    with jax.ensure_compile_time_eval():
        arrays: Coordinates = jax.device_put((data, row, col), device_of(dense))
    return arrays


@functools.partial(jax.jit, static_argnums=1)
def _nonzero_places(dense: jax.Array, nnz: int) -> tuple[jax.Array, jax.Array]:
    """Return the rows and columns of up to *nnz* nonzero elements, sorted by rows and followed by padding."""
    if dense.size:
        row, col = jnp.nonzero(dense, size=nnz, fill_value=dense.shape)
    else:  # for an empty array JAX fills with 0
        row, col = (jnp.full(nnz, extent) for extent in dense.shape)
    return row.astype(jnp.int32), col.astype(jnp.int32)


@jax.jit
def _elements_at(dense: jax.Array, row: jax.Array, col: jax.Array) -> jax.Array:
    """Return the elements at these places; 0 where they are out of range."""
    if not dense.size:  # JAX cannot gather from an empty array
        return jnp.zeros(row.shape, dense.dtype)
    return dense.at[row, col].get(mode="fill", fill_value=0)


@jax.jit  # otherwise `jax.debug_nans`, which checks each operation's result, would report the constant
def _nan_where(condition: jax.Array, data: jax.Array) -> jax.Array:
    return jnp.where(condition, jnp.asarray(jnp.nan, data.dtype), data)


def coordinates_of_bcoo(caller: str, bcoo: Any) -> Coordinates:
    """Return the data, row and column of each entry of a `jax.experimental.sparse.BCOO`."""
    from jax.experimental.sparse import BCOO

    _check_type(caller, bcoo, BCOO)
    check_room(caller, "rows and columns", bcoo.indices.dtype, max(bcoo.shape))
    return bcoo.data, *_rows_and_columns(bcoo.indices, bcoo.shape)


@functools.partial(jax.jit, static_argnums=1)
def _rows_and_columns(indices: jax.Array, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Return the row and the column of each entry; both are those of *shape* if either is out of range."""
    row, col = indices[:, 0], indices[:, 1]
    rows, columns = shape
    outside = (row >= rows) | (col >= columns)
    return jnp.where(outside, rows, row), jnp.where(outside, columns, col)


def rows_of_bcsr(caller: str, bcsr: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the data, indices and indptr of a `jax.experimental.sparse.BCSR`."""
    from jax.experimental.sparse import BCSR

    _check_type(caller, bcsr, BCSR)
    check_room(caller, "numbers of entries", bcsr.indptr.dtype, bcsr.indices.shape[0])
    return bcsr.data, _without_padding(bcsr.indices, bcsr.indptr), bcsr.indptr


@jax.jit
def _without_padding(indices: jax.Array, indptr: jax.Array) -> jax.Array:
    """Return the indices, with 0 for padding; in JAX's format, the indices of padding are out of range."""
    return jnp.where(jnp.arange(indices.shape[0]) < indptr[-1], indices, 0)


def bcoo_of(matrix: Any) -> Any:
    """Return a matrix as a `jax.experimental.sparse.BCOO`."""
    from jax.experimental.sparse import BCOO

    indices = jnp.stack(matrix.coordinates(), axis=1)
    return BCOO((jnp.broadcast_to(matrix._weights, matrix.nnz), indices), shape=matrix.shape)


def bcsr_of(matrix: Any) -> Any:
    """Return a `CSR` as a `jax.experimental.sparse.BCSR`."""
    from jax.experimental.sparse import BCSR

    columns = matrix.coordinates()[1].astype(matrix.indices.dtype)  # out of range for padding
    return BCSR((jnp.broadcast_to(matrix._weights, matrix.nnz), columns, matrix.indptr), shape=matrix.shape)


def _check_type(caller: str, matrix: Any, expected: Any) -> None:
    name = expected.__name__
    if not isinstance(matrix, expected):
        raise InputError(f"{caller}: got {type(matrix).__name__}; expected a jax.experimental.sparse.{name}.")
    if matrix.ndim != 2 or matrix.n_batch or matrix.n_dense:
        raise ShapeError(
            f"{caller}: the {name} has the shape {matrix.shape} with {matrix.n_batch} batch and {matrix.n_dense} dense "
            "dimensions; expected a matrix without either. Batches are converted with jax.vmap."
        )


def is_scipy_sparse(matrix: Any) -> bool:
    """Return True for a SciPy sparse matrix or array, without importing SciPy."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(matrix))


def scipy_matrix(caller: str, matrix: Any, kind: str) -> Any:
    """Return a SciPy sparse matrix, of any format, in the format *kind*."""
    import scipy.sparse

    if not scipy.sparse.issparse(matrix):
        raise InputError(
            f"{caller}: got {type(matrix).__name__}; expected a SciPy sparse matrix or array. A dense one is "
            "converted by from_dense, one of this package by A.tocsr(), tocsc() or tocoo()."
        )
    if matrix.ndim != 2:
        raise ShapeError(f"{caller}: the array has the shape {matrix.shape}; expected two dimensions.")
    return getattr(scipy.sparse, kind)(matrix)


def check_on_host(matrix: Any) -> None:
    """Raise `StructureError` if a matrix is traced."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(matrix)):
        raise StructureError(
            f"{type(matrix).__name__}.to_scipy: the matrix is traced, and SciPy's arrays hold known numbers. Call it "
            "outside of jit, or in the function of a jax.pure_callback."
        )


def host_data(data: jax.Array, entries: int) -> np.ndarray:
    """Return one weight for each entry as a writable NumPy array, of a dtype that SciPy supports."""
    known = np.array(data.astype(jnp.float32) if data.dtype in (jnp.float16, jnp.bfloat16) else data)
    return np.repeat(known, entries) if data.shape == (1,) else known
