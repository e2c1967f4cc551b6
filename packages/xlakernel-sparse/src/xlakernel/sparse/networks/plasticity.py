"""Plastic projections (synapses whose weights change in a run): their tables, their state, and arrays of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError
from xlakernel.numba.fingerprints import fingerprint

from ..formats.matrices import CSR
from .entries import places_of, sort_entries
from .layout import Layout
from .model.fields import fields_of, pack
from .model.plastic_projections import Places, Plastic, places
from .model.projections import Synapses
from .model.rules import compile_rule

#: The weights of projections, by the number of the projection; None for a projection that is not plastic.
Weights = tuple[jax.Array | None, ...]


class Tables(NamedTuple):
    """The synapses of all plastic projections, one projection after the other.

    Attributes:
      starts: for each projection, the first entry of each source and block, uint32 ``(sources * blocks + 1,)``.
      entries: the target's place within its block and the place of the weight, int32 ``(2 * entries,)``.
      incoming_starts: for each projection, the first incoming synapse of each target, int32 ``(targets + 1,)``.
      incoming: the source, counted from the projection's first, and the place of the weight, int32 ``(2 * entries,)``.
      numbers: *tau_pre*, *tau_post*, *minimum* and *maximum* of each rule, float32 ``(projections, 4)``.
      weights: the initial weights of each projection, float32.
    """

    starts: jax.Array
    entries: jax.Array
    incoming_starts: jax.Array
    incoming: jax.Array
    numbers: jax.Array
    weights: tuple[jax.Array, ...]


class Past(NamedTuple):
    """Spikes on their way to plastic synapses, and traces (decaying sums over earlier spikes), for the next run.

    Attributes:
      fired: whether a neuron fired in the last steps, bool ``(longest delay, n)``; row 0 is the latest step.
      traces: for each projection, the traces of its sources and then of its targets, float32. They are stored without
        their decay since the last multiple of a period, see `model.rules`.
      last: the step of the last spike of each of these sources and targets, or -1, int32.
      taus: the time constants of the sources' and targets' traces of each projection, float32 ``(projections, 2)``.
    """

    fired: jax.Array
    traces: jax.Array
    last: jax.Array
    taus: jax.Array


def build_tables(layout: Layout, synapses: Sequence[Synapses]) -> tuple[tuple[Plastic, ...], Tables]:
    """Return a network's plastic projections, and their tables."""
    segments = sum(one.matrix.shape[0] * layout.blocks + 1 for one in synapses if one.rule is not None)
    if segments >= 2**31:
        raise ArgumentError(
            f"Network: the sources of plastic projections times {layout.blocks} blocks are {segments}; allowed: fewer "
            "than 2**31. Use fewer blocks."
        )
    plastic, columns = [], []
    offset = 0
    for number, one in enumerate(synapses):
        if one.rule is None:
            continue
        matrix, rule = one.matrix, one.rule
        functions = rule.on_pre, rule.on_post, rule.reference
        plastic.append(Plastic(number, *functions, one.sources, one.targets, int(one.delay), one.receptor, matrix.nnz))
        numbers = jnp.float32([rule.tau_pre, rule.tau_post, rule.minimum, rule.maximum])
        columns.append((*_order(layout, one, offset), numbers, matrix.data.astype(jnp.float32)))
        offset += matrix.nnz
    if offset >= 2**30:
        raise ArgumentError(f"Network: {offset} plastic synapses; allowed: fewer than 2**30.")
    if not columns:
        nothing = jnp.zeros(0, jnp.int32)
        numbers = jnp.zeros((0, 4), jnp.float32)
        return (), Tables(nothing.astype(jnp.uint32), nothing, nothing, nothing, numbers, ())
    *arrays, rows, weights = zip(*columns, strict=True)
    starts, entries, incoming_starts, incoming = map(jnp.concatenate, arrays)
    return tuple(plastic), Tables(starts, entries, incoming_starts, incoming, jnp.stack(rows), weights)


