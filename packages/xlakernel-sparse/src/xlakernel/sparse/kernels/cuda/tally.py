"""The transpose of a compressed matrix times a vector: each block first sums its own entries in shared memory.

Atomic additions in shared memory are faster than those in the L2 cache, but each block must finally add its sums of all
columns to the output. The kernel is therefore faster if there are many more active entries than columns. For a vector
of events, each block estimates the number of active entries from a sample of the events, the same in all blocks.

If all weights are equal, binary events are counted, in 16 bits; otherwise floats are added. If shared memory cannot
hold all columns, each half of the blocks sums one half of the columns, a *slice*; see `slices`.
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

from .device.flush import flush_of
from .device.memory import ADDS_FOUR, add_to, load
from .device.push import push_of, take_tile_of
from .device.slices import part_of
from .device.terms import counts, term, value_at
from .device.tiles import LANES, LIST_BYTES, active_tiles_of, empty_list
from .launches import capability, filling, multiprocessors, places_of, shared_bytes

_THREADS = 1024
_SHARES = _THREADS // LANES
#: The number of active entries per column from which this kernel is faster; the key is True if entries are counted,
#: False if floats are added. The number is doubled on GPUs without atomic additions of four floats.
MANY = {True: 12, False: 15}
#: A 16-bit counter is emptied at this value, well below the maximum: other threads may increment the counter meanwhile.
_FULL = 1 << 15
_MOST_SLICES = 2


def _in_slice(operand: str, one: Any, *, strays: bool) -> Any:
    """Return a device function that calls *one* for an entry if its column is in the block's slice.

    Other entries are ignored, or added to the output if *strays*.
    """
    of = term(operand, np.float32)

    @cuda.jit(device=True, forceinline=True)
    def in_slice(column: Any, weight: Any, to: Any) -> None:
        (sums, y, low, width), value = to
        local = np.uint32(column) - np.uint32(low)
        if local < np.uint32(width):
            one(sums, y, local, column, of(weight, value))
        elif strays:
            add_to(y, column, of(weight, value))

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
def _add(sums: Any, y: Any, local: Any, column: Any, amount: Any) -> None:
    cuda.atomic.add(sums, local, amount)


@cuda.jit(device=True, forceinline=True)
def _added(sums: Any, column: Any) -> Any:
    return sums[column]


@functools.cache
def _kernel(operand: str, homogeneous: bool, *, sliced: bool) -> Any:
    counting = _is_counted(operand, homogeneous)
    push = push_of(operand, np.float32, homogeneous=homogeneous)
    is_active, value = counts(operand), value_at(operand)
    are_events, slices = operand != "dense", 2 if sliced else 1
    element, one, total = (np.uint32, _count, _counted) if counting else (np.float32, _add, _added)
    tally_part, tally_whole = (
        take_tile_of(_in_slice(operand, one, strays=strays), homogeneous=homogeneous) for strays in (True, False)
    )
    flush = flush_of(total, _THREADS)

    @cuda.jit(device=True, forceinline=True)
    def active(x: Any, row: Any) -> Any:
        return is_active(load(x, row))

    @cuda.jit(device=True, forceinline=True)
    def sampled(x: Any) -> Any:
        """Return the number of active events in a sample: one for each thread of the block, at equal distances."""
        return cuda.syncthreads_count(np.int32(active(x, np.int64(cuda.threadIdx.x) * x.size // _THREADS)))

    @cuda.jit(device=True, forceinline=True)
    def push_tile(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, x, y = to
        push(data, indices, first, last, (value(x, row), y))

    @cuda.jit(device=True, forceinline=True)
    def tally_tile(row: Any, first: Any, last: Any, to: Any) -> None:
        data, indices, x, _, own = to
        if not sliced:
            tally_whole(data, indices, first, last, (own, value(x, row)))
        elif row >= 0:
            tally_part(data, indices, first, last, (own, value(x, row)))
        else:
            tally_whole(data, indices, first, last, (own, value(x, ~row)))

    @cuda.jit(device=True, forceinline=True)
    def cut(row: Any, first: Any, last: Any, to: Any) -> Any:
        _, indices, _, width, (_, _, low, _) = to
        return part_of(indices, row, first, last, width, low == 0)

    visit = active_tiles_of(active, push_tile)
    visit_tallying = active_tiles_of(active, tally_tile, cut if sliced else None)

    @cuda.jit(launch_bounds=_THREADS)
    def tally_vector(
        data: Any, indices: Any, indptr: Any, x: Any, y: Any, few: Any, pushing: Any, tallying: Any, width: Any
    ) -> None:
        sums = cuda.shared.array(0, element)
        listed = empty_list()
        rows = np.int64(x.size)
        places = rows + indices.size
        blocks, block = cuda.gridDim.x, cuda.blockIdx.x
        if are_events and sampled(x) < few:
            visit(indptr, x, rows, places, pushing, blocks, block, listed, (data, indices, x, y))
            return
        thread = np.int32(cuda.threadIdx.x)
        i = thread
        while i < ((width + 1) // 2 if counting else width):
            sums[i] = 0
            i += _THREADS
        low = np.int64(block % slices) * width
        own = (sums, y, low, min(np.int64(width), y.size - low))
        groups = blocks // slices  # a group has a block for each slice of the columns
        if block < groups * slices:
            to = (data, indices, x, width, own)
            visit_tallying(indptr, x, rows, places, tallying, groups, block // slices, listed, to)
        cuda.syncthreads()
        flush(np.float32(load(data, 0)) if counting else np.float32(1), own, block, blocks)

    return tally_vector


def _is_counted(operand: str, homogeneous: bool) -> bool:
    return operand == "binary" and homogeneous


def tally_launch(out: jax.ShapeDtypeStruct, operand: str, entries: int, homogeneous: bool) -> Callable[..., Any] | None:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the transpose by a vector.

    Return None if the kernel is slower than that of `scatter`, or not possible.

    Args:
      out: the result; None is returned unless it is of float32.
      operand: the kind of the vector, ``"dense"``, ``"binary"`` or ``"weighted"``.
      entries: the number of entries of the matrix.
      homogeneous: if True, all entries have the weight ``data[0]``.
    """
    counting = _is_counted(operand, homogeneous)
    columns, each = out.size, 2 if counting else 4
    slices = math.ceil(columns * each / (shared_bytes() - LIST_BYTES))
    many = MANY[counting] * columns * (1 if capability() >= ADDS_FOUR else 2)
    if out.dtype != jnp.float32 or slices > _MOST_SLICES or entries < many:
        return None
    width = math.ceil(columns / slices / 4) * 4  # slices are aligned for `add4_to`
    blocks = multiprocessors()

    def multiply(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        run = numba_cuda_kernel(
            _kernel(operand, homogeneous, sliced=slices > 1),
            out,
            grid=blocks,
            block=_THREADS,
            shared_mem=filling(width * each),
            output_init=0,
        )
        pushing, tallying = (places_of(x.size, entries, groups * _SHARES) for groups in (blocks, blocks // slices))
        few = math.ceil(many * _THREADS / entries)
        return run(data, indices, indptr, x, few=few, pushing=pushing, tallying=tallying, width=width)

    return multiply
