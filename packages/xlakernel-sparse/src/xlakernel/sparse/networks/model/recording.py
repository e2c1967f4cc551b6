"""`Record`, the request for what a run records, and `Recording`, the recorded arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from xlakernel.core.errors import ArgumentError

from ...operators.arguments import as_integer
from .fields import Field, read_field, words_of
from .populations import ALONE, Part


class Trace(NamedTuple):
    """State variables of some neurons, recorded at regular intervals.

    Args:
      variables: names of fields of the state.
      neurons: neurons of the population, integers ``(count,)``.
      every: the number of steps from one recorded value to the next, a divisor of the run's steps. Values are recorded
        after *every*, ``2 * every``, ... steps, counted from the network's first step. So the pieces of a run record
        the same as the whole run. A run stores all traces at the greatest common divisor of their *every*.
    """

    variables: Sequence[str]
    neurons: Any
    every: int = 1


class Record(NamedTuple):
    """What a run records.

    Args:
      counts: True to count the spikes of each population in each step. To count those of groups of neurons instead,
        the group of each neuron, integers ``(neurons,)``, with -1 for neurons in no group.
      spikes: the room for spikes, that is, the most spikes that are recorded one by one.
      trace: state variables of some neurons; with several populations, a dictionary of `Trace` by population.
    """

    counts: Any = False
    spikes: int = 0
    trace: Trace | Mapping[str, Trace] | None = None


class Spikes(NamedTuple):
    """The first spikes of a run, in order of step and neuron.

    Attributes:
      step: the step of each spike, counted from the network's first step, int32 ``(room,)``; -1 in unused places.
      neuron: the neuron of each spike, numbered in the network, int32 ``(room,)``; -1 in unused places.
      total: the number of spikes of the run, int32, at most 2**31 - 1. It is larger than the room if some spikes were
        not recorded.
    """

    step: jax.Array
    neuron: jax.Array
    total: jax.Array


class Recording(NamedTuple):
    """What a run recorded.

    Attributes:
      counts: the spikes of each group in each step, int32 ``(steps, groups)``; no groups without a request.
      spikes: the first spikes.
      trace: a dictionary of the variables, each ``(steps // every, neurons)``; with several populations, a
        dictionary of such dictionaries.
    """

    counts: jax.Array
    spikes: Spikes
    trace: dict[str, Any]


class Probe(NamedTuple):
    """A checked `Trace`: its population, its neurons in the network, and the fields that it records."""

    name: str
    neurons: np.ndarray
    fields: tuple[Field, ...]
    every: int

    @property
    def words(self) -> np.ndarray:
        """The places of the words of its fields, among the words of a neuron's state."""
        return np.array([field.word + k for field in self.fields for k in range(words_of(field))], np.int32)


class Plan(NamedTuple):
    """A checked `Record`."""

    groups: np.ndarray
    group_count: int
    room: int
    probes: tuple[Probe, ...]

    @property
    def every(self) -> int:
        """The number of steps from one recording of states by the kernel to the next, or 0 without any."""
        return math.gcd(*(probe.every for probe in self.probes))


def check_record(record: Record | None, parts: Sequence[Part], steps: int) -> Plan:
    """Return a checked record.

    Raises:
      ArgumentError: if the record is invalid.
    """
    record = Record() if record is None else record
    if not isinstance(record, Record):
        raise ArgumentError(f"Network.run: record is a {type(record).__name__}; allowed: a Record, or None.")
    room = as_integer(record.spikes)
    if room is None or room < 0:
        raise ArgumentError(f"Network.run: record.spikes is {record.spikes!r}; allowed: an integer of at least 0.")
    groups, count = _groups(record.counts, parts)
    return Plan(groups, count, room, _probes(record.trace, parts, steps))


def _groups(counts: bool | ArrayLike, parts: Sequence[Part]) -> tuple[np.ndarray, int]:
    size = parts[-1].first + parts[-1].size
    if counts is False:
        return np.full(size, -1, np.int32), 0
    if counts is True:
        return np.repeat(np.arange(len(parts), dtype=np.int32), [part.size for part in parts]), len(parts)
    if isinstance(counts, jax.core.Tracer):
        raise ArgumentError("Network.run: record.counts is traced; allowed: groups that are known, a NumPy array.")
    groups = np.asarray(counts)
    if groups.shape != (size,) or groups.dtype.kind not in "iu":
        raise ArgumentError(
            f"Network.run: record.counts is of shape {groups.shape} and dtype {groups.dtype}; allowed: True, False, or "
            f"the group of each of the {size} neurons, integers of at least -1."
        )
    least, most = int(groups.min()), int(groups.max())
    if least < -1 or most >= 2**31 - 1:
        raise ArgumentError(f"Network.run: record.counts has groups from {least} to {most}; allowed: -1 to 2**31 - 2.")
    return groups.astype(np.int32), int(groups.max()) + 1


def _probes(trace: Any, parts: Sequence[Part], steps: int) -> tuple[Probe, ...]:
    if trace is None:
        return ()
    by_name = {part.name: part for part in parts}
    traces = {ALONE: trace} if ALONE in by_name else trace
    allowed = "a Trace" if ALONE in by_name else f"a dictionary of Trace by population, {list(by_name)}"
    if not isinstance(traces, Mapping) or set(traces) - set(by_name):
        found = list(traces) if isinstance(traces, Mapping) else f"a {type(traces).__name__}"
        raise ArgumentError(f"Network.run: record.trace is {found}; allowed: {allowed}.")
    for one in traces.values():
        if not isinstance(one, Trace):
            raise ArgumentError(f"Network.run: record.trace is a {type(one).__name__}; allowed: {allowed}.")
    return tuple(_probe(one, by_name[name], steps) for name, one in traces.items())


def _probe(trace: Trace, part: Part, steps: int) -> Probe:
    fields = {field.name: field for field in part.state.fields}
    variables = (trace.variables,) if isinstance(trace.variables, str) else tuple(trace.variables)
    if not variables or set(variables) - set(fields):
        raise ArgumentError(f"Network.run: a trace of {variables}; allowed: variables of the state, {list(fields)}.")
    every = as_integer(trace.every)
    if every is None or every < 1:
        raise ArgumentError(f"Network.run: a trace every {trace.every!r} steps; allowed: an integer of at least 1.")
    if steps % every:
        raise ArgumentError(f"Network.run: a trace every {every} steps in {steps}; allowed: a divisor of the steps.")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trace.neurons)):
        raise ArgumentError(
            "Network.run: the neurons of a trace are traced; allowed: concrete integers. Make them with NumPy, or "
            "outside jax.jit."
        )
    neurons = np.asarray(trace.neurons)
    is_list = neurons.ndim == 1 and neurons.size > 0 and neurons.dtype.kind in "iu"
    if not is_list or np.any((neurons < 0) | (neurons >= part.size)):
        raise ArgumentError(
            f"Network.run: the neurons of a trace are {trace.neurons!r}; allowed: a list or an array, not empty, of "
            f"integers from 0 to {part.size - 1}."
        )
    return Probe(part.name, neurons.astype(np.int32) + part.first, tuple(fields[name] for name in variables), every)


def read_traces(plan: Plan, words: jax.Array, first_step: jax.Array) -> dict[str, Any]:
    """Return the traces from the kernel's words, an array ``(steps // plan.every, words of all probes)``."""
    found, first = {}, 0
    for probe in plan.probes:
        count = len(probe.words)
        own = words[:, first : first + count * len(probe.neurons)].reshape(-1, count, len(probe.neurons))
        first += count * len(probe.neurons)
        ratio = probe.every // plan.every
        if ratio > 1:
            # The first row is the state after ``(first_step // plan.every + 1) * plan.every`` steps.
            skipped = -(first_step // plan.every + 1) % ratio
            own = own[skipped + ratio * jnp.arange(own.shape[0] // ratio)]
        variables, word = {}, 0
        for field in probe.fields:
            variables[field.name] = read_field(field._replace(word=word), own)
            word += words_of(field)
        found[probe.name] = variables
    return found.get(ALONE, found)
