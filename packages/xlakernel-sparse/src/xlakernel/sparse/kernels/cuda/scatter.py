"""The transpose of a compressed matrix times a dense vector: every entry is added to where its column says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .launches import blocks_of, multiprocessors, share_of
from .memory import load
from .numbers import in_memory, kind_of
from .push import push_of
from .walk import TILE
from .warp import next_row, row_at

_THREADS = 256


@functools.cache
def _kernel(kind: type, homogeneous: bool) -> Any:
    push = push_of("dense", kind, homogeneous=homogeneous)

    @cuda.jit(launch_bounds=_THREADS)
    def scatter_vector(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        rows = np.int64(x.size)
        start = np.int64(cuda.grid(1) // 32) * share
        stop = min(start + share, np.int64(load(indptr, rows)))
        if start < stop:
            row = row_at(indptr, rows, start)
            end = np.int64(load(indptr, row + 1))
            while start < stop:
                last = min(end, stop)
                push(data, indices, start, last, load(x, row), y)
                start = last
                if start < stop:
                    row, end = next_row(indptr, rows, row, start)

    return scatter_vector


def scatter_vector(out: jax.ShapeDtypeStruct, *, homogeneous: bool) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the matrix's transpose times a dense vector."""
    kernel = _kernel(kind_of(out.dtype), homogeneous)

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        share = share_of(indices.size, multiprocessors() * 64, most=4 * TILE)
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=blocks_of(indices.size, share * _THREADS // 32),
            block=_THREADS,
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply
