"""A run of a network in plain JAX, step by step, for every platform: the reference for the other kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core.errors import ArgumentError

from ..layout import Layout
from ..model.fields import Field, Fields, is_random, pack, read_field, unpack
from ..model.plastic_projections import Plastic
from ..model.populations import Part, arrivals_type
from ..random.generator import Generator
from ..reference import draw
from .reference_plasticity import Learning, arrive, check_references, coordinates, depart


def run(
    outs: Sequence[Any],
    *,
    parts: tuple[Part, ...],
    plastic: tuple[Plastic, ...],
    layout: Layout,
    every: int,
    is_random: bool,
) -> Callable[..., Any]:
    """Return a function that makes a run, with the inputs and results of the kernel in `kernels.numba.simulation`."""
    missing = [part.function.py_func.__qualname__ for part in parts if part.reference is None]
    if missing:
        raise ArgumentError(
            f"Network.run: the backend 'jax' needs Population(reference=...), a function of JAX arrays, for "
            f"{', '.join(missing)}."
        )
    check_references(plastic)
    receptors, size = len(layout.receptors), layout.size
    room = outs[3].shape[0]

    def simulate(
        starts: jax.Array,
        entries: jax.Array,
        edges: jax.Array,
        owners: jax.Array,
        scales: jax.Array,
        pending: jax.Array,
        state: jax.Array,
        parameters: jax.Array,
        shared: jax.Array,
        series: jax.Array,
        shared_series: jax.Array,
        key: jax.Array,
        first_step: jax.Array,
        groups: jax.Array,
        probes: jax.Array,
        probe_words: jax.Array,
        table: jax.Array,
        plastic_starts: jax.Array,
        plastic_entries: jax.Array,
        incoming_starts: jax.Array,
        incoming: jax.Array,
        numbers: jax.Array,
        rule_words: jax.Array,
        rule_shared: jax.Array,
        weights: jax.Array,
        spike_traces: jax.Array,
        last: jax.Array,
        has_fired: jax.Array,
    ) -> Any:
        source, row, target, weight = _coordinates(layout, starts, entries, edges)
        synapses = coordinates(plastic, layout.blocks, numbers, incoming_starts, incoming, scales)

        def step(carry: Any, given: Any) -> Any:
            pending, state, number, written, learning = carry
            inputs, shared_inputs, of_rules = given
            learning, pending = arrive(synapses, learning, pending, number, of_rules, rule_shared)
            arrived = pending[:receptors].astype(jnp.float32) * scales[:, None]
            following, fired = [], []
            for part in parts:
                own = slice(part.first, part.first + part.size)
                neuron = jnp.arange(part.first, part.first + part.size, dtype=jnp.uint32)
                rng = Generator(key[0], key[1], neuron, number.astype(jnp.uint32))
                arguments = [
                    unpack(part.state, state[: part.state.words, own]),
                    arrivals_type(layout.receptors)(*arrived[:, own]),
                    _values(part.parameters, parameters[:, own], shared),
                    rng if is_random else None,
                ]
                if part.inputs.fields:
                    values = _values(part.noise, parameters[:, own], shared)
                    noise = draw(part.inputs, part.noise, values, rng)
                    arguments.append(_values(part.inputs, inputs[:, own], shared_inputs, noise))
                values, has_fired = part.reference(*arguments)  # type: ignore[misc]
                values = jax.tree.map(lambda value, part=part: jnp.broadcast_to(value, (part.size,)), values)
                words = pack(part.state, values, part.size)[0]
                following.append(jnp.pad(words, [(0, state.shape[0] - words.shape[0]), (0, 0)]))
                fired.append(jnp.broadcast_to(has_fired, (part.size,)))
            state, spikes = jnp.concatenate(following, axis=-1), jnp.concatenate(fired)
            learning = depart(synapses, learning, spikes, number, of_rules, rule_shared)
            pending = jnp.concatenate([pending[receptors:], jnp.zeros((receptors, size), jnp.int32)])
            pending = pending.at[row, target].add(jnp.where(spikes[source], weight, 0))
            counts = (
                jnp.zeros(outs[2].shape[1], jnp.int32)
                .at[jnp.where(groups < 0, outs[2].shape[1], groups)]
                .add(spikes.astype(jnp.int32), mode="drop")
            )
            count, steps, neurons = written
            at = jnp.where(spikes & (count < room), count + jnp.cumsum(spikes) - 1, room)
            steps = steps.at[at].set(number, mode="drop")
            neurons = neurons.at[at].set(jnp.arange(size, dtype=jnp.int32), mode="drop")
            more = jnp.minimum(jnp.sum(spikes, dtype=jnp.int32), jnp.iinfo(jnp.int32).max - count)
            written = count + more, steps, neurons
            return (pending, state, number + 1, written, learning), (counts, state[probe_words, probes])

        nothing = jnp.full(room, -1, jnp.int32)
        learning = Learning(weights, spike_traces, last, has_fired)
        start = pending, state, first_step[0], (jnp.int32(0), nothing, nothing), learning
        end, (counts, traces) = jax.lax.scan(step, start, (series, shared_series, rule_words.T))
        pending, state, _, (total, steps, neurons), learning = end
        rows = jnp.arange(traces.shape[0] // every) * every - (first_step[0] + 1) % -every if every else slice(0)
        recorded = traces[rows]
        return pending, state, counts, steps, neurons, total[None], recorded, *learning

    return simulate


def _coordinates(layout: Layout, starts: jax.Array, entries: jax.Array, edges: jax.Array) -> tuple[jax.Array, ...]:
    """Return the source, row of sums, target and weight of each entry; padding has weights of 0."""
    words = entries.reshape(-1, 2 if layout.wide else 1)
    number = jnp.arange(words.shape[0], dtype=jnp.uint32)
    segment = jnp.searchsorted(starts, number, side="right").astype(jnp.int32) - 1
    segment = jnp.minimum(segment, starts.size - 2)
    place = words[:, 0]
    weight = words[:, 1] if layout.wide else place >> layout.target_bits + layout.row_bits
    row = place >> layout.target_bits & (1 << layout.row_bits) - 1
    target = edges[segment % layout.segments] + (place & (1 << layout.target_bits) - 1)
    return segment // layout.segments, row, target, jnp.where(number < starts[-1], weight, 0)


def _values(fields: Fields, words: jax.Array, shared: jax.Array, noise: Sequence[jax.Array] = ()) -> Any:
    """Return the named tuple of a population's values: numbers for shared fields, and arrays for the others."""

    def value(field: Field) -> jax.Array:
        if is_random(field):
            return noise[field.word]
        return read_field(field, shared)[0] if field.shared else read_field(field, words)

    return fields.kind(*map(value, fields.fields))
