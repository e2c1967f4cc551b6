"""The transpose of a compressed matrix times a dense matrix or a matrix of events."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .device.columns import group_of, tiles_of, weights_of
from .device.memory import add4_to, add_to, adds_four, is_aligned, load, load4
from .device.numbers import in_memory, kind_of
from .device.terms import counts, term
from .device.tiles import LANES, active_tiles_of, empty_list
from .device.walk import TILE
from .device.warp import ALL
from .launches import blocks_of, kept_whole, multiprocessors

_THREADS = 256


class _Columns(NamedTuple):
    """Device functions for the *each* neighbouring columns of an element of *x* and *y* that a thread processes.

    Attributes:
      each: the number of columns.
      read: ``read(x, at)``: the values of the operand.
      active: ``active(values)``: True if a value is active.
      add: ``add(y, at, weight, values)``: add the terms of an entry to the output.
    """

    each: int
    read: Callable[..., Any]
    active: Callable[..., Any]
    add: Callable[..., Any]


def _one_column(operand: str, kind: type) -> _Columns:
    of, is_active = term(operand, kind), counts(operand)

    @cuda.jit(device=True, forceinline=True)
    def add(y: Any, at: Any, weight: Any, value: Any) -> None:
        add_to(y, at, of(weight, value))

    return _Columns(1, load, is_active, add)


def _four_columns(operand: str, kind: type) -> _Columns:
    of, is_active = term(operand, kind), counts(operand)

    @cuda.jit(device=True, forceinline=True)
    def read(x: Any, at: Any) -> Any:
        return load4(x, at) if is_aligned(x) else (load(x, at), load(x, at + 1), load(x, at + 2), load(x, at + 3))

    @cuda.jit(device=True, forceinline=True)
    def active(values: Any) -> Any:
        return is_active(values[0]) or is_active(values[1]) or is_active(values[2]) or is_active(values[3])

    @cuda.jit(device=True, forceinline=True)
    def add(y: Any, at: Any, weight: Any, values: Any) -> None:
        a, b, c, d = of(weight, values[0]), of(weight, values[1]), of(weight, values[2]), of(weight, values[3])
        if adds_four(y):
            add4_to(y, at, (a, b, c, d))
        else:
            add_to(y, at, a)
            add_to(y, at + 1, b)
            add_to(y, at + 2, c)
            add_to(y, at + 3, d)

    return _Columns(4, read, active, add)


@functools.cache
def _push(operand: str, kind: type, homogeneous: bool, group: int, wide: bool) -> Any:
    """Return ``push(data, indices, x, first, last, row, y)``, a device function for all threads of a warp."""
    each, read, is_active, add = (_four_columns if wide else _one_column)(operand, kind)
    weight_at, weight_from = weights_of(kind, homogeneous=homogeneous)
    entries = 32 // group

    @cuda.jit(device=True, forceinline=True)
    def push(data: Any, indices: Any, x: Any, first: Any, last: Any, row: Any, y: Any) -> None:
        columns = np.int64(y.shape[1])
        mine = cuda.laneid // group
        for tile in range(cuda.blockIdx.y * group * each, columns, cuda.gridDim.y * group * each):
            column = tile + cuda.laneid % group * each
            value = read(x, row * columns + min(column, columns - each))
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
                            add(y, at, its, value)

    return push


@functools.cache
def _kernel(operand: str, kind: type, homogeneous: bool, group: int, wide: bool) -> Any:
    push, is_active = _push(operand, kind, homogeneous, group, wide), counts(operand)

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
    wide = columns % 4 == 0 and out.dtype == jnp.float32
    threads = columns // 4 if wide else columns  # for all columns of an entry
    kernel = _kernel(operand, kind_of(out.dtype), homogeneous, group_of(threads), wide)

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        places = x.shape[0] + indices.size
        share = max(16, min(4 * TILE, blocks_of(places, multiprocessors() * 64)))
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=(blocks_of(places, share * _THREADS // LANES), tiles_of(threads)),
            block=_THREADS,
            shared_mem=kept_whole(),
            output_init=0,
        )
        # For a dense matrix all rows are active, and the kernel does not read the mask.
        active = x if operand == "dense" else (x != 0).any(axis=1)
        return run(data, indices, indptr, x, active, share=share).astype(out.dtype)

    return multiply
