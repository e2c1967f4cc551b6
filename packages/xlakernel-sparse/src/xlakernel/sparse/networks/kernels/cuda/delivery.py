"""Parts of a step in which a block of threads reads the spikes of all blocks, and lays their synapses end to end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import load_stamped
from ....kernels.cuda.device.warp import ALL

#: The most threads of a block.
THREADS = 1024


class Form(NamedTuple):
    """The numbers that a kernel computes with.

    Those of a `Layout`; *slots* are the words of a record, a power of two up to 32, and *every* the steps between
    recorded states, or 0.
    """

    blocks: int
    rows: int
    width: int
    target_bits: int
    row_bits: int
    slots: int
    every: int


@cuda.jit(device=True, forceinline=True)
def inclusive_sums(value: Any, sums: Any) -> Any:
    """Return the sum of *value* over the threads up to this one, and over all; *sums* are 32 shared integers."""
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    for offset in (1, 2, 4, 8, 16):
        before = cuda.shfl_up_sync(ALL, value, offset)
        if lane >= offset:
            value += before
    if lane == 31:
        sums[np.uint64(warp)] = value
    cuda.syncthreads()
    # Each warp adds up the sums of all warps for itself, which saves a barrier.
    total = sums[np.uint64(lane)] if lane < cuda.blockDim.x >> 5 else 0
    for offset in (1, 2, 4, 8, 16):
        before = cuda.shfl_up_sync(ALL, total, offset)
        if lane >= offset:
            total += before
    earlier = cuda.shfl_sync(ALL, total, max(warp - 1, 0))
    if warp > 0:
        value += earlier
    return value, cuda.shfl_sync(ALL, total, 31)


@cuda.jit(device=True, forceinline=True)
def read_record(form, records, word, stamp):
    """Return a word of the records and the number of spikes of its record, after all words of the warp are written."""
    thread = cuda.threadIdx.x
    slot = word & (form.slots - 1)
    value, count = np.int32(0), np.int32(0)
    waiting = True
    while waiting:
        found = stamp
        if word < form.blocks * form.slots:
            found, value = load_stamped(records, word)
        # The first word of a record is the number of its spikes, and is written last.
        first_lane = thread & 31 & ~(form.slots - 1)
        count = cuda.shfl_sync(ALL, value, first_lane)
        is_counted = cuda.shfl_sync(ALL, found, first_lane) == stamp
        is_ready = is_counted and (slot > count or found == stamp)
        waiting = cuda.all_sync(ALL, is_ready) == 0
    return value, count


@cuda.jit(device=True, forceinline=True)
def read_list(form, edges, lists, word, place, stamp):
    """Return the spike *place* of the block of a record's word, from the lists."""
    at = edges[word // form.slots] + place
    found, spike = load_stamped(lists, at)
    while found != stamp:
        found, spike = load_stamped(lists, at)
    return spike


@cuda.jit(device=True, forceinline=True)
def segment_of(ends, number):
    """Return the segment in which the entry *number* of a round lies, by bisection."""
    first, last = 0, cuda.blockDim.x - 1
    while first < last:
        middle = (first + last) >> 1
        if ends[np.uint64(middle)] > number:
            last = middle
        else:
            first = middle + 1
    return first
