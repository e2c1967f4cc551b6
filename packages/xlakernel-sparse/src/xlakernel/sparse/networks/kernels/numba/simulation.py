"""A run of a network on the CPU: all steps in one call.

The neurons are divided into blocks, and each thread delivers the spikes of the previous step to its own blocks. No two
threads add to the same sum. A step has one barrier, the end of a parallel loop. If the entries (synapses) of a source
are in one segment (see `Layout`), one thread adds those of all spikes before this loop.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from ....kernels.numba.helpers.parts import first_of, thread_count
from ....kernels.numba.helpers.prefetch import prefetch
from ...layout import Layout
from ...model.fields import KEPT
from ...model.populations import Functions
from ...model.rules import RuleFunctions
from ...random.generator import Generator
from .plasticity import Learning, note_spikes, read_fired, stages, write_fired

#: The fewest neurons of a thread: with fewer, another thread costs more time than it saves.
_NEURONS_OF_A_THREAD = 8_000
#: The distance, in spikes, from the entries that are added to the entries that are prefetched.
_SPIKES_AHEAD = 6
#: Words of 32 bits in a cache line.
_LINE = 16


def _block_update(functions: Functions, receptors: int) -> Any:
    """Return a function that makes one step of the neurons of a block, and clears the sums that it read.

    *arrays* are the scales; the words of state, parameters and shared parameters; and the words of inputs and shared
    inputs in each step. *drawn* has room for the random inputs.
    """
    load, store, parameters_of, inputs_of, arrived_of, update = functions[:6]
    fill, read = functions.fill, functions.read

    @njit
    def update_block(which, first, stop, sums, at, width, arrays, key, step, t, drawn, fired):
        scales, state, parameters, shared, series, shared_series = arrays
        inputs, shared_inputs = series[t], shared_series[t]
        fill(parameters, shared, first, stop, key, step, drawn)
        for i in range(first, stop):
            following, has_fired = update(
                load(state, state, i),
                arrived_of(sums, at + i - first, width, scales),
                parameters_of(parameters, shared, i),
                inputs_of(inputs, shared_inputs, i, read(drawn, np.uint64(i - (first & ~3)))),
                Generator(key[0], key[1], np.uint32(i), step),
            )
            store(state, i, following)
            fired[np.uint64(i)] = has_fired
        for receptor in range(receptors):
            for k in range(at + receptor * width, at + receptor * width + stop - first):
                sums[np.uint64(k)] = 0

    return update_block


def _choose(updates: tuple[Any, ...]) -> Any:
    """Return a function that calls the update of the population *which*."""
    head = updates[0]
    if len(updates) == 1:
        return head
    rest = _choose(updates[1:])

    @njit
    def update_of(which, first, stop, sums, at, width, arrays, key, step, t, drawn, fired):
        if which == 0:
            head(which, first, stop, sums, at, width, arrays, key, step, t, drawn, fired)
        else:
            rest(which - 1, first, stop, sums, at, width, arrays, key, step, t, drawn, fired)

    return update_of


class _Form(NamedTuple):
    """The numbers of a `Layout` that a kernel computes with; *rows* and *width* are the extents of the sums."""

    segments: int
    rows: int
    width: int
    target_bits: int
    row_bits: int


@functools.cache
def _delivery(wide: bool) -> Any:
    """Return a function that adds the entries of spikes to a block's sums; *head* is the row of the following step.

    It prefetches the entries of later spikes and, at the last spikes, those of the first spikes in the next block.
    """
    words = 2 if wide else 1

    @njit
    def prefetch_entries(form, block, spikes, count, starts, entries, k):
        if k >= count:
            k, block = k - count, block + 1
        if k < count and block < form.segments:
            segment = np.int64(spikes[k]) * form.segments + block
            first, stop = np.int64(starts[np.uint64(segment)]), np.int64(starts[np.uint64(segment + 1)])
            for word in range(words * first, words * stop + _LINE - 1, _LINE):
                prefetch(entries, np.uint64(word))

    @njit
    def deliver(form, block, spikes, count, starts, entries, sums, at, head):
        target_mask, row_mask = (1 << form.target_bits) - 1, (1 << form.row_bits) - 1
        for k in range(count):
            segment = np.int64(spikes[k]) * form.segments + block
            prefetch_entries(form, block, spikes, count, starts, entries, k + _SPIKES_AHEAD)
            for entry in range(np.int64(starts[np.uint64(segment)]), np.int64(starts[np.uint64(segment + 1)])):
                if wide:
                    place, weight = entries[np.uint64(2 * entry)], entries[np.uint64(2 * entry + 1)]
                else:
                    place = entries[np.uint64(entry)]
                    weight = np.int32(place >> form.target_bits + form.row_bits)
                row = head + (place >> form.target_bits & row_mask)
                if row >= form.rows:
                    row -= form.rows
                sums[np.uint64(at + row * form.width + (place & target_mask))] += weight

    return deliver


def has_threads(layout: Layout) -> bool:
    """Return True if several threads compute a step of a network with this layout, provided that there are some."""
    return min(layout.blocks, layout.size // _NEURONS_OF_A_THREAD) > 1


@functools.lru_cache(KEPT)
def simulation(
    functions: tuple[Functions, ...],
    receptors: int,
    sources: int,
    wide: bool,
    rules: tuple[tuple[int, RuleFunctions], ...] = (),
    threaded: bool = True,
) -> Any:
    """Return the kernel of a run.

    *functions* are the `Functions` of the populations, *sources* is the most random inputs of a population, and *wide*
    is that of the `Layout`. *rules* has each plastic projection's number in the network, and its rule's functions.
    *threaded* is the result of `has_threads`; without the parallel loop, the kernel compiles faster.

    The kernel gets other numbers as scalars, so that networks with the same functions share one compiled kernel.
    """
    update = _choose(tuple(_block_update(each, receptors) for each in functions))
    deliver = _delivery(wide)
    begin, arrive, depart, check = stages(rules)
    is_cached = all(each.is_cached for each in functions) and all(each.is_cached for _, each in rules)

    @njit
    def advance(
        form,
        block,
        edges,
        owners,
        spikes,
        count,
        starts,
        entries,
        sums,
        head,
        arrays,
        key,
        step,
        t,
        drawn,
        fired,
        listed,
        found,
        learning,
    ):
        first, stop = edges[block], edges[block + 1]
        at = head * form.width + first
        arrive(learning, form, block, first, t, np.int64(step), sums, at, arrays[0])
        if form.segments > 1:
            deliver(form, block, spikes, count, starts, entries, sums, np.int64(first), head)
        update(owners[block], first, stop, sums, at, form.width, arrays, key, step, t, drawn[block], fired)
        number = 0
        for i in range(first, stop):
            listed[np.uint64(first + number)] = i
            number += fired[np.uint64(i)]
        found[block] = number
        depart(learning, first, number, listed, t, np.int64(step))

    # A function of its own, as Numba analyses all statements of a function with parallel loops, which takes seconds.
    @njit(parallel=True)
    def advance_in_threads(
        threads, form, edges, owners, spikes, count, starts, entries, sums, head, arrays, key, step, t, drawn, fired,
        listed, found, learning,
    ):  # fmt: skip
        for thread in prange(threads):
            for block in range(first_of(owners.size, thread, threads), first_of(owners.size, thread + 1, threads)):
                advance(
                    form, block, edges, owners, spikes, count, starts, entries, sums, head, arrays, key, step, t, drawn,
                    fired, listed, found, learning,
                )  # fmt: skip

    # A neuron's function without an error model of its own gets this one: divisions are as on GPUs and in JAX.
    @njit(error_model="numpy", cache=is_cached)
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
        table,
        plastic_starts,
        plastic_entries,
        incoming_starts,
        incoming,
        numbers,
        rule_words,
        rule_shared,
        weights,
        spike_traces,
        last,
        has_fired,
        next_pending,
        next_state,
        counts,
        spike_steps,
        spike_neurons,
        spike_count,
        traces,
        next_weights,
        next_spike_traces,
        next_last,
        next_has_fired,
        segments,
        width,
        target_bits,
        row_bits,
        every,
    ):
        blocks, rows, size, steps = owners.size, pending.shape[0], state.shape[1], series.shape[0]
        threads = max(1, min(blocks, size // _NEURONS_OF_A_THREAD, thread_count()))
        sums = pending.ravel().copy()
        # A block may begin and end within a group of four neurons that share random words: there is room for the rest.
        drawn = np.empty((blocks, sources, width + 6), np.int32)
        fired = np.zeros(size, np.uint8)
        listed, spikes = np.empty(size, np.int32), np.empty(size, np.int32)
        found = np.zeros(blocks, np.int64)
        for word in range(state.shape[0]):
            for i in range(size):
                next_state[word, i] = state[word, i]
        for k in range(spike_steps.size):
            spike_steps[k], spike_neurons[k] = -1, -1
        for k in range(weights.size):
            next_weights[k] = weights[k]
        for k in range(last.size):
            next_spike_traces[k], next_last[k] = spike_traces[k], last[k]
        depth = has_fired.shape[0]
        ring, ring_counts = np.empty((depth, size), np.int32), np.zeros(depth, np.int64)
        read_fired(has_fired, ring, ring_counts, np.int64(first_step[0]))
        learning = Learning(
            table, plastic_starts, plastic_entries, incoming_starts, incoming, numbers, rule_words, rule_shared,
            next_weights, next_spike_traces, next_last, ring, ring_counts, np.empty(last.size, np.int32),
            np.empty((2, last.size), np.float32), np.zeros(table.shape[0], np.int64),
            np.empty((table.shape[0], 3), np.float32),
        )  # fmt: skip
        form = _Form(segments, rows, size, target_bits, row_bits)
        arrays = scales, next_state, parameters, shared, series, shared_series
        # The types are fixed: Numba would compile the functions once more for each literal that a loop changes.
        count, total, head, recorded = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for t in range(steps):
            step = np.uint32(first_step[0] + t)
            begin(learning, np.int64(step))
            if segments == 1:
                deliver(form, np.int64(0), spikes, count, starts, entries, sums, np.int64(0), head)
            if threaded and threads > 1:
                advance_in_threads(
                    threads, form, edges, owners, spikes, count, starts, entries, sums, head, arrays, key, step, t,
                    drawn, fired, listed, found, learning,
                )  # fmt: skip
            else:
                for block in range(blocks):
                    advance(
                        form, block, edges, owners, spikes, count, starts, entries, sums, head, arrays, key, step, t,
                        drawn, fired, listed, found, learning,
                    )  # fmt: skip
            head = (head + receptors) % rows
            count = np.int64(0)
            for block in range(blocks):
                for k in range(edges[block], edges[block] + found[block]):
                    spikes[count] = listed[k]
                    count += 1
            note_spikes(ring, ring_counts, np.int64(step), spikes, count)
            _record_spikes(first_step[0] + t, t, spikes, count, total, groups, counts, spike_steps, spike_neurons)
            total += count
            if every > 0 and (first_step[0] + t + 1) % every == 0:
                for k in range(probes.size):
                    traces[recorded, k] = next_state[probe_words[k], probes[k]]
                recorded += 1
        spike_count[0] = min(total, 2**31 - 1)
        for segment in range(segments):
            deliver(form, segment, spikes, count, starts, entries, sums, np.int64(edges[segment]), head)
        for row in range(rows):
            at = (head + row) % rows * size
            for i in range(size):
                next_pending[row, i] = sums[np.uint64(at + i)]
        write_fired(next_has_fired, ring, ring_counts, np.int64(first_step[0]) + steps)
        check(learning)

    return simulate


@njit
def _record_spikes(step, t, spikes, count, total, groups, counts, spike_steps, spike_neurons):
    for group in range(counts.shape[1]):
        counts[t, group] = 0
    if counts.shape[1]:
        for k in range(count):
            group = groups[spikes[k]]
            if group >= 0:
                counts[t, group] += 1
    for k in range(min(count, spike_steps.size - total)):
        spike_steps[total + k], spike_neurons[total + k] = step, spikes[k]
