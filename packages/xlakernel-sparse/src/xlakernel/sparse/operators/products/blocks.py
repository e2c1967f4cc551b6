"""The layout of a compressed matrix in column blocks, for products that read the vector from a GPU's shared memory.

The columns are split into blocks. The part of the vector for a block fits into the shared memory of a multiprocessor,
and the column of an entry within its block fits into 16 bits. The entries are sorted by column block, and keep their
order within a block.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments import check_room
from ..entries import first_entries, rows_of_entries

#: Bytes of shared memory for a part of the vector: the limit for a block of threads on GPUs of compute capability 9.0,
#: minus 1 KiB. On a GPU with less shared memory, products do not use the layout.
SHARED_BYTES = 226 * 1024
_LOCAL = 1 << 16  # columns that 16 bits can number


def block_width(columns: int, blocks: int) -> int:
    """Return the number of columns in a block if *columns* are split into *blocks*; a multiple of four."""
    return max(4, math.ceil(columns / blocks / 4) * 4)


def block_count(columns: int, dtype: Any, shared_bytes: int = SHARED_BYTES) -> int:
    """Return the smallest number of blocks for vectors that are summed in *dtype*."""
    most = min(_LOCAL, shared_bytes // bytes_of(dtype) // 4 * 4)
    return max(1, math.ceil(columns / most))


def bytes_of(dtype: Any) -> int:
    """Return the bytes of a sum in *dtype* on a GPU; integers are summed in 64 bits."""
    dtype = jnp.dtype(dtype)
    return 8 if dtype.kind in "iu" else dtype.itemsize


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def make_blocks(
    indices: jax.Array, indptr: jax.Array, *, shape: tuple[int, int], dtype: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sort the entries of a compressed matrix by column block, for products that are summed in *dtype*.

    Columns may be in any order within a row; padding stays after the entries.

    Args:
      indices: ``(nnz,)``, the columns.
      indptr: ``(rows + 1,)``.
      shape: rows and columns.
      dtype: the dtype in which products are summed; float32 for weights of half precision.

    Returns:
      Three arrays: the column of each entry, counted from the first column of its block, uint16 ``(nnz,)``; the first
      entry of each row of each block, block after block, ``(blocks * rows + 1,)``; and the former position of each
      entry, ``(nnz,)``.
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
    local = jnp.where(places < indptr[-1], indices[permutation] % width, 0).astype(jnp.uint16)
    return local, first_entries(segment, segments).astype(indptr.dtype), permutation
