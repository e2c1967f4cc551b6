"""A compressed matrix times a dense matrix or a matrix of events."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.columns import group_of, tiles_of, weights_of
from .device.memory import add_to, is_aligned, load, load4
from .device.numbers import in_memory, kind_of
from .device.terms import term
from .device.walk import TILE
from .device.warp import ALL, next_row, row_at, warp_sum
from .launches import blocks_of, kept_whole, multiprocessors, share_of

_THREADS = 256


class _Columns(NamedTuple):
    """Device functions on tuples: one value for each of the *each* neighbouring columns that a thread computes."""

    each: int
    nothing: Callable[..., Any]
    read: Callable[..., Any]
    add: Callable[..., Any]
    total: Callable[..., Any]
    write: Callable[..., Any]


def _one_column(operand: str, kind: type, group: int) -> _Columns:
    of, total_of, zero = term(operand, kind), warp_sum(kind, group), kind(0)

    @cuda.jit(device=True, forceinline=True)
    def nothing() -> Any:
        return (zero,)

    @cuda.jit(device=True, forceinline=True)
    def read(x: Any, at: Any, aligned: Any) -> Any:
        return (load(x, at),)

    @cuda.jit(device=True, forceinline=True)
    def add(found: Any, weight: Any, values: Any) -> Any:
        return (kind(found[0] + of(weight, values[0])),)

    @cuda.jit(device=True, forceinline=True)
    def total(found: Any) -> Any:
        return (total_of(found[0]),)

    @cuda.jit(device=True, forceinline=True)
    def write(y: Any, at: Any, found: Any) -> None:
        add_to(y, at, found[0])

    return _Columns(1, nothing, read, add, total, write)


def _four_columns(operand: str, kind: type, group: int) -> _Columns:
    of, total_of, zero = term(operand, kind), warp_sum(kind, group), kind(0)

    @cuda.jit(device=True, forceinline=True)
    def nothing() -> Any:
        return zero, zero, zero, zero

    @cuda.jit(device=True, forceinline=True)
    def read(x: Any, at: Any, aligned: Any) -> Any:
        return load4(x, at) if aligned else (load(x, at), load(x, at + 1), load(x, at + 2), load(x, at + 3))

    @cuda.jit(device=True, forceinline=True)
    def add(found: Any, weight: Any, values: Any) -> Any:
        return (
            kind(found[0] + of(weight, values[0])),
            kind(found[1] + of(weight, values[1])),
            kind(found[2] + of(weight, values[2])),
            kind(found[3] + of(weight, values[3])),
        )

    @cuda.jit(device=True, forceinline=True)
    def total(found: Any) -> Any:
        return total_of(found[0]), total_of(found[1]), total_of(found[2]), total_of(found[3])

    @cuda.jit(device=True, forceinline=True)
    def write(y: Any, at: Any, found: Any) -> None:
        add_to(y, at, found[0])
        add_to(y, at + 1, found[1])
        add_to(y, at + 2, found[2])
        add_to(y, at + 3, found[3])

    return _Columns(4, nothing, read, add, total, write)


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool, group: int, wide: bool) -> Any:
    each, nothing, read, add, total, write = (_four_columns if wide else _one_column)(operand, kind, group)
    weight_at, weight_from = weights_of(kind, homogeneous=homogeneous)
    entries = 32 // group

    @cuda.jit(device=True, forceinline=True)
    def row_sum(data: Any, indices: Any, x: Any, first: Any, last: Any, column: Any, columns: Any, aligned: Any) -> Any:
        mine = cuda.laneid // group
        found = nothing()
        while first + 32 <= last:
            row = np.int64(load(indices, first + cuda.laneid))
            weight = weight_at(data, first + cuda.laneid)
            for i in range(group):
                lane = i * entries + mine
                at = cuda.shfl_sync(ALL, row, lane) * columns + column
                found = add(found, weight_from(weight, lane), read(x, at, aligned))
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
                    found = add(found, its, read(x, at, aligned))
        return total(found)

    @cuda.jit(launch_bounds=_THREADS)
    def gather_matrix(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        rows, columns = np.int64(y.shape[0]), np.int64(y.shape[1])
        aligned = is_aligned(x)
        begin = np.int64(cuda.grid(1) // 32) * share
        stop = min(begin + share, np.int64(load(indptr, rows)))
        if begin >= stop:
            return
        first_row = row_at(indptr, rows, begin)
        for tile in range(cuda.blockIdx.y * group * each, columns, cuda.gridDim.y * group * each):
            column = tile + cuda.laneid % group * each
            start, row = begin, first_row
            end = np.int64(load(indptr, row + 1))
            while start < stop:
                last = min(end, stop)
                found = row_sum(data, indices, x, start, last, min(column, columns - each), columns, aligned)
                if cuda.laneid < group and column < columns:
                    write(y, row * columns + column, found)
                start = last
                if start < stop:
                    row, end = next_row(indptr, rows, row, start)

    return gather_matrix


def gather_matrix(out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the matrix by a dense matrix."""
    columns = out.shape[1]
    wide = columns % 4 == 0
    threads = columns // 4 if wide else columns  # for all columns of an entry's row of x
    kernel = _kernel(operand, kind_of(out.dtype), homogeneous, group_of(threads), wide)

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        share = share_of(indices.size, multiprocessors() * 64, most=4 * TILE)
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=(blocks_of(indices.size, share * _THREADS // 32), tiles_of(threads)),
            block=_THREADS,
            shared_mem=kept_whole(),
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply
