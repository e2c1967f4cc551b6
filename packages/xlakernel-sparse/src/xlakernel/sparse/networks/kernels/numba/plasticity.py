"""Plastic projections, with weights that a rule changes, on the CPU.

A synapse belongs to the block of its target. A trace is a decaying sum over a neuron's earlier spikes. One thread
updates the traces of all sources before blocks are computed, and each block updates the traces of its own targets. So
no two threads write the same number.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ....kernels.numba.helpers.prefetch import prefetch_for_writing
from ...model.fields import KEPT
from ...model.plastic_projections import Places
from ...model.rules import FORGOTTEN, LONGEST_PERIOD, PERIOD, RuleFunctions

#: The distance, in synapses, from the weight that is changed to the weight that is prefetched.
_AHEAD = np.uint64(16)


class Learning(NamedTuple):
    """The arrays of plastic projections: those of the kernel, and those of the present step.

    Attributes:
      table: places of the projections' arrays.
      starts, entries, incoming_starts, incoming, numbers, words, shared: those of `run_inputs`.
      weights, traces, last: the weights, traces and steps of last spikes that a run changes.
      ring, ring_counts: the spikes of the last steps, and their number in each step.
      arriving, before: for each spike that arrives in this step, its source, and the source's trace and age before this
        spike. The spikes of a projection begin at the place of its sources' traces.
      counts: the number of arriving spikes of each projection.
      factors: for each projection, the factors from stored traces to traces, of its sources and of its targets, and
        what a spike of a target adds to a stored trace.
    """

    table: Any
    starts: Any
    entries: Any
    incoming_starts: Any
    incoming: Any
    numbers: Any
    words: Any
    shared: Any
    weights: Any
    traces: Any
    last: Any
    ring: Any
    ring_counts: Any
    arriving: Any
    before: Any
    counts: Any
    factors: Any


class Stages(NamedTuple):
    """Functions of all plastic projections: three that each step calls in this order, and a check after the last step.

    ``begin(learning, step)`` updates the traces of sources. ``arrive(learning, form, block, first, t, step, sums, at,
    scales)`` delivers spikes to a block. ``depart(learning, first, found, listed, t, step)`` changes the incoming
    synapses of the neurons that fired. ``check(learning)`` raises an error if a weight is NaN.
    """

    begin: Any
    arrive: Any
    depart: Any
    check: Any


@njit
def _places(table, number):
    row = table[number]
    return Places(
        row[0], row[1], row[2], row[3], row[4], row[5], np.int64(row[6]), np.int64(row[7]), row[8], row[9], row[10],
        row[11],
    )  # fmt: skip


@njit
def _phase(tau, step):
    """Return the steps since the last multiple of the traces' period, and this period."""
    period = np.int64(min(max(np.float32(PERIOD) * tau, np.float32(1)), np.float32(LONGEST_PERIOD)))
    return np.float32(np.int64(step) % period), np.float32(period)


@njit
def _age(last, step):
    return np.float32(np.inf) if last < 0 else np.float32(np.int64(step) - last)


@njit
def _begin_traces(traces, first, count, tau, step):
    """Multiply stored traces by the decay of a period if this step is a multiple of the period."""
    elapsed, period = _phase(tau, step)
    if elapsed == 0:
        factor = np.float32(np.exp(-period / tau))
        for i in range(first, first + count):
            value = traces[i] * factor
            traces[i] = value if value >= np.float32(FORGOTTEN) else np.float32(0)


@njit
def _begin(learning, number, step):
    at = _places(learning.table, number)
    tau_pre, tau_post = learning.numbers[number, 0], learning.numbers[number, 1]
    _begin_traces(learning.traces, at.pre, at.sources, tau_pre, step)
    _begin_traces(learning.traces, at.post, at.targets, tau_post, step)
    since_pre, since_post = _phase(tau_pre, step)[0], _phase(tau_post, step)[0]
    factor, growth = np.float32(np.exp(-since_pre / tau_pre)), np.float32(np.exp(since_pre / tau_pre))
    learning.factors[number, 0] = factor
    learning.factors[number, 1] = np.float32(np.exp(-since_post / tau_post))
    learning.factors[number, 2] = np.float32(np.exp(since_post / tau_post))
    row = (step - at.delay) % learning.ring.shape[0]
    count = 0
    for k in range(learning.ring_counts[row]):
        source = np.int64(learning.ring[row, k]) - at.first_source
        if 0 <= source < at.sources:
            place = at.pre + source
            learning.arriving[at.pre + count] = source
            learning.before[0, at.pre + count] = learning.traces[place] * factor
            learning.before[1, at.pre + count] = _age(learning.last[place], step)
            learning.traces[place] += growth
            learning.last[place] = step
            count += 1
    learning.counts[number] = count


