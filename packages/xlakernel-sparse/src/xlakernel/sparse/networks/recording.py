"""`Record`: what a run writes down, and `Recording`: what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from xlakernel.core.errors import ArgumentError

from ..operators.arguments import as_integer
from .populations import ALONE, Part


class Trace(NamedTuple):
    """State variables of some neurons, recorded at regular intervals.

    Args:
      variables: names of fields of the state.
      neurons: neurons of the population, integers ``(count,)``.
      every: steps from one recorded value to the next, at least 1; the first is after this many steps.
      population: the population's name.
    """

    variables: Sequence[str]
    neurons: Any
    every: int = 1
    population: str = ALONE


class Record(NamedTuple):
    """What a run records.

    Args:
      counts: True for the spikes of each population in each step; or the group of each neuron, integers ``(neurons,)``,
        for those of groups, with -1 for neurons in no group.
      spikes: the room for spikes: the number of those that are recorded one by one.
      trace: state variables of some neurons.
    """

    counts: Any = False
    spikes: int = 0
    trace: Trace | None = None


class Spikes(NamedTuple):
    """The first spikes of a run, in order of step and neuron.

    Attributes:
      step: the step of each spike, int32 ``(room,)``; -1 behind the last one.
      neuron: the neuron of each spike among all of the network, int32 ``(room,)``; -1 behind the last one.
      total: the number of spikes of the run, int32; more than the room if some were not recorded. It wraps at 2**31.
    """

    step: jax.Array
    neuron: jax.Array
    total: jax.Array


class Recording(NamedTuple):
    """What a run recorded.

    Attributes:
      counts: the spikes of each group in each step, int32 ``(steps, groups)``; no groups unless asked for.
      spikes: the first spikes.
      trace: each variable, ``(steps // every, neurons)``.
    """

    counts: jax.Array
    spikes: Spikes
    trace: dict[str, jax.Array]


class Probes(NamedTuple):
    """A checked `Trace`: its neurons in the network, and the fields that it records."""

    neurons: tuple[int, ...]
    variables: tuple[str, ...]
    part: int
    every: int


class Plan(NamedTuple):
    """A checked `Record`."""

    groups: np.ndarray
    group_count: int
    room: int
    probes: Probes


def check_record(record: Record | None, parts: Sequence[Part]) -> Plan:
    """Return a checked record.

    Raises:
      ArgumentError: if it is invalid.
    """
    record = Record() if record is None else record
    if not isinstance(record, Record):
        raise ArgumentError(f"Network.run: record is a {type(record).__name__}; allowed: a Record, or None.")
    room = as_integer(record.spikes)
    if room is None or room < 0:
        raise ArgumentError(f"Network.run: record.spikes is {record.spikes!r}; allowed: an integer of at least 0.")
    groups, count = _groups(record.counts, parts)
    return Plan(groups, count, room, _probes(record.trace, parts))


def _groups(counts: bool | ArrayLike, parts: Sequence[Part]) -> tuple[np.ndarray, int]:
    size = parts[-1].first + parts[-1].size
    if counts is False:
        return np.full(size, -1, np.int32), 0
    if counts is True:
        return np.repeat(np.arange(len(parts), dtype=np.int32), [part.size for part in parts]), len(parts)
    if isinstance(counts, jax.core.Tracer):
        raise ArgumentError("Network.run: record.counts is traced; allowed: groups that are known, a NumPy array.")
    groups = np.asarray(counts)
    if groups.shape != (size,) or groups.dtype.kind not in "iu" or groups.min() < -1:
        raise ArgumentError(
            f"Network.run: record.counts is of shape {groups.shape} and dtype {groups.dtype}; allowed: True, False, or "
            f"the group of each of the {size} neurons, integers of at least -1."
        )
    return groups.astype(np.int32), int(groups.max()) + 1


def _probes(trace: Trace | None, parts: Sequence[Part]) -> Probes:
    if trace is None:
        return Probes((), (), 0, 0)
    names = [part.name for part in parts]
    if trace.population not in names:
        raise ArgumentError(f"Network.run: a trace of population {trace.population!r}; allowed: one of {names}.")
    index = names.index(trace.population)
    part = parts[index]
    fields = [field.name for field in part.state.fields]
    variables = (trace.variables,) if isinstance(trace.variables, str) else tuple(trace.variables)
    if not variables or set(variables) - set(fields):
        raise ArgumentError(f"Network.run: a trace of {variables}; allowed: variables of the state, {fields}.")
    every = as_integer(trace.every)
    if every is None or every < 1:
        raise ArgumentError(f"Network.run: a trace every {trace.every!r} steps; allowed: an integer of at least 1.")
    neurons = np.asarray(trace.neurons)
    if neurons.ndim != 1 or neurons.dtype.kind not in "iu" or np.any((neurons < 0) | (neurons >= part.size)):
        raise ArgumentError(
            f"Network.run: the neurons of a trace are {trace.neurons!r}; allowed: integers from 0 to {part.size - 1}."
        )
    return Probes(tuple((neurons + part.first).tolist()), variables, index, every)
