"""`Network`: populations and projections, in the layout in which all steps of a run are one native call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, ShapeError
from xlakernel.numba.fingerprints import fingerprint

from .._immutable import ImmutablePytree
from ..operators.arguments import as_integer
from .entries import choose_scales, choose_weight_bits, needed_bits, order_entries
from .layout import Layout, choose_layout
from .model.fields import fields_of, pack, unpack
from .model.noise import noise_of
from .model.plastic_projections import Plastic
from .model.populations import ALONE, Part, Population, check_function, check_populations
from .model.projections import Projection, check_projections
from .model.recording import Record, Recording, Spikes, check_record, read_traces
from .plasticity import (
    Tables,
    build_tables,
    check_parameters,
    check_state,
    initial_state,
    run_inputs,
    run_results,
)
from .simulation import multiprocessors, simulate
from .state import NetworkState, check_network_state, convert_pending

# Entries of a source in one block, on average, below which the table of starts costs more than it saves.
_ENTRIES_OF_A_SEGMENT = 32
#: The same below which the blocks of a GPU share their sums.
_ENTRIES_OF_A_SHARED_SEGMENT = 2
#: The neurons of a block on the CPU for which the sums of a block stay in a core's cache.
_CPU_WIDTH = 1024
#: The neurons of a block on a GPU below which more blocks make a step slower.
_GPU_WIDTH = 128


@jax.tree_util.register_pytree_with_keys_class
class Network(ImmutablePytree):
    """Populations of neurons and the projections between them, all steps of which run in one native call.

    The synapses are sorted by source and by block of targets, or by source alone where a source has few of them on a
    GPU, whose blocks then share their sums. Weights are rounded to integers: sums of integers do not depend on their
    order, so that a run is the same, bit by bit, for any number of threads and blocks.

    `jax.vmap` maps over networks of one structure, whose leaves are stacked: those with the same populations, *blocks*
    and *weight_bits*, and as many synapses, the same longest delay and, if some are plastic, the same shortest one.

    Args:
      populations: a `Population`, or a dictionary of them by name; the network's neurons are numbered in this order.
      projections: a list of `Projection`.
      blocks: the number of blocks into which the neurons are divided, for the device of JAX's default backend; None:
        chosen.
      weight_bits: 16 or 32, the bits of a weight. Weights are rounded to multiples of the largest one of their receptor
        over ``2**(weight_bits - 1) - 1``, or to larger multiples where the sum over all synapses of a neuron would not
        fit in 32 bits; equal weights are exact. With 32, an entry takes 8 bytes and not 4. None: 16, or 32 if more than
        1/32 of the weights of a projection, apart from zeros, are below 1/256 of the largest one of their receptor.

    Attributes:
      scales: the weight of one unit of each receptor, float32 ``(receptors,)``, in the order of their names.

    Raises:
      InputError: if a projection or its matrix has another type.
      KernelTypeError: if a population has another type, or its function is not one of Numba's.
      ArgumentError: if a value is invalid. Values are checked, and so a network is made outside of ``jax.jit``.
      ShapeError: if shapes do not fit the populations.
      DtypeError: if weights or delays have another dtype.
    """

    __slots__ = ("arrivals", "entries", "layout", "plastic", "populations", "scales", "starts", "tables")
    _leaves: ClassVar[tuple[str, ...]] = ("starts", "entries", "scales", "tables")
    _static: ClassVar[tuple[str, ...]] = ("populations", "layout", "arrivals", "plastic")

    starts: jax.Array
    entries: jax.Array
    scales: jax.Array
    tables: Tables
    populations: tuple[tuple[str, Population], ...]
    layout: Layout
    #: The number, the receptor and the range of targets of each projection with weights.
    arrivals: tuple[tuple[int, str, tuple[int, int]], ...]
    plastic: tuple[Plastic, ...]

    def __init__(
        self,
        populations: Population | Mapping[str, Population],
        projections: Sequence[Projection],
        *,
        blocks: int | None = None,
        weight_bits: int | None = None,
    ) -> None:
        named = check_populations(populations)
        edges = np.cumsum([0, *(population.size for _, population in named)]).tolist()
        ranges = {name: (edges[k], edges[k + 1]) for k, (name, _) in enumerate(named) if name != ALONE}
        receptors, synapses = check_projections(projections, ranges, edges[-1])
        bits = choose_weight_bits(synapses) if weight_bits is None else weight_bits
        static = [projection for projection in synapses if projection.rule is None]
        depth = max((projection.survey.longest_delay for projection in static), default=1)
        is_plastic = len(static) < len(synapses)
        scales = choose_scales(len(receptors), synapses, edges[-1], bits)
        total = sum(projection.matrix.nnz for projection in synapses)
        number = _check_blocks(blocks, edges[-1], total)
        layout = choose_layout(
            [population.size for _, population in named],
            receptors,
            depth,
            blocks=number,
            # A given number is kept: networks of other weights can be stacked.
            weight_bits=needed_bits(len(receptors), synapses, bits) if weight_bits is None else bits,
            ahead=min(one.survey.shortest_delay for one in synapses if one.matrix.nnz or one.rule) if is_plastic else 1,
            scattered=not is_plastic and _are_scattered(number, edges[-1], total),
        )
        starts, entries = order_entries(layout, static, scales)
        plastic, tables = build_tables(layout, synapses)
        arrivals = tuple(
            (number, receptors[projection.receptor], projection.targets)
            for number, projection in enumerate(synapses)
            if projection.matrix.nnz  # not of weights: networks of other weights have one structure
        )
        self._set(
            starts=starts,
            entries=entries,
            scales=jnp.asarray(scales),
            tables=tables,
            populations=named,
            layout=layout,
            arrivals=arrivals,
            plastic=plastic,
        )

    @property
    def size(self) -> int:
        """The number of neurons."""
        return self.layout.size

    def initial(self, neurons: Any) -> NetworkState:
        """Return the state of step 0, without spikes on their way.

        Args:
          neurons: the named tuple of the neurons' state: arrays ``(size,)``, or scalars for all; with several
            populations, a dictionary of them.

        Raises:
          ArgumentError: if *neurons* are no named tuple, or no dictionary with all populations.
          ShapeError: if a shape does not fit the population.
          DtypeError: if a field has a dtype that is not supported.
        """
        spread = {}
        for name, population in self.populations:
            values = self._values_of(neurons, name, "neurons")
            of = f" of {name!r}" if name else ""
            if not fields_of(f"Network.initial: neurons{of}", values, population.size).fields:
                raise ArgumentError(f"Network.initial: neurons{of} have no fields; allowed: a named tuple of arrays.")
            spread[name] = jax.tree.map(lambda value, n=population.size: jnp.broadcast_to(_strong(value), (n,)), values)
        pending = jnp.zeros((self.layout.rows, self.size), jnp.int32)
        plastic = initial_state(self.plastic, self.tables, self.size)
        return NetworkState(self._join(spread), pending, self._by_receptor(self.scales), jnp.int32(0), *plastic)

    def run(
        self,
        state: NetworkState,
        parameters: Any = None,
        key: jax.Array | None = None,
        *,
        steps: int,
        inputs: Any = None,
        plasticity: Any = None,
        record: Record | None = None,
        backend: str | None = None,
    ) -> tuple[NetworkState, Recording]:
        """Run the network for some steps.

        In a step each neuron gets the weights that arrive, and its function returns its next state and whether it
        fires. A run of 2000 steps is the same, bit by bit, as two of 1000, the second from the state after the first.

        Args:
          state: from `initial`, or from an earlier run.
          parameters: a named tuple of numbers or arrays ``(size,)``; with several populations, a dictionary of them, or
            one tuple of numbers for all.
          key: a key of `jax.random`, the same in all runs that continue each other; None: there are no random numbers,
            and *rng* is None.
          steps: the number of steps, at least 1; ``state.step + steps`` is below 2**31.
          inputs: a named tuple whose fields are arrays ``(steps,)`` or ``(steps, size)``, or `Poisson` or `Normal`, for
            random numbers; with several populations, a dictionary of them.
          plasticity: the parameters of the rules of plastic projections, a named tuple of numbers or, for a value in
            each step, arrays ``(steps,)``; or a dictionary of them by the projection's number.
          record: what to record.
          backend: ``"numba"`` on the CPU, ``"numba_cuda"`` on a GPU, or ``"jax"``; None: that of context and defaults.

        Returns:
          The state after the last step, and the `Recording`.

        Raises:
          ArgumentError: if an argument is invalid.
          ShapeError: if a shape does not fit the population.
          DtypeError: if a field has a dtype that is not supported.
          CompileError: if Numba cannot compile a population's function or a rule's, or if its results are not a state
            and a bool, or a weight.
          ValueError: if a rule returns NaN, on the CPU; elsewhere the weight is NaN, and counts as 0.
          TypeError: if a derivative is asked for; a run has none.
        """
        number = as_integer(steps)
        if number is None or number < 1:
            raise ArgumentError(f"Network.run: steps is {steps!r}; allowed: an integer of at least 1.")
        if not isinstance(state, NetworkState):
            raise ArgumentError(
                f"Network.run: the state is a {type(state).__name__}; allowed: a NetworkState, from Network.initial."
            )
        check_network_state(state, self.layout, number)
        parts = self._parts(state.neurons, parameters, inputs, number)
        if key is not None and not _is_key(key):
            raise ArgumentError(f"Network.run: key is {key!r}; allowed: a key, such as jax.random.key(0), or None.")
        if key is None and any(part.inputs.random for part in parts):
            raise ArgumentError("Network.run: there are random inputs, and key is None; allowed: a key of jax.random.")
        unread = {part.first: check_function(part, self.layout.receptors, key is not None) for part in parts}
        _check_receptors(self.arrivals, parts, unread)
        plan = check_record(record, parts, number)
        check_state(self.plastic, self.tables, state.weights, state.past, self.size)
        plastic, of_rules = check_parameters(self.plastic, plasticity, number)
        given = state, parameters, inputs, self.scales, self.tables, of_rules
        state, parameters, inputs, scales, tables, of_rules = _without_derivative(given)
        neurons = [self._values_of(state.neurons, part.name, "state") for part in parts]
        own = [self._values_of(parameters, part.name, "parameters") for part in parts]
        series = [self._values_of(inputs, part.name, "inputs") for part in parts]
        noise = [noise_of(values) for values in series]
        words, _ = _words(parts, (), state=neurons)
        pending, scales = convert_pending(state, scales, self.layout)
        outs = simulate(
            (self.starts, self.entries, scales),
            (pending, words, state.step),
            _words(parts, (), parameters=own, noise=noise),
            _words(parts, (number,), inputs=series),
            run_inputs(plastic, tables, state.weights, state.past, of_rules, number, self.layout.blocks),
            key,
            parts=tuple(parts),
            plastic=plastic,
            layout=self.layout,
            plan=plan,
            steps=number,
            backend=backend,
        )
        pending, words, counts, spike_steps, spike_neurons, total, traces, *learned = outs
        following = {}
        for part in parts:
            found = words[: part.state.words, part.first : part.first + part.size]
            following[part.name] = unpack(part.state, found)
        trace = read_traces(plan, traces, state.step)
        step = state.step + number
        results = run_results(plastic, tables, learned)
        after = NetworkState(self._join(following), pending, self._by_receptor(scales), step, *results)
        return after, Recording(counts, Spikes(spike_steps, spike_neurons, total[0]), trace)

    def _by_receptor(self, scales: jax.Array) -> dict[str, jax.Array]:
        return {name: scales[k] for k, name in enumerate(self.layout.receptors)}

    def _values_of(self, values: Any, name: str, what: str) -> Any:
        """Return the values of one population."""
        if name == ALONE or values is None or (what == "parameters" and not isinstance(values, Mapping)):
            return values
        names = [name for name, _ in self.populations]
        if not isinstance(values, Mapping) or set(values) - set(names):
            found = list(values) if isinstance(values, Mapping) else f"a {type(values).__name__}"
            raise ArgumentError(f"Network: {what} are {found}; allowed: a dictionary by population, {names}.")
        if name not in values and what in {"neurons", "state"}:
            raise ArgumentError(f"Network: {what} have no {name!r}; allowed: a dictionary with all of {names}.")
        return values.get(name)

    def _join(self, values: dict[str, Any]) -> Any:
        return values.get(ALONE, values)

    def _parts(self, neurons: Any, parameters: Any, inputs: Any, steps: int) -> list[Part]:
        parts: list[Part] = []
        first, shared, shared_inputs = 0, 0, 0
        for name, population in self.populations:
            of = f" of {name!r}" if name else ""
            size = population.size
            state = fields_of(f"Network.run: state{of}", self._values_of(neurons, name, "state"), size)
            if any(field.shared for field in state.fields) or not state.fields:
                raise ShapeError(f"Network.run: state{of}: allowed: a named tuple of arrays of shape ({size},).")
            values = self._values_of(parameters, name, "parameters")
            own = fields_of(f"Network.run: parameters{of}", values, size, first_shared=shared)
            given = self._values_of(inputs, name, "inputs")
            series = fields_of(f"Network.run: inputs{of}", given, size, leading=(steps,), first_shared=shared_inputs)
            noise = fields_of(
                f"Network.run: inputs{of}",
                noise_of(given),
                size,
                first=own.words,
                first_shared=shared + own.shared,
            )
            code = fingerprint((population.function, population.reference))
            arguments = state, own, series, noise
            parts.append(Part(population.function, code, population.reference, name, first, size, *arguments))
            first, shared = first + size, shared + own.shared + noise.shared
            shared_inputs += series.shared
        return parts

    def __repr__(self) -> str:
        layout = self.layout
        return (
            f"Network(neurons={layout.size}, entries={self.entries.size // (2 if layout.wide else 1)}, "
            f"plastic entries={self.tables.entries.size // 2}, "
            f"receptors={layout.receptors}, longest delay={layout.depth}, blocks={layout.blocks})"
        )


def _words(parts: Sequence[Part], leading: tuple[int, ...], **values: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
    """Return the words of all populations side by side, and the shared ones behind each other.

    Args:
      parts: the populations.
      leading: the dimensions before the words.
      values: for one or several of a part's `Fields`, by name, the named tuple of each population.
    """
    columns, shared = [], []
    for number, part in enumerate(parts):
        packed = [pack(getattr(part, name), own[number], part.size, leading=leading) for name, own in values.items()]
        columns.append(jnp.concatenate([words for words, _ in packed], axis=-2))
        shared += [common for _, common in packed]
    most = max(words.shape[-2] for words in columns)
    missing = [[(0, 0)] * len(leading) + [(0, most - words.shape[-2]), (0, 0)] for words in columns]
    return jnp.concatenate(list(map(jnp.pad, columns, missing)), axis=-1), jnp.concatenate(shared, axis=-2)


def _strong(value: Any) -> jax.Array:
    """Return an array without JAX's weak type: a run returns strong types, and would be compiled again for them."""
    array = jnp.asarray(value)
    return array.astype(array.dtype)


def _check_blocks(blocks: int | None, size: int, synapses: int) -> int:
    if blocks is None:
        if jax.default_backend() == "gpu":  # each multiprocessor has one block
            return min(multiprocessors(), -(-size // _GPU_WIDTH))
        segments = max(1, synapses // size // _ENTRIES_OF_A_SEGMENT)
        return max(1, min(-(-size // _CPU_WIDTH), segments))
    number = as_integer(blocks)
    if number is None or not 1 <= number <= size:
        raise ArgumentError(f"Network: blocks is {blocks!r}; allowed: None, or an integer from 1 to {size}.")
    return number


def _is_key(key: Any) -> bool:
    """Return True for a key of `jax.random`, of the old kind too."""
    dtype = getattr(key, "dtype", None)
    return dtype is not None and (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)


def _are_scattered(blocks: int, size: int, synapses: int) -> bool:
    """Return whether a GPU's blocks share their sums: otherwise they would look up segments that are empty."""
    few = 0 < synapses < _ENTRIES_OF_A_SHARED_SEGMENT * size * blocks
    return few and blocks > 1 and jax.default_backend() == "gpu"


def _check_receptors(
    arrivals: Sequence[tuple[int, str, tuple[int, int]]], parts: Sequence[Part], unread: Mapping[int, frozenset[str]]
) -> None:
    """Raise an error for a projection of which no target uses the receptor."""
    for number, receptor, (first, stop) in arrivals:
        reached = [part for part in parts if part.first < stop and first < part.first + part.size]
        if reached and all(receptor in unread[part.first] for part in reached):
            functions = ", ".join(sorted({part.function.py_func.__qualname__ for part in reached}))
            used = sorted({name for part in reached for name in {r for _, r, _ in arrivals} - unread[part.first]})
            raise ArgumentError(
                f"Network.run: projection {number} has the receptor {receptor!r}, but arrived.{receptor} has no effect "
                f"in {functions}; used there: {used}. Correct the receptor's name or the function, or remove the "
                "projection."
            )


@jax.custom_jvp
def _without_derivative(values: Any) -> Any:
    return values


@_without_derivative.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "Network.run has no derivative: spikes are events. Use jax.lax.stop_gradient on what does not need one, "
        "finite differences, or a loop of differentiable steps with `BinaryArray` and a surrogate gradient."
    )
