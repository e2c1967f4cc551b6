"""The layout of a compressed matrix whose product with a vector reads that vector from a GPU's shared memory.

The columns are split into blocks so narrow that a block's part of the vector fits into the shared memory of a
multiprocessor; the entries are sorted by column block, and then as they were. Within a block, 16 bits say which column
an entry is in.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from ..arguments import check_room
from ..entries import rows_of_entries

#: Bytes of shared memory for a part of the vector: what a block of threads can have on the GPUs that have most (compute
#: capability 9.0) but for 1 KiB. A GPU that has less multiplies without the layout.
SHARED_BYTES = 226 * 1024
_LOCAL = 1 << 16  # what 16 bits tell apart


class Blocks(NamedTuple):
    """The structure of a matrix, its entries sorted by column block.

    Attributes:
      indices: uint16 ``(nnz,)``, the columns, counted from the first one of the block.
      indptr: ``(blocks * rows + 1,)``, where the rows of each block begin, block after block.
      permutation: ``(nnz,)``, where an entry was before; its weight is ``data[permutation]``.
    """

    indices: jax.Array
    indptr: jax.Array
    permutation: jax.Array


def block_width(columns: int, blocks: int) -> int:
    """Return how many columns each of so many blocks has, a multiple of four."""
    return max(4, math.ceil(columns / blocks / 4) * 4)


def block_count(columns: int, dtype: Any, shared_bytes: int = SHARED_BYTES) -> int:
    """Return how few blocks columns must be split into for vectors that are summed in *dtype*."""
    most = min(_LOCAL, shared_bytes // bytes_of(dtype) // 4 * 4)
    return max(1, math.ceil(columns / most))


def bytes_of(dtype: Any) -> int:
    """Return how many bytes a sum in *dtype* takes on a GPU; those of integers take 8."""
    dtype = jnp.dtype(dtype)
    return 8 if dtype.kind in "iu" else dtype.itemsize


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def make_blocks(indices: jax.Array, indptr: jax.Array, *, shape: tuple[int, int], dtype: Any) -> Blocks:
    """Sort the entries of a compressed matrix by column block, for products that are summed in *dtype*.

    Columns may be in any order within a row; padding stays behind the entries.

    Args:
      indices: ``(nnz,)``, the columns.
      indptr: ``(rows + 1,)``.
      shape: rows and columns.
      dtype: in which products are summed; float32 for weights of half precision.
    """
    rows, columns = shape
    blocks = block_count(columns, dtype)
    width = block_width(columns, blocks)
    places = jnp.arange(indices.size, dtype=indptr.dtype)
    row = rows_of_entries(indptr, indices.size)
    segments = blocks * rows
    check_room("the sorting of entries by column blocks", "rows of all blocks", "int64", segments)
    wide = jnp.int32 if segments < np.iinfo(np.int32).max else jnp.int64
    segment = (indices // width).astype(wide) * rows + row.astype(wide)
    segment = jnp.where(places < indptr[-1], segment, segments)
    segment, permutation = jax.lax.sort((segment, places), num_keys=1, is_stable=True)
    if export.is_symbolic_dim(indices.size):  # then a search does not know how many steps it takes
        begin = jnp.cumsum(jnp.zeros(segments + 1, indptr.dtype).at[segment + 1].add(1, mode="drop"))
    else:
        begin = jnp.searchsorted(segment, jnp.arange(segments + 1, dtype=wide)).astype(indptr.dtype)
    local = jnp.where(places < indptr[-1], indices[permutation] % width, 0).astype(jnp.uint16)
    return Blocks(local, begin, permutation)
