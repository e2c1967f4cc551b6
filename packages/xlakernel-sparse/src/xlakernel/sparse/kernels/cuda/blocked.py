"""The product of a matrix in column blocks (`operators.products.blocks`) with a vector.

Each entry is read once: its column, of 2 bytes, and its weight. The vector is read from shared memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from ...operators.products.blocks import block_width
from .device import entries
from .device.memory import load
from .device.numbers import in_memory, kind_of
from .device.staging import stage_slice
from .device.walk import TILE, walk_of
from .device.warp import row_at
from .launches import filling, multiprocessors, threads_for


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
        while start < stop:  # once for each block of columns in this share
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
    """Return a function ``f(data, indices, indptr, x)`` that multiplies a matrix in column blocks by a dense vector.

    Args:
      outs: the result, ``(rows,)``.
      shape: rows and columns of the matrix.
      homogeneous: if True, all entries have the weight ``data[0]``; else ``data`` is in the order of the blocks.
    """
    (out,) = outs
    kind, struct = kind_of(out.dtype), in_memory(out)
    (rows, columns), threads = shape, threads_for(kind)

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        if not indices.size or not out.size:
            return jnp.zeros(out.shape, out.dtype)
        width = block_width(columns, (indptr.size - 1) // rows)
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
