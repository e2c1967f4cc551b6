"""The transpose of a compressed matrix times a dense matrix or a matrix of events."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.columns import group_of, tiles_of, weights_of
from .device.memory import add_to, load
from .device.numbers import in_memory, kind_of
from .device.terms import counts, term
from .device.tiles import LANES, active_tiles_of, empty_list
from .device.walk import TILE
from .device.warp import ALL
from .launches import blocks_of, kept_whole, multiprocessors

_THREADS = 256


@functools.cache
def _push(operand: str, kind: type, homogeneous: bool, group: int) -> Any:
    """Return ``push(data, indices, x, first, last, row, y)``, a device function for all threads of a warp."""
    of, is_active = term(operand, kind), counts(operand)
    weight_at, weight_from = weights_of(kind, homogeneous=homogeneous)
    entries = 32 // group

    @cuda.jit(device=True, forceinline=True)
    def push(data: Any, indices: Any, x: Any, first: Any, last: Any, row: Any, y: Any) -> None:
        columns = np.int64(y.shape[1])
        mine = cuda.laneid // group
        for tile in range(cuda.blockIdx.y * group, columns, cuda.gridDim.y * group):
            column = tile + cuda.laneid % group
            value = load(x, row * columns + min(column, columns - 1))
            here = column < columns and is_active(value)
            if cuda.any_sync(ALL, here):
                for start in range(first, last, 32):
                    place = min(start + cuda.laneid, last - 1)
                    to = np.int64(load(indices, place))
                    weight = weight_at(data, place)
                    for i in range((min(last - start, 32) + entries - 1) // entries):
                        lane = i * entries + mine
                        at = cuda.shfl_sync(ALL, to, lane) * columns + column
                        its = weight_from(weight, lane)
                        if here and start + lane < last:
                            add_to(y, at, of(its, value))

    return push


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool, group: int) -> Any:
    push, is_active = _push(operand, kind, homogeneous, group), counts(operand)

    @cuda.jit(device=True, forceinline=True)
    def push_tile(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, x, y = to
        push(data, indices, x, first, last, row, y)

    @cuda.jit(device=True, forceinline=True)
    def active(mask: Any, row: Any) -> Any:
        return is_active(load(mask, row))

    visit = active_tiles_of(active, push_tile)

    @cuda.jit(launch_bounds=_THREADS)
    def scatter_matrix(data: Any, indices: Any, indptr: Any, x: Any, active: Any, y: Any, share: Any) -> None:
        rows = np.int64(x.shape[0])
        to = (data, indices, x, y)
        visit(indptr, active, rows, rows + indices.size, share, cuda.gridDim.x, cuda.blockIdx.x, empty_list(), to)

    return scatter_matrix


def scatter_matrix(out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the transpose by a matrix."""
    columns = out.shape[1]
    kernel = _kernel(operand, kind_of(out.dtype), homogeneous, group_of(columns))

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        places = x.shape[0] + indices.size
        share = max(16, min(TILE, blocks_of(places, multiprocessors() * 64 * 32 // LANES)))
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=(blocks_of(places, share * _THREADS // LANES), tiles_of(columns)),
            block=_THREADS,
            shared_mem=kept_whole(),
            output_init=0,
        )
        # For a dense matrix all rows are active, and the kernel does not read the mask.
        active = x if operand == "dense" else (x != 0).any(axis=1)
        return run(data, indices, indptr, x, active, share=share).astype(out.dtype)

    return multiply