def _order(layout: Layout, one: Synapses, offset: int) -> tuple[jax.Array, ...]:
    """Return the first four `Tables` of a projection; its entries and weights are numbered from *offset*."""
    matrix = one.matrix
    place = jnp.arange(matrix.nnz, dtype=jnp.int32) + offset
    outs = (
        jax.ShapeDtypeStruct((matrix.shape[0] * layout.blocks + 1,), jnp.uint32),
        jax.ShapeDtypeStruct((2 * matrix.nnz,), jnp.int32),
    )
    starts, entries = sort_entries(
        places_of(layout),
        jnp.stack([jnp.zeros_like(place), place], axis=-1),
        matrix.indices,
        matrix.indptr,
        outs=outs,
        layout=layout._replace(wide=True),
        ranges=((0, one.targets[0]),),
    )
    by_target = CSR((place, matrix.indices, matrix.indptr), shape=matrix.shape, check=False).tocsc()
    incoming = jnp.stack([by_target.indices.astype(jnp.int32), by_target.data], axis=-1).reshape(-1)
    return starts + jnp.uint32(offset), entries, by_target.indptr.astype(jnp.int32) + offset, incoming


def depth_of(plastic: Sequence[Plastic]) -> int:
    """Return the longest delay of plastic projections, or 0 without any."""
    return max((one.delay for one in plastic), default=0)


def initial_state(plastic: Sequence[Plastic], tables: Tables, size: int) -> tuple[Weights | None, Past | None]:
    """Return the weights and the past of step 0."""
    if not plastic:
        return None, None
    spread = [jnp.broadcast_to(data, (one.room,)) for one, data in zip(plastic, tables.weights, strict=True)]
    weights = _by_projection(plastic, spread)
    fired, traces = _shapes_of_past(plastic, size)
    nothing = jnp.zeros(fired, bool), jnp.zeros(traces, jnp.float32), jnp.full(traces, -1, jnp.int32)
    return weights, Past(*nothing, tables.numbers[:, :2])


def _shapes_of_past(plastic: Sequence[Plastic], size: int) -> tuple[tuple[int, int], tuple[int]]:
    traces = sum(stop - first for one in plastic for first, stop in (one.sources, one.targets))
    return (depth_of(plastic), size), (traces,)


def check_state(plastic: Sequence[Plastic], tables: Tables, weights: Any, past: Any, size: int) -> None:
    """Raise an error unless the weights and the past are those of these projections."""
    numbers = [one.number for one in plastic]
    found: Any = None if weights is None else f"a {type(weights).__name__}"
    if isinstance(weights, tuple):
        found = [number for number, own in enumerate(weights) if own is not None]
    if found != (numbers or None) or isinstance(past, Past) != bool(plastic):
        raise ArgumentError(
            f"Network.run: the state has weights of projections {found}; allowed: {numbers or None}, and the past of "
            "these, as in the state from Network.initial."
        )
    if not plastic:
        return
    fired, traces = _shapes_of_past(plastic, size)
    for name, value, shape, dtype in (
        *((f"weights[{one.number}]", weights[one.number], (one.room,), jnp.float32) for one in plastic),
        ("past.fired", past.fired, fired, jnp.bool_),
        ("past.traces", past.traces, traces, jnp.float32),
        ("past.last", past.last, traces, jnp.int32),
        ("past.taus", past.taus, (len(plastic), 2), jnp.float32),
    ):
        if jnp.shape(value) != shape:
            raise ShapeError(f"Network.run: state.{name} has the shape {jnp.shape(value)}; allowed: {shape}.")
        if not hasattr(value, "dtype") or value.dtype != dtype:
            found = getattr(value, "dtype", type(value).__name__)
            raise DtypeError(f"Network.run: state.{name} is of {found}; allowed: an array of {jnp.dtype(dtype)}.")
    own = tables.numbers[:, :2]
    is_known = not any(isinstance(x, jax.core.Tracer) for x in (own, past.taus))
    if is_known and not np.array_equal(past.taus, own):
        raise ArgumentError(
            f"Network.run: the traces of the state have the time constants {np.asarray(past.taus).tolist()}; allowed: "
            f"those of the rules of this network, {np.asarray(own).tolist()}, tau_pre and tau_post of each projection."
        )


