"""Parts of a step in which a block of threads reads the spikes of all blocks, and adds their entries to its sums."""

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

    Those of a `Layout`, of which *width* is the stride and *blocks* are the segments of a source. *slots* are the words
    of a record, a power of two up to 32, and *every* the steps between recorded states, or 0.
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
    """Append spikes of the last step to the shared list *spikes* until it is full or all are read.

    The place of a warp is its *cursor*: the word of this thread and its value, the number of spikes in the record, the
    place among them, whether the spike at this place is not in the list yet, and stamp and value of the thread's next
    word, whose load is under way. Returns the next cursor, and whether spikes are left.
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
            # The first word of a record is the number of its spikes, and is written last.
            count = cuda.shfl_sync(ALL, value, lane & ~(form.slots - 1))
            is_counted = cuda.shfl_sync(ALL, found, lane & ~(form.slots - 1)) == stamp
            waiting = cuda.all_sync(ALL, is_counted and (slot > count or found == stamp)) == 0
            if waiting:
                found, value = _load_word(form, records, word)
        place = slot - 1
        is_new = slot > 0 and place < count


@cuda.jit(device=True, forceinline=True)
def first_cursor(form, records):
    """Return the cursor of `collect_round` before all spikes of these records; the first loads are under way."""
    thread, none = cuda.threadIdx.x, np.int32(0)
    return thread - cuda.blockDim.x, none, none, none, False, *_load_word(form, records, thread)


@cuda.jit(device=True, forceinline=True)
def collect_round(form, cursor, is_left, turn, stamp, edges, records, lists, scratch):
    """Collect up to as many spikes of a step as there are threads in shared memory; all threads call it.

    Args:
      form: the numbers of the kernel.
      cursor: the place of this warp.
      is_left: whether this warp has spikes left.
      turn: 0 or 1; counters are used in turn, and those of the next round are cleared in each round.
      stamp: the number of the step.
      edges: those of the kernel.
      records: the records of the step.
      lists: the lists of the step.
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

    The spikes of a round are overwritten: each thread has read its own.

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
    """Return the spike of the entry *number* of a round, by bisection, and the place of the entry in its array."""
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
      segment: ``segment(form, block, starts, spike)`` returns the first entry of a spike's segment, and their number.
      load_entry: ``load_entry(form, entries, entry)`` returns the bits and the weight of an entry.
      add_entry: ``add_entry(form, head, ring, bits, weight)`` adds an entry; *bits* have its row and its target.
      add: ``add(form, head, low, length, count, entries, ring, scratch)`` adds the entries of the segments of *count*
        spikes; *head* is the row of sums of the step after theirs.
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
        # Of 32 bits without a sign, for up to 2**32 entries.
        begin, end = load(starts, at), load(starts, at + 1)
        return np.int32(begin), np.int32(end - begin)

    @cuda.jit(device=True, forceinline=True)
    def add(form, head, low, length, count, entries, ring, scratch):
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        total = lay_out(low, length, count, scratch)
        # No `range`, for whose steps Numba divides by the number of threads.
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
            # The sums are complete, and the shared arrays are read before they are written in the next round or step.
            cuda.syncthreads()
            if not more:
                return turn

    return Delivery(segment, load_entry, add_entry, add, deliver)
