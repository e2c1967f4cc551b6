"""A run of a network on a GPU: all steps in one cooperative launch.

A block of threads owns a block of neurons. Their state stays in registers and their sums in shared memory if they fit.
In each step the block reads the spikes of the last step of all blocks, adds their entries to its own sums, updates its
neurons, and writes its own spikes. No two blocks add to the same sum.

Spikes are in records, one for each block: their number, and the first few neurons; further neurons are in a list. Each
word is written together with the number of its step, and readers wait for this number. So a step has no barrier between
blocks, which would take longer than the rest of a step: a fence, an atomic addition, and the reading of its result. The
words of a step are overwritten two steps later, by blocks that have read the words of the step between, which a block
writes after it has read all words of the first.

A block collects the spikes of all records in a list in shared memory. Their entries lie in segments of several lengths;
a prefix sum lays them end to end, and a thread finds its entry by bisection, so that all loads of a round are under way
at once. More spikes than threads take several rounds.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import load, load_stamped, store_stamped
from ....kernels.cuda.device.warp import ALL
from ...fields import KEPT
from ...populations import Functions, tuple_of
from ...random import Generator

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
def _collect(form, cursor, stamp, edges, records, lists, spikes, counter):
    """Append spikes of the last step to the shared list *spikes* until it is full or all are read.

    The place of a warp is its *cursor*: the word of this thread and its value, the number of spikes in the record, the
    place among them, and whether the spike at this place is not in the list yet. Returns the next cursor, and whether
    spikes are left.
    """
    word, value, count, place, is_new = cursor
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
                return (word, value, count, place, is_new), True
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
            return (word, value, np.int32(0), place, False), False
        waiting = True
        while waiting:
            found, value = stamp, np.int32(0)
            if word < words:
                found, value = load_stamped(records, word)
            # The first word of a record is the number of its spikes, and is written last.
            count = cuda.shfl_sync(ALL, value, lane & ~(form.slots - 1))
            is_counted = cuda.shfl_sync(ALL, found, lane & ~(form.slots - 1)) == stamp
            waiting = cuda.all_sync(ALL, is_counted and (slot > count or found == stamp)) == 0
        place = slot - 1
        is_new = slot > 0 and place < count


@functools.cache
def _delivery(wide: bool) -> Any:
    """Return a device function that adds the entries of the last step's spikes to the block's own sums.

    *records* and *lists* are those of the last step, and *stamp* is its number from 1 on. *head* is the row of sums of
    the present step, and *scratch* are shared arrays. *turn* is 0 or 1, by which counters are used in turn: those of
    the next round are cleared in each round. Returns that of the next round.
    """

    @cuda.jit(device=True, forceinline=True)
    def load_entry(form, entries, entry):
        if wide:
            return load(entries, 2 * np.int64(entry)), load(entries, 2 * np.int64(entry) + 1)
        bits = load(entries, np.int64(entry))
        return bits, np.int32(bits >> (form.target_bits + form.row_bits))

    @cuda.jit(device=True, forceinline=True)
    def add(form, head, ring, bits, weight):
        row = head + (bits >> form.target_bits & (1 << form.row_bits) - 1)
        if row >= form.rows:
            row -= form.rows
        target = bits & (1 << form.target_bits) - 1
        cuda.atomic.add(ring, np.uint64(row * form.width + target), weight)

    @cuda.jit(device=True, forceinline=True)
    def entry_at(ends, offsets, number, count):
        first, last = 0, count - 1
        while first < last:
            middle = (first + last) >> 1
            if ends[np.uint64(middle)] > number:
                last = middle
            else:
                first = middle + 1
        return offsets[np.uint64(first)] + number

    @cuda.jit(device=True, forceinline=True)
    def deliver_round(form, block, head, starts, entries, ring, spikes, offsets, warp_sums, count):
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        low, length = np.int32(0), np.int32(0)
        if thread < count:
            at = np.int64(spikes[np.uint64(thread)]) * form.blocks + block
            low = np.int32(load(starts, at))
            length = np.int32(load(starts, at + 1)) - low
        end = _sums_of_warp(length) if count <= 32 else _sums_of_block(length, warp_sums)
        ends = spikes  # each thread has read its spike
        if thread < count:
            ends[np.uint64(thread)] = end
            offsets[np.uint64(thread)] = low - (end - length)
        cuda.syncthreads()
        total = ends[np.uint64(count - 1)]
        for number in range(thread, total, 2 * threads):
            # Two entries at once, so that the loads overlap.
            bits, weight = load_entry(form, entries, entry_at(ends, offsets, number, count))
            other = number + threads
            if other < total:
                other_bits, other_weight = load_entry(form, entries, entry_at(ends, offsets, other, count))
                add(form, head, ring, other_bits, other_weight)
            add(form, head, ring, bits, weight)

    @cuda.jit(device=True, forceinline=True)
    def deliver(form, block, stamp, head, turn, starts, entries, edges, records, lists, ring, scratch):
        warp_sums, spikes, offsets, counters, _ = scratch
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        cursor = (thread - threads, np.int32(0), np.int32(0), np.int32(0), False)
        is_left = True
        while True:
            counter = counters[2 * turn : 2 * turn + 2]
            if is_left:
                cursor, is_left = _collect(form, cursor, stamp, edges, records, lists, spikes, counter)
                if is_left:
                    counter[1] = 1
            cuda.syncthreads()
            count, more = min(counter[0], threads), counter[1] != 0
            turn = 1 - turn
            if thread == 0:
                counters[2 * turn] = 0
                counters[2 * turn + 1] = 0
            if count > 0:
                deliver_round(form, block, head, starts, entries, ring, spikes, offsets, warp_sums, count)
            # The sums are complete, and the shared arrays are read before they are written in the next round or step.
            cuda.syncthreads()
            if not more:
                return turn

    return deliver


@cuda.jit(device=True, forceinline=True)
def _record(step, t, found, spikes_of, groups, counts, spike_steps, spike_neurons, spike_count):
    """Record the spikes of a block, by all warps but the first."""
    records, lists, slots = spikes_of  # pairs of the step's number and the neuron
    for k in range(cuda.threadIdx.x - 32, found, cuda.blockDim.x - 32):
        spike = records[2 * (1 + k)] if k < slots - 1 else lists[2 * k]
        if counts.shape[1] > 0 and groups[spike] >= 0:
            cuda.atomic.add(counts, (t, groups[spike]), 1)
        if spike_steps.size == 0:
            cuda.atomic.add(spike_count, 0, 1)
        else:
            at = cuda.atomic.add(spike_count, 0, 1)
            if 0 <= at < spike_steps.size:
                spike_steps[at], spike_neurons[at] = step, spike


def _block_run(functions: Functions, receptors: int, wide: bool, single: bool) -> Any:
    """Return a device function that makes all steps of a block; *single* if a thread has at most one neuron."""
    load_state, store, parameters_of, inputs_of, arrived_of, update, prepare, draw, _, _, are_equal = functions
    deliver, scales_of = _delivery(wide), tuple_of(receptors)
    is_fixed = single or are_equal

    @cuda.jit(device=True, forceinline=True)
    def clear_sums(ring, at, width):
        for receptor in range(receptors):
            ring[np.uint64(at + receptor * width)] = 0

    @cuda.jit(device=True, forceinline=True)
    def run_block(which, form, block, ring, scratch, ins, outs):
        (
            starts, entries, edges, all_scales, pending, state, parameters, shared, series, shared_series, key,
            first_step, groups, probes, probe_words,
        ) = ins  # fmt: skip
        (
            next_pending, next_state, counts, spike_steps, spike_neurons, spike_count, traces, records, lists,
        ) = outs  # fmt: skip
        counters, found = scratch[3], scratch[4]
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        first, stop = np.int64(edges[block]), np.int64(edges[block + 1])
        steps = series.shape[0]
        scales, key0, key1 = scales_of(all_scales), key[0], key[1]
        for k in range(thread, form.rows * form.width, threads):
            row, i = k // form.width, first + k % form.width
            ring[k] = pending[row, i] if i < stop else 0
        for i in range(first + thread, stop, threads):
            for word in range(state.shape[0]):
                next_state[word, i] = state[word, i]
        has_neuron = first + thread < stop
        own = min(first + thread, stop - 1)
        current = load_state(state, state, own)
        fixed, prepared = parameters_of(parameters, shared, own), prepare(parameters, shared, own)
        head, step, recorded, turn = 0, first_step[0], 0, 0
        if thread < 4:
            counters[thread] = 0
        elif thread < 6:
            found[thread - 4] = 0
        cuda.syncthreads()
        for t in range(steps + 1):
            # Before the spikes of the other blocks are waited for.
            noise = draw(prepared, Generator(key0, key1, np.uint32(own), np.uint32(step)))
            if t > 0:
                before = (t - 1) & 1
                turn = deliver(
                    form, block, t, head, turn, starts, entries, edges, records[before], lists[before], ring, scratch
                )
            if t == steps:
                break
            parity = t & 1
            for i in range(first + thread, stop, threads):
                at = head * form.width + i - first
                rng = Generator(key0, key1, np.uint32(i), np.uint32(step))
                following, fired = update(
                    current if single else load_state(next_state, next_state, i),
                    arrived_of(ring, at, form.width, scales),
                    fixed if is_fixed else parameters_of(parameters, shared, i),
                    inputs_of(
                        series[t],
                        shared_series[t],
                        i,
                        noise if single else draw(prepared if is_fixed else prepare(parameters, shared, i), rng),
                    ),
                    rng,
                )
                clear_sums(ring, at, form.width)
                if single:
                    current = following
                else:
                    store(next_state, i, following)
                if fired:
                    number = cuda.atomic.add(found, parity, 1)
                    if number < form.slots - 1:
                        store_stamped(records[parity], block * form.slots + 1 + number, t + 1, i)
                    else:
                        store_stamped(lists[parity], first + number, t + 1, i)
            cuda.syncthreads()
            if thread == 0:
                store_stamped(records[parity], block * form.slots, t + 1, found[parity])
                found[1 - parity] = 0  # all threads have read that of the last step
            elif thread >= 32:
                spikes_of = records[parity, 2 * block * form.slots :], lists[parity, 2 * first :], form.slots
                _record(step, t, found[parity], spikes_of, groups, counts, spike_steps, spike_neurons, spike_count)
            if form.every > 0 and (step + 1) % form.every == 0:
                if single and has_neuron:
                    store(next_state, own, current)
                cuda.syncthreads()
                for k in range(thread, probes.size, threads):
                    if first <= probes[k] < stop:
                        traces[recorded, k] = next_state[probe_words[k], probes[k]]
                recorded += 1
            # The threads meet in the next delivery.
            head += receptors
            if head >= form.rows:
                head = 0
            step += 1
        if single and has_neuron:
            store(next_state, own, current)
        for k in range(thread, form.rows * form.width, threads):
            row, i = k // form.width, first + k % form.width
            if i < stop:
                next_pending[row, i] = ring[(head + row) % form.rows * form.width + i - first]

    return run_block


def _choose(runs: tuple[Any, ...]) -> Any:
    """Return a device function that calls the run of the population *which*."""
    head = runs[0]
    if len(runs) == 1:
        return head
    rest = _choose(runs[1:])

    @cuda.jit(device=True, forceinline=True)
    def run_of(which, form, block, ring, scratch, ins, outs):
        if which == 0:
            head(which, form, block, ring, scratch, ins, outs)
        else:
            rest(which - 1, form, block, ring, scratch, ins, outs)

    return run_of


@functools.cache
def _selection(batched: bool) -> Any:
    """Return a device function that returns the arrays of one slice of a batch."""
    if batched:

        @cuda.jit(device=True, inline="always")
        def slice_of(array, number):
            return array[number]
    else:

        @cuda.jit(device=True, inline="always")
        def slice_of(array, number):
            return array

    return slice_of


@functools.cache
def _sums(in_shared: bool) -> Any:
    """Return a device function that returns the sums of a block."""
    if in_shared:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return cuda.shared.array(0, numba.int32)
    else:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return memory[block * length : (block + 1) * length]

    return sums_of


@functools.lru_cache(KEPT)
def simulation(
    functions: tuple[Functions, ...],
    receptors: int,
    *,
    wide: bool,
    threads: int,
    single: bool,
    in_shared: bool,
    batched: bool,
) -> Any:
    """Return the kernel of a run; see `kernels.numba.simulation.simulation` for the first parameters.

    Args:
      functions: those of the populations.
      receptors: their number.
      wide: that of the `Layout`.
      threads: those of a block, by which the registers of a thread are limited.
      single: True if no block has more neurons than threads.
      in_shared: True if the sums of a block are in shared memory.
      batched: True if each array has one more dimension, the batch along the grid's second axis. It costs registers.
    """
    run = _choose(tuple(_block_run(each, receptors, wide, single) for each in functions))
    sums_of, of = _sums(in_shared), _selection(batched)

    @cuda.jit(launch_bounds=threads)
    def simulate(
        starts,
        entries,
        edges,
        owners,
        scales,
        pending,
        state,
        parameters,
        shared,
        series,
        shared_series,
        key,
        first_step,
        groups,
        probes,
        probe_words,
        next_pending,
        next_state,
        counts,
        spike_steps,
        spike_neurons,
        spike_count,
        traces,
        records,
        lists,
        memory,
        width,
        target_bits,
        row_bits,
        slots,
        every,
    ):
        # This barrier makes the launch cooperative: blocks wait for each other, and so all must be resident.
        cuda.cg.this_grid().sync()
        net, block = cuda.blockIdx.y, cuda.blockIdx.x
        own = of(owners, net)
        form = Form(own.size, of(pending, net).shape[0], width, target_bits, row_bits, slots, every)
        ring = sums_of(of(memory, net), block, form.rows * form.width)
        # Numba gives shared arrays of several device functions the same names, so that all of them are made here.
        scratch = (
            cuda.shared.array(32, numba.int32),  # the sums of warps
            cuda.shared.array(THREADS, numba.int32),  # spikes, and then the ends of their segments
            cuda.shared.array(THREADS, numba.int32),  # the first entries of segments, less the entries before them
            cuda.shared.array(4, numba.int32),  # the collected spikes, and 1 if some are left, in two rounds
            cuda.shared.array(2, numba.int32),  # the spikes of the block in two steps
        )
        ins = (
            of(starts, net),
            of(entries, net),
            of(edges, net),
            of(scales, net),
            of(pending, net),
            of(state, net),
            of(parameters, net),
            of(shared, net),
            of(series, net),
            of(shared_series, net),
            of(key, net),
            of(first_step, net),
            of(groups, net),
            of(probes, net),
            of(probe_words, net),
        )
        outs = (
            of(next_pending, net),
            of(next_state, net),
            of(counts, net),
            of(spike_steps, net),
            of(spike_neurons, net),
            of(spike_count, net),
            of(traces, net),
            of(records, net),
            of(lists, net),
        )
        run(own[block], form, block, ring, scratch, ins, outs)

    return simulate
