"""A layout of a compressed matrix whose columns are read from shared memory, and its product with a vector.

The columns are split into blocks so narrow that a block's part of the vector fits into the shared memory of a
multiprocessor; the entries are sorted by column block, and then as they were. Within a block, 16 bits say which column
an entry is in: what a product reads of an entry is 2 bytes and its weight, all in one stream, and nothing else from
further away than shared memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from . import entries
from .launches import filling, multiprocessors, threads_for
from .layout import rows_of
from .memory import load
from .numbers import in_memory, kind_of
from .staging import RESERVED, SHARED_BYTES, stage_slice
from .walk import TILE, walk_of
from .warp import row_at

_LOCAL = 1 << 16  # what 16 bits tell apart


class Blocked(NamedTuple):
    """The structure of a matrix, its entries sorted by column block.

    Attributes:
      indices: uint16 ``(nnz,)``, the columns, counted from the first one of the block.
      indptr: ``(blocks * rows + 1,)``, where the rows of each block begin, block after block.
      permutation: ``(nnz,)``, where an entry was before; its weight is ``data[permutation]``.
    """

    indices: jax.Array
    indptr: jax.Array
    permutation: jax.Array


def block_width(columns: int, dtype: Any) -> int:
    """Return how many columns a block has, a multiple of four: as few blocks as shared memory allows, all of a size."""
    most = min(_LOCAL, (SHARED_BYTES - RESERVED) // np.dtype(kind_of(dtype)).itemsize // 4 * 4)
    blocks = max(1, math.ceil(columns / most))
    return max(4, math.ceil(columns / blocks / 4) * 4)


def blocks_in(columns: int, dtype: Any) -> int:
    """Return how many column blocks a matrix has for vectors of *dtype*."""
    return max(1, math.ceil(columns / block_width(columns, dtype)))


def block_layout(indices: jax.Array, indptr: jax.Array, *, shape: tuple[int, int], dtype: Any) -> Blocked:
    """Sort the entries of a compressed matrix by column block, for products with vectors of *dtype*.

    It runs inside ``jax.jit``. Columns may be in any order within a row; padding stays behind the entries.

    Args:
      indices: ``(nnz,)``, the columns.
      indptr: ``(rows + 1,)``.
      shape: rows and columns.
      dtype: in which products are summed; float32 for weights of half precision.
    """
    rows, columns = shape
    width, blocks = block_width(columns, dtype), blocks_in(columns, dtype)
    places = jnp.arange(indices.size, dtype=indptr.dtype)
    row = rows_of(indptr, indices.size)
    segments = blocks * rows
    wide = jnp.int32 if segments < np.iinfo(np.int32).max else jnp.int64
    segment = (indices // width).astype(wide) * rows + row.astype(wide)
    segment = jnp.where(places < indptr[-1], segment, segments)
    segment, permutation = jax.lax.sort((segment, places), num_keys=1, is_stable=True)
    begin = jnp.searchsorted(segment, jnp.arange(segments + 1, dtype=wide)).astype(indptr.dtype)
    local = jnp.where(places < indptr[-1], indices[permutation] % width, 0).astype(jnp.uint16)
    return Blocked(local, begin, permutation)


@functools.cache
def _kernel(kind: type, homogeneous: bool) -> Any:
    threads = threads_for(kind)
    warps = threads // 32
    of_entry = entries.products("dense", kind, entries.from_slice, homogeneous=homogeneous)
    walk = walk_of(of_entry)

    @cuda.jit(launch_bounds=threads)
    def blocked_vector(data: Any, indices: Any, indptr: Any, x: Any, y: Any, width: Any, share: Any) -> None:
        part = cuda.shared.array(0, kind)
        rows = np.int64(y.size)
        segments = np.int64(indptr.size - 1)
        start = np.int64(cuda.blockIdx.x) * share
        stop = min(start + share, np.int64(load(indptr, segments)))
        while start < stop:  # once, or once more for each block of columns that begins in this share
            block = row_at(indptr, segments, start) // rows
            end = min(stop, np.int64(load(indptr, (block + 1) * rows)))
            cuda.syncthreads()
            stage_slice(x, block * width, min(width, x.size - block * width), part)
            cuda.syncthreads()
            base = start // 4 * 4
            each = ((end - base + TILE - 1) // TILE + warps - 1) // warps * TILE
            warp = np.int64(cuda.threadIdx.x // 32)
            first = max(start, base + warp * each)
            last = min(end, base + (warp + 1) * each)
            if first < last:
                walk(data, indices, indptr, segments, part, first, last, y, block * rows)
            start = end

    return blocked_vector


def blocked_product(
    outs: Sequence[jax.ShapeDtypeStruct], *, shape: tuple[int, int], homogeneous: bool
) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the matrix times a dense vector, for what `block_layout` returns.

    Args:
      outs: the result, ``(rows,)``.
      shape: rows and columns of the matrix.
      homogeneous: whether all entries have the weight ``data[0]``; otherwise ``data`` is in the layout's order.
    """
    (out,) = outs
    kind, struct = kind_of(out.dtype), in_memory(out)
    width, threads = block_width(shape[1], out.dtype), threads_for(kind)

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        if not indices.size or not out.size:
            return jnp.zeros(out.shape, out.dtype)
        blocks = min(multiprocessors(), math.ceil(indices.size / (TILE * threads // 32)))
        share = math.ceil(indices.size / blocks / 4) * 4
        run = numba_cuda_kernel(
            _kernel(kind, homogeneous),
            struct,
            grid=blocks,
            block=threads,
            shared_mem=filling(width * np.dtype(kind).itemsize),
            output_init=0,
        )
        return run(data, indices, indptr, x, width=width, share=share).astype(out.dtype)

    return multiply