def check_parameters(plastic: Sequence[Plastic], given: Any, steps: int) -> tuple[tuple[Plastic, ...], list[Any]]:
    """Return the projections with the fields of their rules' parameters, and the parameters of each.

    Args:
      plastic: the projections.
      given: a named tuple of numbers or arrays ``(steps,)`` for all rules, or a dictionary of them by projection.
      steps: the number of steps.

    Raises:
      ArgumentError, ShapeError, DtypeError: if parameters are invalid.
      CompileError: if Numba cannot compile a rule for its parameters, or if a rule returns no real number.
    """
    numbers = [one.number for one in plastic]
    if not plastic and given is not None:
        raise ArgumentError("Network.run: plasticity is given; allowed: None, as no projection is plastic.")
    if isinstance(given, Mapping) and set(given) - set(numbers):
        raise ArgumentError(
            f"Network.run: plasticity is of projections {list(given)}; allowed: a dictionary by number of the plastic "
            f"ones, {numbers}."
        )
    found, values, word, shared = [], [], 0, 0
    for one in plastic:
        own = given.get(one.number) if isinstance(given, Mapping) else given
        what = f"projection {one.number}"
        fields = fields_of(f"Network.run: plasticity of {what}", own, steps, first=word, first_shared=shared)
        code = fingerprint((one.on_pre, one.on_post, one.reference))
        compile_rule(what, one.on_pre, one.on_post, fields, code)
        word, shared = word + fields.words, shared + fields.shared
        found.append(one._replace(parameters=fields, code=code))
        values.append(own)
    return tuple(found), values


def run_inputs(
    plastic: Sequence[Plastic], tables: Tables, weights: Any, past: Any, values: Sequence[Any], steps: int, blocks: int
) -> tuple[jax.Array, ...]:
    """Return the arrays that the kernel of a run takes for plastic projections."""
    table = np.array(places(plastic, blocks), np.int32).reshape(-1, len(Places._fields))
    packed = [pack(one.parameters, own, steps) for one, own in zip(plastic, values, strict=True)]
    words = jnp.concatenate([jnp.zeros((0, steps), jnp.int32), *(own for own, _ in packed)])
    shared = jnp.concatenate([jnp.zeros((0, 1), jnp.int32), *(common for _, common in packed)])
    if past is None:
        nothing = jnp.zeros((0, 0), bool), jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32)
        past = Past(*nothing, tables.numbers[:, :2])
    state = jnp.concatenate([jnp.zeros(0, jnp.float32), *(weights[one.number] for one in plastic)])
    # Traces of other time constants become NaN: they would be read with wrong factors.
    traces = jnp.where(jnp.all(past.taus == tables.numbers[:, :2]), past.traces, jnp.nan)
    return (
        jnp.asarray(table), *tables[:5], words, shared, state, traces, past.last, past.fired.astype(jnp.int32),
    )  # fmt: skip


def run_results(
    plastic: Sequence[Plastic], tables: Tables, arrays: Sequence[jax.Array]
) -> tuple[Weights | None, Past | None]:
    """Return the weights and the past after a run; *arrays* are the last results of its kernel."""
    if not plastic:
        return None, None
    state, traces, last, fired = arrays
    parts = jnp.split(state, np.cumsum([one.room for one in plastic])[:-1])
    return _by_projection(plastic, parts), Past(fired != 0, traces, last, tables.numbers[:, :2])


def _by_projection(plastic: Sequence[Plastic], weights: Sequence[jax.Array]) -> Weights:
    """Return the weights as a tuple that is indexed by the number of the projection."""
    own = dict(zip((one.number for one in plastic), weights, strict=True))
    return tuple(own.get(number) for number in range(plastic[-1].number + 1))
