"""The transpose of a compressed matrix times a dense matrix, or one of events."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from .active import GROUPS, groups_of, list_active
from .columns import group_of, tiles_of, weights_of
from .launches import blocks_of, multiprocessors, share_of
from .memory import add_to, load
from .numbers import in_memory, kind_of
from .pieces import piece_in, sum_groups
from .terms import counts, term
from .walk import TILE
from .warp import ALL, next_row, row_at

_THREADS = 256
_EVENT_THREADS = 1024


@functools.cache
def _push(operand: str, kind: type, homogeneous: bool, group: int) -> Callable[..., Any]:
    """Return ``push(data, indices, x, first, last, row, y)`` for all threads of a warp."""
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
def _kernel(kind: type, homogeneous: bool, group: int) -> Any:
    push = _push("dense", kind, homogeneous, group)

    @cuda.jit(launch_bounds=_THREADS)
    def scatter_matrix(data: Any, indices: Any, indptr: Any, x: Any, y: Any, share: Any) -> None:
        rows = np.int64(x.shape[0])
        start = np.int64(cuda.grid(1) // 32) * share
        stop = min(start + share, np.int64(load(indptr, rows)))
        if start < stop:
            row = row_at(indptr, rows, start)
            end = np.int64(load(indptr, row + 1))
            while start < stop:
                last = min(end, stop)
                push(data, indices, x, start, last, row, y)
                start = last
                if start < stop:
                    row, end = next_row(indptr, rows, row, start)

    return scatter_matrix


@functools.cache
def _events_kernel(operand: str, kind: type, homogeneous: bool, group: int) -> Any:
    push = _push(operand, kind, homogeneous, group)

    @cuda.jit(launch_bounds=_EVENT_THREADS)
    def scatter_event_matrix(
        data: Any, indices: Any, indptr: Any, x: Any, rows: Any, pieces: Any, lengths: Any, totals: Any, _: Any,
        y: Any, each: Any,
    ) -> None:  # fmt: skip
        upto = cuda.shared.array(GROUPS, np.int64)
        sum_groups(totals, upto)
        every = upto[totals.size - 1]
        for number in range(cuda.grid(1) // 32, every, cuda.gridsize(1) // 32):
            row, first, last = piece_in(rows, pieces, lengths, indptr, upto, totals.size, each, number)
            push(data, indices, x, first, last, row, y)

    return scatter_event_matrix


def scatter_matrix(out: jax.ShapeDtypeStruct, *, homogeneous: bool) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the matrix's transpose times a dense matrix."""
    columns = out.shape[1]
    kernel = _kernel(kind_of(out.dtype), homogeneous, group_of(columns))

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        share = share_of(indices.size, multiprocessors() * 64, most=TILE)
        run = numba_cuda_kernel(
            kernel,
            in_memory(out),
            grid=(blocks_of(indices.size, share * _THREADS // 32), tiles_of(columns)),
            block=_THREADS,
            output_init=0,
        )
        return run(data, indices, indptr, x, share=share).astype(out.dtype)

    return multiply


def scatter_event_matrix(out: jax.ShapeDtypeStruct, *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)``, the transpose times events, for what the rows with any of them cost."""
    columns, struct = out.shape[1], in_memory(out)
    kernel = _events_kernel(operand, kind_of(out.dtype), homogeneous, group_of(columns))

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        lists = list_active(struct, listed=False)((x != 0).any(axis=1), indptr, indptr)
        run = numba_cuda_kernel(
            kernel,
            struct,
            grid=(multiprocessors() * 2, tiles_of(columns)),
            block=_EVENT_THREADS,
            input_output_aliases={4 + len(lists) - 1: 0},
        )
        each = groups_of(x.shape[0])[1]
        return run(data, indices, indptr, x, *lists, each=each).astype(out.dtype)

    return multiply