def _projection(number: int, rule: RuleFunctions) -> tuple[Any, Any]:
    """Return the functions *arrive* and *depart* of one projection; see `Stages`."""
    parameters, on_pre, on_post, _ = rule

    @njit
    def arrive(learning, form, block, first, t, step, sums, at, scales):
        places = _places(learning.table, number)
        if learning.counts[number] == 0:
            return
        entries, weights, traces, last = learning.entries, learning.weights, learning.traces, learning.last
        p = parameters(learning.words, learning.shared, t)
        minimum, maximum = learning.numbers[number, 2], learning.numbers[number, 3]
        factor, units = learning.factors[number, 1], np.float32(1) / scales[places.row]
        post, row = places.post + np.int64(first) - places.first_target, at + places.row * form.width
        for k in range(places.pre, places.pre + learning.counts[number]):
            segment = np.uint64(places.starts + np.int64(learning.arriving[k]) * form.segments + block)
            trace, age = learning.before[0, k], learning.before[1, k]
            for entry in range(np.int64(learning.starts[segment]), np.int64(learning.starts[segment + np.uint64(1)])):
                target, place = entries[np.uint64(2 * entry)], np.uint64(entries[np.uint64(2 * entry + 1)])
                other = np.uint64(post + target)
                weight = on_pre(
                    weights[place], trace, age, traces[other] * factor, _age(last[other], step), p, minimum, maximum
                )
                weights[place] = weight
                # NaN is not equal to itself, and adds 0.
                sums[np.uint64(row + target)] += np.int32(np.rint(weight * units)) if weight == weight else np.int32(0)

    @njit
    def depart(learning, first, found, listed, t, step):
        places = _places(learning.table, number)
        incoming, weights, traces, last = learning.incoming, learning.weights, learning.traces, learning.last
        minimum, maximum = learning.numbers[number, 2], learning.numbers[number, 3]
        factor, other_factor = learning.factors[number, 0], learning.factors[number, 1]
        for k in range(first, first + found):
            target = np.int64(listed[k]) - places.first_target
            if 0 <= target < places.targets:
                p = parameters(learning.words, learning.shared, t)
                own = places.post + target
                trace, age = traces[own] * other_factor, _age(last[own], step)
                start = np.int64(learning.incoming_starts[places.incoming + target])
                stop = np.int64(learning.incoming_starts[places.incoming + target + 1])
                for synapse in range(np.uint64(2 * start), np.uint64(2 * stop), np.uint64(2)):
                    if synapse + np.uint64(2) * _AHEAD < np.uint64(2 * stop):
                        ahead = incoming[synapse + np.uint64(2) * _AHEAD + np.uint64(1)]
                        prefetch_for_writing(weights, np.uint64(ahead))
                    other, place = (
                        np.uint64(places.pre + incoming[synapse]),
                        np.uint64(incoming[synapse + np.uint64(1)]),
                    )
                    weights[place] = on_post(
                        weights[place], traces[other] * factor, _age(last[other], step), trace, age, p, minimum, maximum
                    )
                traces[own] += learning.factors[number, 2]
                last[own] = step

    return arrive, depart


def _check(projection: int, number: int) -> Any:
    message = (
        f"Network.run: the rule of projection {projection} returned NaN. Check on_pre, on_post and the parameters in "
        "plasticity."
    )

    @njit
    def check(learning):
        places = _places(learning.table, number)
        for k in range(places.weights, places.weights + places.room):
            if np.isnan(learning.weights[k]):
                raise ValueError(message)

    return check


def _nothing() -> Stages:
    @njit
    def begin(learning, step):
        pass

    @njit
    def arrive(learning, form, block, first, t, step, sums, at, scales):
        pass

    @njit
    def depart(learning, first, found, listed, t, step):
        pass

    @njit
    def check(learning):
        pass

    return Stages(begin, arrive, depart, check)


@functools.lru_cache(KEPT)
def stages(rules: tuple[tuple[int, RuleFunctions], ...]) -> Stages:
    """Return the functions of plastic projections, each given by its number in the network and its rule's functions."""
    if not rules:
        return _nothing()
    rest = stages(rules[:-1])
    number = len(rules) - 1
    own_arrive, own_depart = _projection(number, rules[-1][1])
    own_check = _check(rules[-1][0], number)

    @njit
    def begin(learning, step):
        rest.begin(learning, step)
        _begin(learning, number, step)

    @njit
    def arrive(learning, form, block, first, t, step, sums, at, scales):
        rest.arrive(learning, form, block, first, t, step, sums, at, scales)
        own_arrive(learning, form, block, first, t, step, sums, at, scales)

    @njit
    def depart(learning, first, found, listed, t, step):
        rest.depart(learning, first, found, listed, t, step)
        own_depart(learning, first, found, listed, t, step)

    @njit
    def check(learning):
        rest.check(learning)
        own_check(learning)

    return Stages(begin, arrive, depart, check)


@njit
def note_spikes(ring, ring_counts, step, spikes, count):
    """Write the spikes of a step into the ring of the last steps."""
    if ring.shape[0] > 0:
        row = step % ring.shape[0]
        ring_counts[row] = count
        for k in range(count):
            ring[row, k] = spikes[k]


@njit
def read_fired(fired, ring, ring_counts, step):
    """Fill the ring with the spikes of the steps before *step*."""
    for ago in range(fired.shape[0]):
        row, count = (step - 1 - ago) % ring.shape[0], 0
        for i in range(fired.shape[1]):
            if fired[ago, i] != 0:
                ring[row, count] = i
                count += 1
        ring_counts[row] = count


@njit
def write_fired(fired, ring, ring_counts, step):
    """Write the spikes of the steps before *step* into *fired*; row 0 is the latest step."""
    for ago in range(fired.shape[0]):
        row = (step - 1 - ago) % ring.shape[0]
        for i in range(fired.shape[1]):
            fired[ago, i] = 0
        for k in range(ring_counts[row]):
            fired[ago, ring[row, k]] = 1
