"""The transpose of a compressed matrix times many events: each block adds up its own entries in shared memory first.

Additions in shared memory are faster than those in the cache that all multiprocessors share, but what a block has added
up is added to the output in the end, every column of it. So that pays where there are many more active entries than
columns. Each block looks at a sample of the events to know, the same sample, and so comes to the same conclusion.

Where all weights are equal, entries are counted, in 16 bits; otherwise the weights are added. Where that has no room
for all columns, half of the blocks have half of them; see `slices`.
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

from .launches import filling, multiprocessors, places_of, shared_bytes
from .memory import add4_to, add_to, adds_four, load
from .push import push_of, take_tile_of
from .slices import part_of
from .tiles import LANES, LIST_BYTES, active_tiles_of, empty_list

_THREADS = 1024
_SHARES = _THREADS // LANES
#: Active entries for each column, from which on it pays: of equal weights, of others.
MANY = {True: 12, False: 15}
#: What a counter of 16 bits is emptied at, long before it is full: others may count on meanwhile.
_FULL = 1 << 15
_MOST_SLICES = 2


@cuda.jit(device=True, forceinline=True)
def _active(x: Any, row: Any) -> Any:
    return load(x, row)


@cuda.jit(device=True, forceinline=True)
def _sampled(x: Any) -> Any:
    """Return how many of the block's threads find an event active that each looks at, evenly over all of them."""
    row = np.int64(cuda.threadIdx.x) * x.size // _THREADS
    return cuda.syncthreads_count(np.int32(load(x, row)))


def _in_slice(one: Any, *, strays: bool) -> Any:
    """Return a device function of an entry, which calls *one* where the column is of the block's slice.

    Another entry is nothing to the block, or, where there are *strays*, is added to the output.
    """

    @cuda.jit(device=True, forceinline=True)
    def in_slice(column: Any, weight: Any, to: Any) -> None:
        sums, y, low, width = to
        local = np.uint32(column) - np.uint32(low)
        if local < np.uint32(width):
            one(sums, y, local, column, np.float32(weight))
        elif strays:
            add_to(y, column, np.float32(weight))

    return in_slice


@cuda.jit(device=True, forceinline=True)
def _count(counters: Any, y: Any, local: Any, column: Any, weight: Any) -> None:
    shift = np.uint32(16) * (local & np.uint32(1))
    before = cuda.atomic.add(counters, local >> np.uint32(1), np.uint32(1) << shift)
    if (before >> shift) & np.uint32(0xFFFF) == np.uint32(_FULL - 1):
        cuda.atomic.sub(counters, local >> np.uint32(1), np.uint32(_FULL) << shift)
        add_to(y, column, np.float32(_FULL) * weight)


@cuda.jit(device=True, forceinline=True)
def _counted(counters: Any, column: Any) -> Any:
    return np.float32((counters[column >> 1] >> np.uint32(16 * (column & 1))) & np.uint32(0xFFFF))


@cuda.jit(device=True, forceinline=True)
def _add(sums: Any, y: Any, local: Any, column: Any, weight: Any) -> None:
    cuda.atomic.add(sums, local, weight)


@cuda.jit(device=True, forceinline=True)
def _added(sums: Any, column: Any) -> Any:
    return sums[column]


