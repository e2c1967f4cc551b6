"""A run of a network on a GPU: all steps in one cooperative launch.

A block of threads owns a block of neurons. If they fit, the neurons' states stay in registers (see `neurons`), and
their sums of arriving weights in shared memory. In each step, a block reads the spikes of all blocks in the previous
step, adds the entries (stored synapses) of these spikes to its own sums, updates its neurons, and writes its spikes. No
two blocks add to the same sum.

Each block has a record of its spikes in a step: their number, and the first few neurons; further neurons are in a list.
Each of these words is written together with a stamp, which says in which step it was written, and readers wait for this
stamp. A barrier between blocks would take longer: a fence, an atomic addition, and the reading of its result, one after
the other. If most segments (the entries of a source in a block) would be empty, blocks do meet at a barrier; see
`scattering`.

With plastic projections, whose weights a rule changes, spikes are added *ahead* steps after they were written, as many
as the shortest delay allows (see `Layout`). A block that is slow in one step then does not hold up the others. The
records are loaded a step before the spikes are added.

No barrier is needed before a record's memory is used again. When a block writes the words of a step, it has read all
words of the step *ahead* steps earlier, and so all blocks have finished their reads in that earlier step. The words of
a step are read up to *ahead* steps later, or up to the longest delay of plastic projections; they are overwritten
*ahead* steps after that, or later.

A block collects the spikes of all records in a list in shared memory. Their entries lie in segments of several lengths.
A prefix sum lays these segments end to end, and a thread finds its entry by bisection, so that all loads of a round are
under way at once. More spikes than threads take several rounds.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numba import cuda

from ...model.fields import KEPT
from ...model.populations import Functions, tuple_of
from ...model.rules import RuleFunctions
from . import scattering
from .arrays import begin_block, end_block, record_states, slices, sums_of_block
from .delivery import THREADS, Form, delivery, first_cursor
from .neurons import Block, BlockStep, Inputs, Moment, Outputs, neurons
from .plasticity import Stages, stages
from .spikes import announcing, recording, spike_of, write_count
from .traces import Learning, PastArrays


def _block_run(
    functions: Functions,
    plastic: Stages,
    receptors: int,
    ahead: int,
    is_joined: bool,
    wide: bool,
    held: tuple[int, bool],
) -> Any:
    """Return a device function that makes all steps of a block; see `neurons` and `simulation` for the arguments."""
    at_once, in_registers = held
    record = recording(spike_of, 32)  # the first warp writes the number of spikes
    open_neurons, draw, update, store = neurons(
        functions, receptors, announcing(wide), at_once=at_once, in_registers=in_registers
    )
    deliver, scales_of = delivery(wide).deliver, tuple_of(receptors)
    _, row_of, open_past, prepare, arrive, depart, close_past = plastic

    @cuda.jit(device=True, forceinline=True)
    def run_block(which, form, number, ring, scratch, ins, outs, learning, past):
        counters, found, thread = scratch[3], scratch[4], cuda.threadIdx.x
        first, stop = np.int64(ins.edges[number]), np.int64(ins.edges[number + 1])
        block, scales = Block(np.int64(number), first, stop, ins.key[0], ins.key[1]), scales_of(ins.scales)
        steps = ins.series.shape[0]
        begin_block(form, block, ring, ins, outs)
        held = open_neurons(form, block, ins)
        head, behind, step, recorded, turn = 0, 0, ins.first_step[0], 0, 0
        open_past(learning, past, form, block, found, outs)
        if thread < 4:
            counters[thread] = 0
        elif thread < 6:
            found[thread - 4] = 0
        prepare(learning, 0, step)
        cuda.syncthreads()
        row, _ = row_of(learning, outs.records, -ahead)
        cursor = first_cursor(form, outs.records[row])
        for t in range(steps + ahead):
            # Random inputs are drawn while spikes of other blocks are on their way.
            held = draw(block, held, t, step)
            row, stamp = row_of(learning, outs.records, t)
            before, stamp_before = row_of(learning, outs.records, t - ahead)
            if ahead == 1:
                behind = head
                cursor = first_cursor(form, outs.records[before])
            elif t >= ahead:
                behind += receptors
                if behind >= form.rows:
                    behind = 0
            moment = Moment(t, np.int64(step), head, behind, row, stamp)
            if t < steps:
                turn = arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch)
            if t >= ahead and (t >= steps or not is_joined):
                turn = deliver(form, number, stamp_before, before, cursor, behind, turn, ring, ins, outs, scratch)
            if ahead > 1:
                following, _ = row_of(learning, outs.records, t + 1 - ahead)
                cursor = first_cursor(form, outs.records[following])
            if ahead == 1 and t == steps:
                break
            if ahead > 1 and t >= steps:
                continue
            parity = t & 1
            held = update(BlockStep(form, block, moment, scales, ring, scratch, ins, outs), held)
            prepare(learning, t + 1, step + 1)
            cuda.syncthreads()
            if thread == 0:
                write_count(form, block, outs, row, stamp, found[parity])
                found[1 - parity] = 0  # not read after the barrier; the next step counts in it
            record(form, block, moment, found[parity], ins.groups, outs)
            depart(learning, form, block, moment, found[parity], outs)
            recorded = record_states(form, block, step, recorded, store, held, ins, outs)
            # No barrier: the delivery in the next step has one.
            head += receptors
            if head >= form.rows:
                head = 0
            step += 1
        store(block, outs.state, held)
        end_block(form, block, head, ring, outs)
        close_past(learning, past, form, block, steps, outs)

    return run_block


def _choose(runs: tuple[Any, ...]) -> Any:
    """Return a device function that calls the run of the population *which*."""
    head = runs[0]
    if len(runs) == 1:
        return head
    rest = _choose(runs[1:])

    @cuda.jit(device=True, forceinline=True)
    def run_of(which, form, number, ring, scratch, ins, outs, learning, past):
        if which == 0:
            head(which, form, number, ring, scratch, ins, outs, learning, past)
        else:
            rest(which - 1, form, number, ring, scratch, ins, outs, learning, past)

    return run_of


@functools.lru_cache(KEPT)
def simulation(
    functions: tuple[Functions, ...],
    receptors: int,
    *,
    ahead: int,
    joined: int | None,
    wide: bool,
    scattered: bool,
    threads: int,
    held: tuple[int, bool],
    in_shared: bool,
    batched: bool,
    rules: tuple[RuleFunctions, ...] = (),
) -> Any:
    """Return the kernel of a run; see `kernels.numba.simulation.simulation` for the first parameters.

    Args:
      functions: the `Functions` of the populations.
      receptors: the number of receptors.
      ahead: that of the `Layout`.
      joined: the number of a rule whose projection has the delay *ahead*, or None. The spikes for this projection and
        for static projections (those without a rule) are the same, and are collected once.
      wide: that of the `Layout`.
      scattered: that of the `Layout`.
      threads: the number of threads of a block, which limits the registers of a thread.
      held: *at_once* and *in_registers* of `neurons`.
      in_shared: True if the sums of a block are in shared memory.
      batched: True if each array has one more dimension, the batch along the grid's second axis. This costs registers.
      rules: the functions of the plastic projections' rules.
    """
    plastic = stages(rules, joined, ahead, wide)
    if scattered:
        runs = [scattering.block_run(each, receptors, wide, held) for each in functions]
    else:
        arguments = plastic, receptors, ahead, joined is not None, wide, held
        runs = [_block_run(each, *arguments) for each in functions]
    run, further = _choose(tuple(runs)), receptors if scattered else 0
    shared_arrays = plastic.shared
    sums_of, of = sums_of_block(in_shared, scattered), slices(batched)

    is_cached = all(each.is_cached for each in functions) and all(rule.is_cached for rule in rules)

    @cuda.jit(launch_bounds=threads, cache=is_cached)
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
        records,
        lists,
        memory,
        own_spike_traces,
        own_last,
        width,
        target_bits,
        row_bits,
        slots,
        every,
    ):
        net, block = cuda.blockIdx.y, cuda.blockIdx.x
        given, changed = of(weights, net), of(next_weights, net)
        for k in range(block * cuda.blockDim.x + cuda.threadIdx.x, given.size, cuda.gridDim.x * cuda.blockDim.x):
            changed[k] = given[k]
        # This barrier completes the copies of the weights. It also makes the launch cooperative: blocks wait for each
        # other, and so all must be resident.
        cuda.cg.this_grid().sync()
        population_of = of(owners, net)
        rows = of(pending, net).shape[0] + further
        form = Form(population_of.size, rows, width, target_bits, row_bits, slots, every)
        ring = sums_of(of(memory, net), block, form.rows * form.width)
        # All shared arrays are made here, as Numba gives those of several device functions the same names.
        scratch = (
            cuda.shared.array(32, numba.int32),  # the sums of warps
            cuda.shared.array(THREADS, numba.int32),  # spikes, and then the ends of their segments
            cuda.shared.array(THREADS, numba.int32),  # the first entries of segments, minus the entries before them
            cuda.shared.array(4, numba.int32),  # for two rounds: the number of collected spikes, and 1 if some are left
            cuda.shared.array(2, numba.int32),  # for two steps: the number of the block's spikes
        )
        ins = Inputs(
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
        outs = Outputs(
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
        before, factors = shared_arrays()
        learning = Learning(
            of(table, net),
            of(plastic_starts, net),
            of(plastic_entries, net),
            of(incoming_starts, net),
            of(incoming, net),
            of(numbers, net),
            of(rule_words, net),
            of(rule_shared, net),
            changed,
            of(own_spike_traces, net),
            of(own_last, net),
            before,
            factors,
            of(last, net).shape[0],
            of(has_fired, net).shape[0],
        )
        past = PastArrays(
            of(spike_traces, net),
            of(last, net),
            of(has_fired, net),
            of(next_spike_traces, net),
            of(next_last, net),
            of(next_has_fired, net),
        )
        run(population_of[block], form, block, ring, scratch, ins, outs, learning, past)

    return simulate
