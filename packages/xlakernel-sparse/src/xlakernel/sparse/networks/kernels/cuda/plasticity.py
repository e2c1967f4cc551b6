"""Plastic projections, with weights that a rule changes, on a GPU.

A synapse belongs to the block of its target. Each block has its own copy of the traces (decaying sums over earlier
spikes) of all sources, so that no two blocks write the same number. The records of spikes (see `spikes`) are kept for
at least as many steps as the longest delay.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ....kernels.cuda.device.memory import load
from ...model.fields import KEPT
from ...model.rules import RuleFunctions
from .delivery import collect_round, delivery, first_cursor, lay_out, segment_and_entry
from .spikes import spike_of
from .traces import age_of, close_past, factors_of, open_past, places_of, refer, row_of, set_factors, shared_arrays

#: The number of incoming synapses for which a thread has loads under way at once.
_TOGETHER = 8


class Stages(NamedTuple):
    """Device functions of all plastic projections. *ins* and *outs* are the `Inputs` and `Outputs` of the run.

    Attributes:
      shared: ``shared()`` returns the shared arrays *before* and *factors* of `Learning`.
      row: ``row(learning, records, t)`` returns the row of the records for step *t* of a run, and this step's stamp.
      open: ``open(learning, past, form, block, found, outs)`` fills traces and the records of earlier steps.
      prepare: ``prepare(learning, t, step)`` computes the factors of traces in step *t* of a run.
      arrive: ``arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch)`` delivers spikes, and
        returns the next *turn*, see `collect_round`. *cursor* is at the spikes that static projections (those without
        a rule) deliver in this step.
      depart: ``depart(learning, form, block, moment, found, outs)`` changes the incoming synapses of the neurons that
        fired; *found* is the number of these neurons.
      close: ``close(learning, past, form, block, steps, outs)`` writes traces, and the spikes of the last steps.
    """

    shared: Any
    row: Any
    open: Any
    prepare: Any
    arrive: Any
    depart: Any
    close: Any


def _arrival(projection: int, rule: RuleFunctions, is_joined: bool, ahead: int, wide: bool) -> Any:
    """Return the function *arrive* of one projection; see `Stages`.

    If *is_joined*, the function delivers the same spikes by the static projections, too.
    """
    parameters, on_pre, _, _ = rule
    static = delivery(wide)
    static_segment, add_static = static.segment, static.add

    @cuda.jit(device=True, forceinline=True)
    def read(learning, post, number, count, scratch):
        # All loads of a synapse, so that those of two synapses are under way at once.
        segment, entry = segment_and_entry(number, count, scratch)
        target, place = load(learning.entries, 2 * entry), load(learning.entries, 2 * entry + 1)
        other = np.uint64(post + target)
        return (
            segment, target, place, learning.weights[np.uint64(place)], learning.traces[other], learning.last[other]
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def change(learning, synapse, factor, step, p, minimum, maximum, ring, row, units):
        segment, target, place, weight, trace, last = synapse
        before_trace, before_age = learning.before
        weight = on_pre(
            weight, before_trace[np.uint64(segment)], before_age[np.uint64(segment)], trace * factor,
            age_of(last, step), p, minimum, maximum,
        )  # fmt: skip
        learning.weights[np.uint64(place)] = weight
        # The conversion rounds to the nearest integer; NaN becomes 0.
        cuda.atomic.add(ring, np.uint64(row + target), cuda.libdevice.float2int_rn(weight * units))

    @cuda.jit(device=True, forceinline=True)
    def arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch):
        at, step = places_of(learning.table, projection), moment.step
        before_trace, before_age = learning.before
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        tau_pre, tau_post = learning.numbers[projection, 0], learning.numbers[projection, 1]
        minimum, maximum = learning.numbers[projection, 2], learning.numbers[projection, 3]
        base = block.number * learning.stride
        low, high = max(block.first, at.first_target), min(block.stop, at.first_target + at.targets)
        since_pre, factor, growth = factors_of(learning, projection, 0, moment.t)
        since_post, post_factor, _ = factors_of(learning, projection, 1, moment.t)
        refer(learning.traces, base + at.pre, at.sources, tau_pre, since_pre)
        refer(learning.traces, base + at.post + low - at.first_target, high - low, tau_post, since_post)
        units = np.float32(1) / ins.scales[at.row]
        row, post = (moment.head + at.row) * form.width, base + at.post + block.first - at.first_target
        source_row, stamp = row_of(learning, outs.records, np.int32(moment.t - at.delay))
        records, lists, stamp = outs.records[source_row], outs.lists[source_row], np.int32(stamp)
        p = parameters(learning.words, learning.shared, moment.t)
        if not is_joined:
            cursor = first_cursor(form, records)
        is_left = True
        while True:
            cursor, is_left, turn, count, more = collect_round(
                form, cursor, is_left, turn, stamp, ins.edges, records, lists, scratch
            )
            if count > 0:
                low, length = np.int32(0), np.int32(0)
                static_low, static_length = np.int32(0), np.int32(0)
                spike = scratch[1][np.uint64(thread)]
                if is_joined and thread < count and moment.t >= ahead:
                    static_low, static_length = static_segment(form, block.number, ins.starts, spike)
                source = np.int64(spike) - at.first_source
                if thread < count and 0 <= source < at.sources:
                    segment = at.starts + source * form.blocks + block.number
                    low = np.int32(load(learning.starts, segment))
                    length = np.int32(load(learning.starts, segment + 1)) - low
                    other = np.uint64(base + at.pre + source)
                    trace = learning.traces[other]
                    before_trace[np.uint64(thread)] = trace * factor
                    before_age[np.uint64(thread)] = age_of(learning.last[other], step)
                    learning.traces[other] = trace + growth
                    learning.last[other] = step
                total = lay_out(low, length, count, scratch)
                number = np.int64(thread)
                while number < total:
                    one = read(learning, post, number, count, scratch)
                    following = read(learning, post, min(number + threads, total - 1), count, scratch)
                    change(learning, one, post_factor, step, p, minimum, maximum, ring, row, units)
                    if number + threads < total:
                        change(learning, following, post_factor, step, p, minimum, maximum, ring, row, units)
                    number += 2 * threads
                if is_joined:
                    cuda.syncthreads()
                    add_static(form, moment.behind, static_low, static_length, count, ins.entries, ring, scratch)
            # This barrier completes the sums, and keeps the shared arrays until all threads have read them.
            cuda.syncthreads()
            if not more:
                return turn

    return arrive


def _visit(on_post: Any, count: int) -> Any:
    """Return a function that changes *count* synapses; the distance between two is the number of threads.

    The function loads the values of one synapse, calls the function for the other synapses, and then writes the weight.
    So all loads come before the first write, and are under way at once.
    """

    @cuda.jit(device=True, forceinline=True)
    def nothing(learning, pre, synapse, stop, factor, step, trace, age, p, minimum, maximum):
        pass

    following = _visit(on_post, count - 1) if count > 1 else nothing

    @cuda.jit(device=True, forceinline=True)
    def visit(learning, pre, synapse, stop, factor, step, trace, age, p, minimum, maximum):
        inside = min(synapse, stop - 1)
        place = np.uint64(load(learning.incoming, 2 * inside + 1))
        other = np.uint64(pre + load(learning.incoming, 2 * inside))
        weight, before, last = learning.weights[place], learning.traces[other], learning.last[other]
        following(learning, pre, synapse + cuda.blockDim.x, stop, factor, step, trace, age, p, minimum, maximum)
        if synapse < stop:
            learning.weights[place] = on_post(
                weight, before * factor, age_of(last, step), trace, age, p, minimum, maximum
            )

    return visit


def _departure(number: int, rule: RuleFunctions) -> Any:
    """Return the function *depart* of one projection; see `Stages`."""
    parameters, _, on_post, _ = rule

    visit = _visit(on_post, _TOGETHER)

    @cuda.jit(device=True, forceinline=True)
    def depart(learning, form, block, moment, found, outs):
        if found == 0:
            return
        at, step = places_of(learning.table, number), moment.step
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        minimum, maximum = learning.numbers[number, 2], learning.numbers[number, 3]
        base = block.number * learning.stride
        _, factor, _ = factors_of(learning, number, 0, moment.t)
        _, post_factor, growth = factors_of(learning, number, 1, moment.t)
        p = parameters(learning.words, learning.shared, moment.t)
        for k in range(found):
            target = np.int64(spike_of(form, block, outs, moment.row, k)) - at.first_target
            if 0 <= target < at.targets:
                own = np.uint64(base + at.post + target)
                trace, age = learning.traces[own] * post_factor, age_of(learning.last[own], step)
                start = np.int64(load(learning.incoming_starts, at.incoming + target))
                stop = np.int64(load(learning.incoming_starts, at.incoming + target + 1))
                synapse = start + thread
                while synapse < stop:
                    visit(learning, base + at.pre, synapse, stop, factor, step, trace, age, p, minimum, maximum)
                    synapse += _TOGETHER * threads
        # This barrier lets all threads read the traces of the targets above before they are changed below.
        cuda.syncthreads()
        spike = np.int64(thread)
        while spike < found:
            target = np.int64(spike_of(form, block, outs, moment.row, spike)) - at.first_target
            if 0 <= target < at.targets:
                own = np.uint64(base + at.post + target)
                learning.traces[own] += growth
                learning.last[own] = step
            spike += threads
        # This barrier completes the changes before other threads read these traces in the next step.
        cuda.syncthreads()

    return depart


def _in_turn(rules: tuple[RuleFunctions, ...], joined: int | None, ahead: int, wide: bool) -> tuple[Any, Any]:
    """Return the functions *arrive* and *depart* of several projections."""
    number = len(rules) - 1
    own_arrive = _arrival(number, rules[-1], number == joined, ahead, wide)
    own_depart = _departure(number, rules[-1])
    if number == 0:
        return own_arrive, own_depart
    rest_arrive, rest_depart = _in_turn(rules[:-1], joined, ahead, wide)

    @cuda.jit(device=True, forceinline=True)
    def arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch):
        turn = rest_arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch)
        return own_arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch)

    @cuda.jit(device=True, forceinline=True)
    def depart(learning, form, block, moment, found, outs):
        rest_depart(learning, form, block, moment, found, outs)
        own_depart(learning, form, block, moment, found, outs)

    return arrive, depart


def _nothing() -> Stages:
    """Return the functions for a network without plastic projections; its records are those of two steps."""

    @cuda.jit(device=True, inline="always")
    def shared():
        return None, None  # numba-cuda 0.30 cannot describe a tuple of empty tuples to a debugger

    @cuda.jit(device=True, forceinline=True)
    def row(learning, records, t):
        return t & 1, t + 1

    @cuda.jit(device=True, forceinline=True)
    def begin(learning, past, form, block, found, outs):
        pass

    @cuda.jit(device=True, forceinline=True)
    def prepare(learning, t, step):
        pass

    @cuda.jit(device=True, forceinline=True)
    def arrive(learning, form, block, moment, cursor, turn, ring, ins, outs, scratch):
        return turn

    @cuda.jit(device=True, forceinline=True)
    def depart(learning, form, block, moment, found, outs):
        pass

    @cuda.jit(device=True, forceinline=True)
    def close(learning, past, form, block, steps, outs):
        pass

    return Stages(shared, row, begin, prepare, arrive, depart, close)


@functools.lru_cache(KEPT)
def stages(rules: tuple[RuleFunctions, ...], joined: int | None, ahead: int, wide: bool) -> Stages:
    """Return the device functions of plastic projections with these rules; see `simulation` for the arguments."""
    if not rules:
        return _nothing()
    arrive, depart = _in_turn(rules, joined, ahead, wide)
    return Stages(shared_arrays(len(rules)), row_of, open_past, set_factors, arrive, depart, close_past)