def _flush_of(total: Any) -> Any:
    """Return a device function for all threads of a block that adds what it has added up to the output."""

    @cuda.jit(device=True, forceinline=True)
    def amount(sums: Any, column: Any, weight: Any) -> Any:
        found = total(sums, np.uint32(column))
        return found * weight if found != 0 else np.float32(0)  # the weight may be infinite

    @cuda.jit(device=True, forceinline=True)
    def flush_four(weight: Any, own: Any, column: Any) -> None:
        sums, y, low, _ = own
        a, b = amount(sums, column, weight), amount(sums, column + 1, weight)
        c, d = amount(sums, column + 2, weight), amount(sums, column + 3, weight)
        if a != 0 or b != 0 or c != 0 or d != 0:
            add4_to(y, low + column, (a, b, c, d))

    @cuda.jit(device=True, forceinline=True)
    def flush_one(weight: Any, own: Any, column: Any) -> None:
        sums, y, low, _ = own
        found = amount(sums, column, weight)
        if found != 0:
            add_to(y, low + column, found)

    @cuda.jit(device=True, forceinline=True)
    def flush(weight: Any, own: Any, block: Any, blocks: Any) -> None:
        width = np.int32(own[3])
        each = np.int32(4 if adds_four(own[1]) else 1)
        whole = width // each * each
        ahead = np.int32(own[3] * block // blocks) // each * each  # blocks begin in different places
        thread = np.int32(cuda.threadIdx.x)
        i = each * thread
        while i < whole:
            column = i + ahead if i + ahead < whole else i + ahead - whole
            if each == 4:
                flush_four(weight, own, column)
            else:
                flush_one(weight, own, column)
            i += each * np.int32(_THREADS)
        if whole + thread < width:
            flush_one(weight, own, whole + thread)

    return flush


@functools.cache
def _kernel(homogeneous: bool, *, sliced: bool) -> Any:
    push = push_of("binary", np.float32, homogeneous=homogeneous)
    element, one, total = (np.uint32, _count, _counted) if homogeneous else (np.float32, _add, _added)
    tally_part, tally_whole = (
        take_tile_of(_in_slice(one, strays=strays), homogeneous=homogeneous) for strays in (True, False)
    )
    flush = _flush_of(total)

    @cuda.jit(device=True, forceinline=True)
    def push_tile(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, y = to
        push(data, indices, first, last, (True, y))

    @cuda.jit(device=True, forceinline=True)
    def tally_tile(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, _, own = to
        if sliced and row >= 0:
            tally_part(data, indices, first, last, own)
        else:
            tally_whole(data, indices, first, last, own)

    @cuda.jit(device=True, forceinline=True)
    def cut(row: Any, first: Any, last: Any, to: Any) -> Any:
        _, indices, width, (_, _, low, _) = to
        return part_of(indices, row, first, last, width, low == 0)

    visit = active_tiles_of(_active, push_tile)
    visit_tallying = active_tiles_of(_active, tally_tile, cut if sliced else None)

    @cuda.jit(launch_bounds=_THREADS)
    def tally_events(
        data: Any,
        indices: Any,
        indptr: Any,
        x: Any,
        y: Any,
        few: Any,
        pushing: Any,
        tallying: Any,
        slices: Any,
        width: Any,
    ) -> None:
        sums = cuda.shared.array(0, element)
        listed = empty_list()
        rows = np.int64(x.size)
        places = rows + indices.size
        blocks, block = cuda.gridDim.x, cuda.blockIdx.x
        if _sampled(x) < few:
            visit(indptr, x, rows, places, pushing, blocks, block, listed, (data, indices, y))
            return
        thread = np.int32(cuda.threadIdx.x)
        i = thread
        while i < ((width + 1) // 2 if homogeneous else width):
            sums[i] = 0
            i += _THREADS
        low = np.int64(block % slices) * width
        own = (sums, y, low, min(np.int64(width), y.size - low))
        groups = blocks // slices  # of blocks, one for each slice of the columns
        if block < groups * slices:
            to = (data, indices, width, own)
            visit_tallying(indptr, x, rows, places, tallying, groups, block // slices, listed, to)
        cuda.syncthreads()
        flush(np.float32(load(data, 0)) if homogeneous else np.float32(1), own, block, blocks)

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
    slices = math.ceil(columns * each / (shared_bytes() - LIST_BYTES))
    many = MANY[homogeneous] * columns
    if operand != "binary" or out.dtype != jnp.float32 or slices > _MOST_SLICES or entries < many:
        return None
    width = math.ceil(columns / slices / 4) * 4  # a slice begins where `add4_to` may add
    blocks = multiprocessors()

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        run = numba_cuda_kernel(
            _kernel(homogeneous, sliced=slices > 1),
            out,
            grid=blocks,
            block=_THREADS,
            shared_mem=filling(width * each),
            output_init=0,
        )
        pushing, tallying = (places_of(x.size, entries, groups * _SHARES) for groups in (blocks, blocks // slices))
        few = math.ceil(many * _THREADS / entries)
        return run(data, indices, indptr, x, few=few, pushing=pushing, tallying=tallying, slices=slices, width=width)

    return multiply
