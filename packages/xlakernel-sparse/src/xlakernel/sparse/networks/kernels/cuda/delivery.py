"""Parts of a step in which a block of threads reads the spikes of all blocks, and adds their entries to its sums.

An entry is a stored synapse. Spikes are in records and lists of words; each word has a stamp of its step, see `spikes`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import load, load_stamped
from ....kernels.cuda.device.warp import ALL

#: The most threads of a block.
THREADS = 1024


class Form(NamedTuple):
    """The numbers that a kernel computes with.

    The first five are from a `Layout`: *blocks* is the number of segments of a source, and *width* is the stride.
    *slots* is the number of words of a record, a power of two up to 32. *every* is the number of steps between recorded
    states, or 0.
    """

    blocks: int
    rows: int
    width: int
    target_bits: int
    row_bits: int
    slots: int
    every: int


@cuda.jit(device=True, forceinline=True)
def _sums_of_warp(value: Any) -> Any:
    """Return the sum of *value* over the lanes up to this one."""
    lane = cuda.threadIdx.x & 31
    for offset in (1, 2, 4, 8, 16):
        before = cuda.shfl_up_sync(ALL, value, offset)
        if lane >= offset:
            value += before
    return value


@cuda.jit(device=True, forceinline=True)
def _sums_of_block(value: Any, sums: Any) -> Any:
    """Return the sum of *value* over the threads up to this one; *sums* are 32 shared integers."""
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    value = _sums_of_warp(value)
    if lane == 31:
        sums[np.uint64(warp)] = value
    cuda.syncthreads()
    # Each warp adds up the sums of all warps for itself, which saves a barrier.
    total = _sums_of_warp(sums[np.uint64(lane)] if lane < cuda.blockDim.x >> 5 else 0)
    earlier = cuda.shfl_sync(ALL, total, max(warp - 1, 0))
    if warp > 0:
        value += earlier
    return value


@cuda.jit(device=True, forceinline=True)
def _load_word(form, records, word):
    """Return the present stamp and value of a word; zeros if there is no such word."""
    return load_stamped(records, word) if word < form.blocks * form.slots else (np.int32(0), np.int32(0))


@cuda.jit(device=True, forceinline=True)
def _collect(form, cursor, stamp, edges, records, lists, spikes, counter):
    """Append spikes of the step with this *stamp* to the shared list *spikes* until it is full or all are read.

    *cursor* says how far a warp has read. For each thread, it has the thread's word and this word's value, the number
    of the block's spikes, a spike's place among them, whether this spike is not in the list yet, and stamp and value of
    the thread's next word, which is being loaded. Return the next cursor, and whether spikes are left.
    """
    word, value, count, place, is_new, next_stamp, next_value = cursor
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    lane, words = thread & 31, form.blocks * form.slots
    slot = lane & (form.slots - 1)
    while True:
        wanted = cuda.ballot_sync(ALL, is_new)
        if wanted != 0:
            first = np.int32(0)
            if lane == 0:
                first = cuda.atomic.add(counter, 0, cuda.popc(wanted))
            at = cuda.shfl_sync(ALL, first, 0) + cuda.popc(wanted & ((1 << lane) - 1))
            if is_new and at < threads:
                spikes[np.uint64(at)] = value
                is_new = False
            if cuda.any_sync(ALL, is_new):
                return (word, value, count, place, is_new, next_stamp, next_value), True
        place += form.slots - 1
        is_new = slot > 0 and place < count
        if cuda.any_sync(ALL, is_new):
            if is_new:
                at_list = edges[word // form.slots] + place
                found, value = load_stamped(lists, at_list)
                while found != stamp:
                    found, value = load_stamped(lists, at_list)
            continue
        word += threads
        if word - lane >= words:
            return (word, value, np.int32(0), place, False, next_stamp, next_value), False
        found, value = next_stamp, next_value
        next_stamp, next_value = _load_word(form, records, word + threads)
        waiting = True
        while waiting:
            if word >= words:
                found, value = stamp, np.int32(0)
            # The first word of a record is the number of spikes. The warp waits for this word and those of the spikes.
            count = cuda.shfl_sync(ALL, value, lane & ~(form.slots - 1))
            is_counted = cuda.shfl_sync(ALL, found, lane & ~(form.slots - 1)) == stamp
            waiting = cuda.all_sync(ALL, is_counted and (slot > count or found == stamp)) == 0
            if waiting:
                found, value = _load_word(form, records, word)
        place = slot - 1
        is_new = slot > 0 and place < count


@cuda.jit(device=True, forceinline=True)
def first_cursor(form, records):
    """Return the cursor of `collect_round` at the beginning of these records, and start the first loads."""
    thread, none = cuda.threadIdx.x, np.int32(0)
    return thread - cuda.blockDim.x, none, none, none, False, *_load_word(form, records, thread)


@cuda.jit(device=True, forceinline=True)
def collect_round(form, cursor, is_left, turn, stamp, edges, records, lists, scratch):
    """Collect up to as many spikes of a step as there are threads in shared memory; all threads call it.

    Args:
      form: the numbers of the kernel.
      cursor: how far this warp has read, see `_collect`.
      is_left: whether this warp has spikes left.
      turn: 0 or 1, the counters of this round; those of the next round are cleared.
      stamp: the stamp of the step whose spikes are collected.
      edges: the first neuron of each block.
      records: the records of this step.
      lists: the lists of this step.
      scratch: the shared arrays of the kernel.

    Returns:
      The next *cursor*, *is_left* and *turn*, the number of spikes, and whether any warp has spikes left.
    """
    _, spikes, _, counters, _ = scratch
    counter = counters[2 * turn : 2 * turn + 2]
    if is_left:
        cursor, is_left = _collect(form, cursor, stamp, edges, records, lists, spikes, counter)
        if is_left:
            counter[1] = 1
    cuda.syncthreads()
    count, more = min(counter[0], cuda.blockDim.x), counter[1] != 0
    turn = 1 - turn
    if cuda.threadIdx.x == 0:
        counters[2 * turn] = 0
        counters[2 * turn + 1] = 0
    return cursor, is_left, turn, count, more


@cuda.jit(device=True, forceinline=True)
def lay_out(first, length, count, scratch):
    """Lay the segments of *count* spikes end to end, and return the number of their entries; all threads call it.

    A thread overwrites its spike in the shared list, and no other, and so must have read this spike before.

    Args:
      first: the first entry of the segment of this thread's spike.
      length: the number of its entries; 0 for a thread without a spike.
      count: the spikes of the round, at least 1.
      scratch: the shared arrays of the kernel.
    """
    warp_sums, ends, offsets, _, _ = scratch
    end = _sums_of_warp(length) if count <= 32 else _sums_of_block(length, warp_sums)
    if cuda.threadIdx.x < count:
        ends[np.uint64(cuda.threadIdx.x)] = end
        offsets[np.uint64(cuda.threadIdx.x)] = first - (end - length)
    cuda.syncthreads()
    return ends[np.uint64(count - 1)]


@cuda.jit(device=True, forceinline=True)
def segment_and_entry(number, count, scratch):
    """Find the entry *number* of a round by bisection; return the number of its spike, and its place in its array."""
    _, ends, offsets, _, _ = scratch
    first, last = 0, count - 1
    while first < last:
        middle = (first + last) >> 1
        if ends[np.uint64(middle)] > number:
            last = middle
        else:
            first = middle + 1
    return first, np.int64(np.uint32(offsets[np.uint64(first)] + number))


class Delivery(NamedTuple):
    """Device functions that add the entries of spikes to the block's own sums.

    Attributes:
      segment: ``segment(form, block, starts, spike)`` returns a segment's first entry and number of entries.
      load_entry: ``load_entry(form, entries, entry)`` returns the bits and the weight of an entry.
      add_entry: ``add_entry(form, head, ring, bits, weight)`` adds an entry; *bits* has the row and the target.
      add: ``add(form, head, low, length, count, entries, ring, scratch)`` adds the entries of the segments of *count*
        spikes; *head* is the row of sums for the step after the spikes.
      deliver: ``deliver(form, block, stamp, row, cursor, head, turn, ring, ins, outs, scratch)`` adds the entries
        of all spikes in the *row* of records with this *stamp*, and returns the next *turn*. For *cursor*, *turn* and
        *scratch* see `collect_round`.
    """

    segment: Any
    load_entry: Any
    add_entry: Any
    add: Any
    deliver: Any


@functools.cache
def delivery(wide: bool) -> Delivery:
    """Return the device functions for entries of one word or, if *wide*, of two."""

    @cuda.jit(device=True, forceinline=True)
    def load_entry(form, entries, entry):
        if wide:
            return load(entries, 2 * entry), load(entries, 2 * entry + 1)
        bits = load(entries, entry)
        return bits, np.int32(bits >> (form.target_bits + form.row_bits))

    @cuda.jit(device=True, forceinline=True)
    def entry_at(form, entries, number, count, scratch):
        _, entry = segment_and_entry(number, count, scratch)
        return load_entry(form, entries, entry)

    @cuda.jit(device=True, forceinline=True)
    def add_entry(form, head, ring, bits, weight):
        row = head + (bits >> form.target_bits & (1 << form.row_bits) - 1)
        if row >= form.rows:
            row -= form.rows
        target = bits & (1 << form.target_bits) - 1
        cuda.atomic.add(ring, np.uint64(row * form.width + target), weight)

    @cuda.jit(device=True, forceinline=True)
    def segment(form, block, starts, spike):
        at = np.int64(spike) * form.blocks + block
        # Starts are uint32, for up to 2**32 entries; `segment_and_entry` undoes the wrap to int32.
        begin, end = load(starts, at), load(starts, at + 1)
        return np.int32(begin), np.int32(end - begin)

    @cuda.jit(device=True, forceinline=True)
    def add(form, head, low, length, count, entries, ring, scratch):
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        total = lay_out(low, length, count, scratch)
        # Not `range`: Numba would divide by the number of threads to count the steps.
        number = np.int64(thread)
        while number < total:
            # Two entries at once, so that the loads overlap.
            bits, weight = entry_at(form, entries, number, count, scratch)
            other = number + threads
            if other < total:
                other_bits, other_weight = entry_at(form, entries, other, count, scratch)
                add_entry(form, head, ring, other_bits, other_weight)
            add_entry(form, head, ring, bits, weight)
            number += 2 * threads

    @cuda.jit(device=True, forceinline=True)
    def deliver(form, block, stamp, row, cursor, head, turn, ring, ins, outs, scratch):
        records, lists, is_left = outs.records[row], outs.lists[row], True
        while True:
            cursor, is_left, turn, count, more = collect_round(
                form, cursor, is_left, turn, stamp, ins.edges, records, lists, scratch
            )
            if count > 0:
                low, length = np.int32(0), np.int32(0)
                if cuda.threadIdx.x < count:
                    low, length = segment(form, block, ins.starts, scratch[1][np.uint64(cuda.threadIdx.x)])
                add(form, head, low, length, count, ins.entries, ring, scratch)
            # This barrier completes the sums, and keeps the shared arrays until all threads have read them.
            cuda.syncthreads()
            if not more:
                return turn

    return Delivery(segment, load_entry, add_entry, add, deliver)
