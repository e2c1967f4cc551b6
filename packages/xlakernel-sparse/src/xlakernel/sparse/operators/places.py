"""Places of the entries of compressed structures: the row of each entry, and entries that share a place."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from xlakernel.core import XLACustomKernel

from .backends import register

_Struct = jax.ShapeDtypeStruct

#: Input ``indptr``. Result: the row of each entry, ``(nnz,)``; for padding, the number of rows.
entry_rows = XLACustomKernel("csr_entry_rows", "The row of each entry of a matrix in compressed rows.")
#: Inputs ``indices, indptr``, static keyword ``shape``. Results: the first entry of each entry's place, ``(nnz,)``, and
#: how many entries are not the first of their place, a 0-d integer.
first_of_places = XLACustomKernel("csr_first_of_places", "The first of the entries at one place of a matrix.")
#: Inputs ``indices, indptr``. Result: how many entries follow one of their row with an index that is not less, 0-d.
descents = XLACustomKernel("csr_descents", "The number of entries of a matrix that are not in ascending order.")
for _op, _generator in ((entry_rows, "entry_rows"), (first_of_places, "first_of_places"), (descents, "descents")):
    register(_op, _generator, plain=("warp",))
    _op.def_tags("sparse", "csr", "structure")


def coordinates_of_rows(indices: jax.Array, indptr: jax.Array, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Return the row and the column of each entry of a matrix in compressed rows; padding is at *shape*."""
    rows, columns = shape
    row: jax.Array
    (row,) = entry_rows(indptr, outs=[_Struct(indices.shape, indptr.dtype)])
    return row, jnp.where(row < rows, indices, columns)


def ascends(indices: jax.Array, indptr: jax.Array) -> jax.Array:
    """Return True if the indices of each row ascend; the places of the entries then differ."""
    count: jax.Array
    (count,) = descents(indices, indptr, outs=[_Struct((), indptr.dtype)])
    return count == 0


def firsts(indices: jax.Array, indptr: jax.Array, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Return the first entry of each entry's place, ``(nnz,)``, and the number of entries that are not first."""
    outs = [_Struct(indices.shape, indptr.dtype), _Struct((), indptr.dtype)]
    first: jax.Array
    repeated: jax.Array
    first, repeated = first_of_places(indices, indptr, outs=outs, shape=shape)
    return first, repeated
