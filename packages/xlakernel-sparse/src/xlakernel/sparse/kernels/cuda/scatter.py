"""The transpose of a compressed matrix times a vector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.memory import load
from .device.numbers import in_memory, kind_of
from .device.push import push_of
from .device.terms import counts
from .device.tiles import LANES, active_tiles_of, empty_list
from .launches import blocks_of, kept_whole, multiprocessors, places_of
from .tally import tally_launch

_THREADS = 512
_BLOCKS = 2  # on a multiprocessor, for numbers of 32 bits
_SHARES = _THREADS // LANES
_LEAST = 64  # places of a share, at least; see `places_of`


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool) -> Any:
    push, is_active = push_of(operand, kind, homogeneous=homogeneous), counts(operand)

    @cuda.jit(device=True, forceinline=True)
    def active(x: Any, row: Any) -> Any:
        return is_active(load(x, row))

    @cuda.jit(device=True, forceinline=True)
    def push_tile(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, x, y = to
        push(data, indices, first, last, (load(x, row), y))

    visit = active_tiles_of(active, push_tile)

    @cuda.jit(launch_bounds=(_THREADS, _BLOCKS if np.dtype(kind).itemsize <= 4 else 1))
    def scatter_vector(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        rows = np.int64(x.size)
        to = (data, indices, x, y)
        visit(indptr, x, rows, rows + indices.size, share, cuda.gridDim.x, cuda.blockIdx.x, empty_list(), to)

    return scatter_vector


def scatter_vector(out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the matrix's transpose by a vector."""

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        tally = tally_launch(out, operand, indices.size, homogeneous)
        if tally:
            return tally(data, indices, indptr, x)
        blocks = min(_BLOCKS * multiprocessors(), blocks_of(x.size + indices.size, _LEAST * _SHARES))
        run = numba_cuda_kernel(
            _kernel(operand, kind_of(out.dtype), homogeneous),
            in_memory(out),
            grid=blocks,
            block=_THREADS,
            shared_mem=kept_whole(),
            output_init=0,
        )
        share = places_of(x.size, indices.size, blocks * _SHARES)
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply
