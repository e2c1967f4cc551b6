"""Plastic projections (with weights that a rule changes) in plain JAX: the reference for the other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlakernel.core.errors import ArgumentError

from ..model.fields import Fields, read_field
from ..model.plastic_projections import Places, Plastic, places
from ..model.rules import FORGOTTEN, LONGEST_PERIOD, PERIOD, History


class Learning(NamedTuple):
    """The state of plastic projections: weights, traces, steps of the last spikes, and the spikes of the last steps."""

    weights: jax.Array
    traces: jax.Array
    last: jax.Array
    fired: jax.Array


class Synapses(NamedTuple):
    """A plastic projection in a run: each synapse's source, target and place of the weight, and the rule's numbers."""

    of: Plastic
    at: Places
    source: jax.Array
    target: jax.Array
    place: jax.Array
    numbers: jax.Array
    scale: jax.Array


def check_references(plastic: Sequence[Plastic]) -> None:
    """Raise an error if a rule has no functions in plain JAX."""
    missing = [one.number for one in plastic if one.reference is None]
    if missing:
        raise ArgumentError(
            "Network.run: the backend 'jax' needs Rule(reference=(on_pre, on_post)), functions of JAX arrays, for "
            f"projections {missing}."
        )


def coordinates(
    plastic: Sequence[Plastic],
    blocks: int,
    numbers: jax.Array,
    incoming_starts: jax.Array,
    incoming: jax.Array,
    scales: jax.Array,
) -> list[Synapses]:
    """Return the synapses of each projection."""
    pairs, found = incoming.reshape(-1, 2), []
    for k, (one, at) in enumerate(zip(plastic, places(plastic, blocks), strict=True)):
        starts = incoming_starts[at.incoming : at.incoming + at.targets + 1]
        number = at.weights + jnp.arange(at.room)
        target = jnp.searchsorted(starts, number, side="right").astype(jnp.int32) - 1
        own = pairs[at.weights : at.weights + at.room]
        # Padding has targets after the last one, and gets a place that is no weight's.
        place = jnp.where(target < at.targets, own[:, 1], incoming.size)
        found.append(Synapses(one, at, own[:, 0], target, place, numbers[k], scales[one.row]))
    return found


def _phase(tau: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the factor of stored traces at a step's beginning, that from them to traces, and what a spike adds."""
    period = jnp.clip(PERIOD * tau, 1, LONGEST_PERIOD).astype(jnp.int32)
    elapsed = (step % period).astype(jnp.float32)
    again = jnp.where(elapsed == 0, jnp.exp(-period.astype(jnp.float32) / tau), 1)
    return again, jnp.exp(-elapsed / tau), jnp.exp(elapsed / tau)


def _history(traces: jax.Array, last: jax.Array, step: jax.Array, factor: jax.Array) -> History:
    age = jnp.where(last < 0, jnp.inf, (step - last).astype(jnp.float32))
    return History(traces * factor, age)


def _values(fields: Fields, words: jax.Array, shared: jax.Array) -> Any:
    """Return the named tuple of a rule's parameters in one step; *words* are those of this step."""
    return fields.kind(
        *(
            read_field(field, shared)[0] if field.shared else read_field(field, words[:, None])[0]
            for field in fields.fields
        )
    )


def _called(synapses: Synapses, which: int, state: Learning, pre: History, post: History, p: Any, on: jax.Array) -> Any:
    """Call a rule for synapses that are *on*; return the weights of the projection, and those of all projections."""
    weight = state.weights.at[synapses.place].get(mode="fill", fill_value=0)
    of_source, of_target = (
        History(*(field.at[index].get(mode="fill", fill_value=0) for field in history))
        for history, index in ((pre, synapses.source), (post, synapses.target))
    )
    # `check_references` has excluded None.
    new = synapses.of.reference[which](weight, of_source, of_target, p)  # type: ignore[index]
    limited = jnp.clip(jnp.asarray(new).astype(jnp.float32), synapses.numbers[2], synapses.numbers[3])
    new = jnp.where(on, limited, weight)
    return new, state.weights.at[synapses.place].set(new, mode="drop")


def arrive(
    synapses: Sequence[Synapses],
    state: Learning,
    pending: jax.Array,
    step: jax.Array,
    words: jax.Array,
    shared: jax.Array,
) -> tuple[Learning, jax.Array]:
    """Deliver the spikes that arrive in a step, and return the state and the pending sums."""
    for one in synapses:
        at = one.at
        pre, post = slice(at.pre, at.pre + at.sources), slice(at.post, at.post + at.targets)
        on_source = state.fired[at.delay - 1, at.first_source : at.first_source + at.sources] != 0
        traces, histories = state.traces, []
        for tau, own in zip(one.numbers[:2], (pre, post), strict=True):
            again, factor, _ = _phase(tau, step)
            kept = jnp.where((again < 1) & (traces[own] * again < FORGOTTEN), 0, traces[own] * again)
            traces = traces.at[own].set(kept)
            histories.append(_history(kept, state.last[own], step, factor))
        on = on_source.at[one.source].get(mode="fill", fill_value=False) & (one.target < at.targets)
        p = _values(one.of.parameters, words, shared)
        new, weights = _called(one, 0, state, histories[0], histories[1], p, on)
        units = jnp.where(on & ~jnp.isnan(new), jnp.rint(new / one.scale), 0).astype(jnp.int32)
        pending = pending.at[at.row, at.first_target + one.target].add(units, mode="drop")
        traces = traces.at[pre].add(jnp.where(on_source, _phase(one.numbers[0], step)[2], 0))
        last = state.last.at[pre].set(jnp.where(on_source, step, state.last[pre]))
        state = state._replace(weights=weights, traces=traces, last=last)
    return state, pending


def depart(
    synapses: Sequence[Synapses],
    state: Learning,
    fired: jax.Array,
    step: jax.Array,
    words: jax.Array,
    shared: jax.Array,
) -> Learning:
    """Return the state after the rules were called for the neurons that fire."""
    for one in synapses:
        at = one.at
        pre, post = slice(at.pre, at.pre + at.sources), slice(at.post, at.post + at.targets)
        on_target = fired[at.first_target : at.first_target + at.targets]
        factors = [_phase(tau, step)[1:] for tau in one.numbers[:2]]
        histories = [
            _history(state.traces[own], state.last[own], step, factor)
            for own, (factor, _) in zip((pre, post), factors, strict=True)
        ]
        on = on_target.at[one.target].get(mode="fill", fill_value=False)
        p = _values(one.of.parameters, words, shared)
        _, weights = _called(one, 1, state, histories[0], histories[1], p, on)
        traces = state.traces.at[post].add(jnp.where(on_target, factors[1][1], 0))
        last = state.last.at[post].set(jnp.where(on_target, step, state.last[post]))
        state = state._replace(weights=weights, traces=traces, last=last)
    if state.fired.shape[0]:
        state = state._replace(fired=jnp.concatenate([fired[None].astype(jnp.int32), state.fired[:-1]]))
    return state
