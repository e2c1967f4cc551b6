"""The transpose of a compressed matrix times many events: each block adds up its own entries in shared memory first.

Additions in shared memory are faster than those in the cache that all multiprocessors share, but what a block has added
up is added to the output in the end, every column of it. So that pays where there are many more active entries than
columns. Each block looks at a sample of the events to know, the same sample, and so comes to the same conclusion.

Where all weights are equal, entries are counted, in 16 bits; otherwise the weights are added, and half of the blocks
have half of the columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numba import cuda

from xlakernel.cuda import numba_cuda_kernel

from ...operators.blocks import SHARED_BYTES
from .launches import filling, multiprocessors
from .memory import add_to, is_aligned, load, load4_if
from .push import columns_of, push_of
from .shares import ROOM, active_rows_of, share_number
from .walk import TILE

_THREADS = 1024
_WARPS = _THREADS // 32
_SAMPLES = 8 * _THREADS
#: Shares of the work that a warp takes one after the other: of equal weights, of others.
_SHARES = {True: 1, False: 2}
#: Active entries for each column, from which on it pays: of equal weights, of others.
MANY = {True: 40, False: 70}
#: What a counter of 16 bits is emptied at, long before it is full: others may count on meanwhile.
_FULL = 1 << 15
_MOST_SLICES = 2
_QUEUE = 3 * 8 * ROOM + 64  # bytes of shared memory for what is set aside, and for the sample


@cuda.jit(device=True, forceinline=True)
def _active(x: Any, row: Any) -> Any:
    return load(x, row)


@cuda.jit(device=True, forceinline=True)
def _sampled(x: Any, hits: Any) -> Any:
    """Return how many of a sample of the events are active, 32 beside each other at each of 256 places."""
    apart = max(1, x.size // (_SAMPLES // 32))
    if cuda.threadIdx.x == 0:
        hits[0] = 0
    cuda.syncthreads()
    found = np.int32(0)
    for i in range(_SAMPLES // _THREADS):
        row = (i * _WARPS + cuda.threadIdx.x // 32) * apart + cuda.laneid
        found += np.int32(load(x, min(row, x.size - 1)))
    cuda.atomic.add(hits, 0, found)
    cuda.syncthreads()
    return hits[0]


@cuda.jit(device=True, forceinline=True)
def _count(counters: Any, column: Any, weight: Any, y: Any, low: Any) -> None:
    shift = np.uint32(16) * (column & np.uint32(1))
    before = cuda.atomic.add(counters, column >> np.uint32(1), np.uint32(1) << shift)
    if (before >> shift) & np.uint32(0xFFFF) == np.uint32(_FULL - 1):
        cuda.atomic.sub(counters, column >> np.uint32(1), np.uint32(_FULL) << shift)
        add_to(y, low + column, np.float32(_FULL) * weight)


@cuda.jit(device=True, forceinline=True)
def _counted(counters: Any, column: Any) -> Any:
    return np.float32((counters[column >> 1] >> np.uint32(16 * (column & 1))) & np.uint32(0xFFFF))


@cuda.jit(device=True, forceinline=True)
def _add(sums: Any, column: Any, weight: Any, y: Any, low: Any) -> None:
    cuda.atomic.add(sums, column, weight)


@cuda.jit(device=True, forceinline=True)
def _added(sums: Any, column: Any) -> Any:
    return sums[column]


@functools.cache
def _row_tally(homogeneous: bool) -> Any:
    """Return ``tally(row, first, last, to)`` for all threads of a warp, which adds entries up in shared memory."""
    add = _count if homogeneous else _add

    @cuda.jit(device=True, forceinline=True)
    def weights_of(data: Any, k: Any, first: Any, last: Any) -> Any:
        if homogeneous:
            w = load(data, 0)
            return w, w, w, w
        return load4_if(k < last and k + 4 > first, data, k)

    @cuda.jit(device=True, forceinline=True)
    def one(column: Any, weight: Any, is_there: Any, place: Any) -> None:
        sums, y, low, width = place
        local = np.uint32(column) - np.uint32(low)
        if is_there and local < np.uint32(width):
            add(sums, local, np.float32(weight), y, low)

    @cuda.jit(device=True, forceinline=True)
    def four(weights: Any, columns: Any, k: Any, first: Any, last: Any, place: Any) -> None:
        one(columns[0], weights[0], first <= k and k < last, place)
        one(columns[1], weights[1], first <= k + 1 and k + 1 < last, place)
        one(columns[2], weights[2], first <= k + 2 and k + 2 < last, place)
        one(columns[3], weights[3], first <= k + 3 and k + 3 < last, place)

    @cuda.jit(device=True, forceinline=True)
    def tally(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, place = to
        k = first // 4 * 4 + 4 * np.int64(cuda.laneid)
        if is_aligned(indices) and (homogeneous or is_aligned(data)) and (last + 3) // 4 * 4 <= indices.size:
            for _ in range(first // 4 * 4, last, TILE):
                c0 = columns_of(indices, k, first, last)
                c1 = columns_of(indices, k + 128, first, last)
                c2 = columns_of(indices, k + 256, first, last)
                c3 = columns_of(indices, k + 384, first, last)
                w0 = weights_of(data, k, first, last)
                w1 = weights_of(data, k + 128, first, last)
                w2 = weights_of(data, k + 256, first, last)
                w3 = weights_of(data, k + 384, first, last)
                four(w0, c0, k, first, last, place)
                four(w1, c1, k + 128, first, last, place)
                four(w2, c2, k + 256, first, last, place)
                four(w3, c3, k + 384, first, last, place)
                k += TILE
        else:
            for i in range(first + cuda.laneid, last, 32):
                one(load(indices, i), load(data, 0 if homogeneous else i), True, place)

    return tally


@functools.cache
def _kernel(homogeneous: bool) -> Any:
    push = push_of("binary", np.float32, homogeneous=homogeneous)
    shares = _SHARES[homogeneous]
    element, total = (np.uint32, _counted) if homogeneous else (np.float32, _added)

    @cuda.jit(device=True, forceinline=True)
    def push_row(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, y = to
        push(data, indices, first, last, True, y)

    visit, finish = active_rows_of(_active, push_row)
    visit_tallying, finish_tallying = active_rows_of(_active, _row_tally(homogeneous))

    @cuda.jit(launch_bounds=_THREADS)
    def tally_events(data: Any, indices: Any, indptr: Any, x: Any, y: Any, slices: Any, width: Any, many: Any) -> None:
        hits = cuda.shared.array(1, np.int32)
        sums = cuda.shared.array(0, element)
        queue = (
            cuda.shared.array(ROOM, np.int64),
            cuda.shared.array(ROOM, np.int64),
            cuda.shared.array(ROOM, np.int64),
            cuda.shared.array(1, np.int32),
        )
        if cuda.threadIdx.x == 0:
            queue[3][0] = 0
        rows = np.int64(x.size)
        places = rows + np.int64(load(indptr, rows))
        if _sampled(x, hits) < many:
            share = (places + cuda.gridsize(1) // 32 - 1) // (cuda.gridsize(1) // 32)
            begin = share_number(cuda.gridDim.x, cuda.blockIdx.x) * share
            if begin < places:
                visit(indptr, x, rows, begin, min(begin + share, places), (data, indices, y), queue)
            finish(queue, (data, indices, y))
            return
        words = (width + 1) // 2 if homogeneous else width
        for i in range(cuda.threadIdx.x, words, cuda.blockDim.x):
            sums[i] = 0
        cuda.syncthreads()
        low = np.int64(cuda.blockIdx.x % slices) * width
        here = min(np.int64(width), y.size - low)
        blocks = cuda.gridDim.x // slices  # for each slice of the columns
        warps = np.int64(blocks * _WARPS)
        share = (places + warps * shares - 1) // (warps * shares)
        to = (data, indices, (sums, y, low, here))
        if cuda.blockIdx.x < blocks * slices:
            number = share_number(blocks, cuda.blockIdx.x // slices)
            for begin in range(number * share, places, warps * share):
                visit_tallying(indptr, x, rows, begin, min(begin + share, places), to, queue)
        finish_tallying(queue, to)
        cuda.syncthreads()
        ahead = here * np.int64(cuda.blockIdx.x) // cuda.gridDim.x  # no two blocks add to one place at a time
        for i in range(cuda.threadIdx.x, here, cuda.blockDim.x):
            column = i + ahead if i + ahead < here else i + ahead - here
            found = total(sums, column)
            if found != 0:
                add_to(y, low + column, found * np.float32(load(data, 0)) if homogeneous else found)

    return tally_events


def tally_launch(out: jax.ShapeDtypeStruct, operand: str, entries: int, homogeneous: bool) -> Callable[..., Any] | None:
    """Return ``f(data, indices, indptr, x)``, the transpose times binary events; None: it is not for these.

    Args:
      out: the result.
      operand: ``"binary"``, or one that this is not for.
      entries: how many the matrix has.
      homogeneous: whether all entries have the weight ``data[0]``.
    """
    columns, each = out.size, 2 if homogeneous else 4
    slices = math.ceil(columns * each / (SHARED_BYTES - _QUEUE))
    many = MANY[homogeneous] * columns
    if operand != "binary" or out.dtype != jnp.float32 or slices > _MOST_SLICES or entries < many:
        return None
    width = math.ceil(columns / slices / 2) * 2

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        run = numba_cuda_kernel(
            _kernel(homogeneous),
            out,
            grid=multiprocessors(),
            block=_THREADS,
            shared_mem=filling(width * each),
            output_init=0,
        )
        return run(data, indices, indptr, x, slices=slices, width=width, many=math.ceil(many * _SAMPLES / entries))

    return multiply
