"""The transpose of a compressed matrix times a vector: active rows are added to where their columns say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .launches import blocks_of, kept_whole, multiprocessors
from .memory import load
from .numbers import in_memory, kind_of
from .push import push_of
from .shares import ROOM, active_rows_of, share_number
from .tally import tally_launch
from .terms import counts

_THREADS = 256
_WARPS = 96  # on a multiprocessor: more than fit at once, so that what is uneven by chance evens out


@functools.cache
def _rows_of(operand: str, kind: type, homogeneous: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return device functions that add the active rows of a share to a vector in memory; see `active_rows_of`."""
    push, is_active = push_of(operand, kind, homogeneous=homogeneous), counts(operand)

    @cuda.jit(device=True, forceinline=True)
    def active(x: Any, row: Any) -> Any:
        return is_active(load(x, row))

    @cuda.jit(device=True, forceinline=True)
    def push_row(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, x, y = to
        push(data, indices, first, last, load(x, row), y)

    return active_rows_of(active, push_row)


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    visit, finish = _rows_of(operand, kind, homogeneous)

    @cuda.jit(launch_bounds=_THREADS)
    def scatter_vector(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        queue = (
            cuda.shared.array(ROOM, np.int64),
            cuda.shared.array(ROOM, np.int64),
            cuda.shared.array(ROOM, np.int64),
            cuda.shared.array(1, np.int32),
        )
        if cuda.threadIdx.x == 0:
            queue[3][0] = 0
        cuda.syncthreads()
        rows = np.int64(x.size)
        begin = share_number(cuda.gridDim.x, cuda.blockIdx.x) * share
        end = min(begin + share, rows + np.int64(load(indptr, rows)))
        if begin < end:
            visit(indptr, x, rows, begin, end, (data, indices, x, y), queue)
        finish(queue, (data, indices, x, y))

    return scatter_vector


def scatter_vector(out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the matrix's transpose times a vector."""

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        tally = tally_launch(out, operand, indices.size, homogeneous)
        if tally:
            return tally(data, indices, indptr, x)
        places = x.size + indices.size
        share = max(256, blocks_of(places, multiprocessors() * _WARPS))
        run = numba_cuda_kernel(
            _kernel(operand, kind_of(out.dtype), homogeneous),
            in_memory(out),
            grid=blocks_of(places, share * _THREADS // 32),
            block=_THREADS,
            shared_mem=kept_whole(),
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply
