"""A compressed matrix times a dense matrix, or one of events."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .columns import group_of, tiles_of, weights_of
from .launches import blocks_of, multiprocessors, share_of
from .memory import add_to, load
from .numbers import in_memory, kind_of
from .terms import term
from .walk import TILE
from .warp import ALL, next_row, row_at, warp_sum

_THREADS = 256


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool, group: int) -> Any:
    of = term(operand, kind)
    weight_at, weight_from = weights_of(kind, homogeneous=homogeneous)
    total = warp_sum(kind, group)
    zero, entries = kind(0), 32 // group

    @cuda.jit(device=True, forceinline=True)
    def row_sum(data: Any, indices: Any, x: Any, first: Any, last: Any, column: Any, columns: Any) -> Any:
        mine = cuda.laneid // group
        found = zero
        while first + 32 <= last:
            row = np.int64(load(indices, first + cuda.laneid))
            weight = weight_at(data, first + cuda.laneid)
            for i in range(group):
                lane = i * entries + mine
                at = cuda.shfl_sync(ALL, row, lane) * columns + column
                found = kind(found + of(weight_from(weight, lane), load(x, at)))
            first += 32
        if first < last:
            place = min(first + cuda.laneid, last - 1)
            row = np.int64(load(indices, place))
            weight = weight_at(data, place)
            for i in range((last - first + entries - 1) // entries):
                lane = i * entries + mine
                at = cuda.shfl_sync(ALL, row, lane) * columns + column
                its = weight_from(weight, lane)
                if first + lane < last:
                    found = kind(found + of(its, load(x, at)))
        return total(found)

    @cuda.jit(launch_bounds=_THREADS)
    def gather_matrix(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        rows, columns = np.int64(y.shape[0]), np.int64(y.shape[1])
        begin = np.int64(cuda.grid(1) // 32) * share
        stop = min(begin + share, np.int64(load(indptr, rows)))
        if begin >= stop:
            return
        first_row = row_at(indptr, rows, begin)
        for tile in range(cuda.blockIdx.y * group, columns, cuda.gridDim.y * group):
            column = tile + cuda.laneid % group
            start, row = begin, first_row
            end = np.int64(load(indptr, row + 1))
            while start < stop:
                last = min(end, stop)
                found = row_sum(data, indices, x, start, last, min(column, columns - 1), columns)
                if cuda.laneid < group and column < columns:
                    add_to(y, row * columns + column, found)
                start = last
                if start < stop:
                    row, end = next_row(indptr, rows, row, start)

    return gather_matrix


def gather_matrix(out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the matrix times a matrix of as many columns as the output has."""
    columns = out.shape[1]
    kernel = _kernel(operand, kind_of(out.dtype), homogeneous, group_of(columns))

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        share = share_of(indices.size, multiprocessors() * 64, most=4 * TILE)
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=(blocks_of(indices.size, share * _THREADS // 32), tiles_of(columns)),
            block=_THREADS,
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply
