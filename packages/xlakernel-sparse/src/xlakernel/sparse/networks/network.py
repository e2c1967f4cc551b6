"""`Network`: populations of neurons and projections (sets of synapses) between them, run by one native call."""

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
    depth_of,
    initial_state,
    run_inputs,
    run_results,
)
from .simulation import multiprocessors, simulate
from .state import NetworkState, check_network_state, convert_pending

# A segment is the entries (synapses) from one source to one block of targets. With fewer entries in it on average, the
# table of the segments' starts costs more time than it saves.
_ENTRIES_OF_A_SEGMENT = 32
#: With fewer entries in a segment on average, the blocks of a GPU share their sums.
_ENTRIES_OF_A_SHARED_SEGMENT = 2
#: The neurons of a block on the CPU. The sums of so many neurons stay in the cache of a CPU core.
_CPU_WIDTH = 1024
#: About the fewest neurons of a block on a GPU. Smaller blocks, and so more of them, make a step slower.
_GPU_WIDTH = 128


@jax.tree_util.register_pytree_with_keys_class
class Network(ImmutablePytree):
    """Populations of neurons and the projections (sets of synapses) between them; a run is one native call.

    The neurons are divided into blocks, and the synapses are sorted by source and by the target's block. On a GPU, they
    are sorted by source alone if a source has few synapses; the blocks then share their sums. Weights are rounded to
    multiples of a unit (see *weight_bits*) and added as integers, so that a sum does not depend on the order of its
    terms. So a run is the same, bit by bit, for any number of threads and blocks.

    `jax.vmap` maps over networks of one structure, with stacked leaves. Such networks have the same populations,
    *blocks*, *weight_bits*, number of synapses and longest delay. With plastic projections, whose weights change in a
    run, they also have the same shortest delay.

    Args:
      populations: a `Population`, or a dictionary of them by name. Neurons are numbered in the order of populations.
      projections: a list of `Projection`.
      blocks: the number of blocks into which the neurons are divided. None: chosen for JAX's default backend.
      weight_bits: the bits of a weight, 16 or 32. The weights of a receptor are rounded to multiples of a unit: their
        largest weight over ``2**(weight_bits - 1) - 1``, or more where the sum over all synapses of a neuron would not
        fit in 32 bits. Equal weights are exact. With 32 bits, a synapse takes 8 bytes instead of 4. None: 32 if more
        than 1/32 of a projection's weights other than 0 are below 1/256 of the receptor's largest; 16 otherwise.

    Attributes:
      scales: the weight of one unit of each receptor, float32 ``(receptors,)``, in sorted order of receptors' names.

    Raises:
      InputError: if a projection or its matrix has a wrong type.
      KernelTypeError: if a population has a wrong type, or its function is not decorated with ``numba.njit``.
      ArgumentError: if a value is invalid. The checks need concrete values: make networks outside of ``jax.jit``.
      ShapeError: if shapes do not fit the populations.
      DtypeError: if weights or delays have a dtype that is not supported.
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
    #: For each projection that has synapses: its number, its receptor and the range of its targets.
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
            # A given *weight_bits* is kept, so that networks with other weights can be stacked.
            weight_bits=needed_bits(len(receptors), synapses, bits) if weight_bits is None else bits,
            ahead=min(one.survey.shortest_delay for one in synapses if one.matrix.nnz or one.rule) if is_plastic else 1,
            scattered=not is_plastic and _are_scattered(number, edges[-1], total),
        )
        # Checks its limits first: with too many blocks, the starts of the entries alone would take gigabytes.
        plastic, tables = build_tables(layout, synapses)
        starts, entries = order_entries(layout, static, scales)
        arrivals = tuple(
            (number, receptors[projection.receptor], projection.targets)
            for number, projection in enumerate(synapses)
            if projection.matrix.nnz  # even with weights of 0: the structure does not depend on weights
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
          neurons: the named tuple of the neurons' state: arrays ``(size,)``, or scalars for all neurons. With several
            populations, a dictionary of such tuples by name.

        Raises:
          ArgumentError: if *neurons* is not a named tuple, or not a dictionary with all populations.
          ShapeError: if a shape does not fit the population.
          DtypeError: if a field is not of float32, int32, uint32, bool, float64 or int64.
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

        In a step, each neuron gets the sums of the weights that arrive. Its function returns the neuron's next state
        and whether the neuron fires. A run of 2000 steps gives the same results, bit by bit, as two runs of 1000 steps
        if the second run starts from the state after the first.

        Args:
          state: from `initial`, or from an earlier run.
          parameters: a named tuple of numbers or arrays ``(size,)``. With several populations, a dictionary of such
            tuples by name, or one tuple of numbers for all populations.
          key: a key of `jax.random`, the same in all runs that continue each other. None: there are no random numbers,
            and the functions get None for *rng*.
          steps: the number of steps, at least 1; ``state.step + steps`` is below 2**31.
          inputs: a named tuple. Each field is an array ``(steps,)`` or ``(steps, size)``, or `Poisson` or `Normal` for
            random numbers. With several populations, a dictionary of such tuples by name.
          plasticity: the parameters of the plastic projections' rules: a named tuple of numbers or, for values that
            change from step to step, arrays ``(steps,)``; or a dictionary of such tuples by the projection's number.
          record: what to record.
          backend: ``"numba"`` on the CPU, ``"numba_cuda"`` on a GPU, or ``"jax"``. None: the backend of the
            `use_backend` context, or else the default.

        Returns:
          The state after the last step, and the `Recording`.

        Raises:
          ArgumentError: if an argument is invalid.
          ShapeError: if a shape does not fit the population.
          DtypeError: if a field is not of float32, int32, uint32, bool, float64 or int64.
          CompileError: if Numba cannot compile a population's function or a rule, if the function does not return a
            state and a bool, or if the rule does not return a weight.
          ValueError: if a rule returns NaN with the backend ``"numba"``. With others, the weight is NaN and adds 0.
          TypeError: if JAX is to differentiate a run; a run has no derivative.
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
            raise ArgumentError(f"Network.run: key is {key!r}; allowed: one key, such as jax.random.key(0), or None.")
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
        layout, longest = self.layout, max(self.layout.depth, depth_of(self.plastic))
        return (
            f"Network(neurons={layout.size}, entries={self.entries.size // (2 if layout.wide else 1)}, "
            f"plastic entries={self.tables.entries.size // 2}, "
            f"receptors={layout.receptors}, longest delay={longest}, blocks={layout.blocks})"
        )


def _words(parts: Sequence[Part], leading: tuple[int, ...], **values: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
    """Return two arrays of 32-bit words: those of all neurons side by side, and those that neurons share, in sequence.

    Args:
      parts: the populations.
      leading: the dimensions before the words.
      values: the named tuples of all populations, by the attribute of `Part` that has their `Fields`.
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
    """Return an array without JAX's weak type.

    A run returns strong types. After a run from weak types, the next run would be compiled again.
    """
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
    """Return True for one key of `jax.random`, typed or of the old kind."""
    if not hasattr(key, "dtype"):
        return False
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return bool(key.shape == ())
    old = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return bool(key.dtype == old.dtype and key.shape == old.shape)


def _are_scattered(blocks: int, size: int, synapses: int) -> bool:
    """Return True if the blocks of a GPU are to share their sums: most segments of a source would be empty."""
    few = 0 < synapses < _ENTRIES_OF_A_SHARED_SEGMENT * size * blocks
    return few and blocks > 1 and jax.default_backend() == "gpu"


def _check_receptors(
    arrivals: Sequence[tuple[int, str, tuple[int, int]]], parts: Sequence[Part], unread: Mapping[int, frozenset[str]]
) -> None:
    """Raise an error if no target of a projection uses the projection's receptor."""
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
