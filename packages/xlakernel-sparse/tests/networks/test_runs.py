"""Runs in pieces, batches and loops, and recordings."""

from __future__ import annotations

import pickle
import textwrap
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from models import (
    NATIVE,
    PARAMETERS,
    State,
    Total,
    balanced,
    fire_at_zero,
    integrate,
    noisy,
    noisy_arrays,
    random_matrix,
    start,
)
from numba.extending import overload
from rules import Fires, Sum, collect

from xlakernel.core.call.sharding import gathered
from xlakernel.core.errors import ArgumentError, GatheredOperandsWarning
from xlakernel.sparse import COO, CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, Recording, Spikes, Trace


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def network():
    return balanced(function=noisy, arrays=noisy_arrays)


KEY = jax.random.key(1)


def test_two_pieces_are_one_run(network):
    state, record = network.initial(start(60)), Record(counts=True, trace=Trace("v", [1], 5))
    whole, recorded = network.run(state, PARAMETERS, KEY, steps=60, record=record)
    half, first = network.run(state, PARAMETERS, KEY, steps=30, record=record)
    half = pickle.loads(pickle.dumps(jax.device_get(half)))
    both, second = network.run(half, PARAMETERS, KEY, steps=30, record=record)
    assert_equal(both, whole)
    np.testing.assert_array_equal(jnp.concatenate([first.counts, second.counts]), recorded.counts)
    np.testing.assert_array_equal(jnp.concatenate([first.trace["v"], second.trace["v"]]), recorded.trace["v"])
    assert int(whole.step) == 60
    assert isinstance(recorded, Recording)
    assert isinstance(recorded.spikes, Spikes)


GAIN = np.float32(1)


@numba.njit
def amplify(state, arrived, p, rng):
    return State(state.v * GAIN, state.current, state.wait), False


def amplify_arrays(state, arrived, p, rng):
    return State(state.v * GAIN, state.current, state.wait), jnp.zeros(state.v.shape, bool)


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_a_pickled_network_has_the_present_globals(backend, monkeypatch):
    network = Network(Population(amplify, 2, amplify_arrays), [])
    for gain, is_pickled in ((2, [False]), (3, [False, True])):
        monkeypatch.setitem(globals(), "GAIN", np.float32(gain))
        for some in (pickle.loads(pickle.dumps(network)) if pickled else network for pickled in is_pickled):
            end, _ = some.run(some.initial(State(1.0, 0.0, 0)), steps=1, backend=backend)
            assert end.neurons.v.tolist() == [gain, gain]


@pytest.mark.parametrize("setting", ["strict", "standard"])
def test_strict_promotion_of_dtypes(setting):
    with jax.numpy_dtype_promotion(setting):
        network = balanced(function=integrate)
        state, _ = network.run(network.initial(start(60)), PARAMETERS, steps=3)
        batch = jax.vmap(lambda state: network.run(state, PARAMETERS, steps=3)[0])(
            jax.tree.map(lambda x: x[None], state)
        )
    both, _ = network.run(network.initial(start(60)), PARAMETERS, steps=6)
    assert_equal(jax.tree.map(lambda x: x[0], batch), both)


def test_a_declaration_whose_global_is_edited():
    space = {"np": np, "numba": numba, "overload": overload, "Total": Total, "GAIN": 1}
    source = """
        def gain(v): pass
        @overload(gain)
        def declare(v): return lambda v: np.float32(GAIN)
        @numba.njit
        def function(state, arrived, p, rng):
            total = state.excitatory + arrived.excitatory
            return Total(total + gain(total)), False
        """
    exec(textwrap.dedent(source), space)  # noqa: S102  # a cell of a notebook
    network = Network(Population(space["function"], 3), [Projection(CSR.from_dense(jnp.eye(3)), 1, "excitatory")])
    for gain in (1, 5, 1):
        space["GAIN"] = gain
        state, _ = network.run(network.initial(Total(np.float32(0))), steps=2)
        np.testing.assert_array_equal(state.neurons.excitatory, 2 * gain)


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_the_class_of_the_state_may_be_defined_again(backend):
    def make():
        class Neuron(NamedTuple):
            v: jax.Array

        @numba.njit
        def halve(state, arrived, p, rng):
            return Neuron(state.v / 2), False

        return Neuron, Population(halve, 2, lambda state, arrived, p, rng: (Neuron(state.v / 2), state.v < 0))

    (first, population), (second, _) = make(), make()
    network = Network(population, [])
    for kind in (first, second):
        end, _ = network.run(network.initial(kind(np.float32(3))), steps=1, backend=backend)
        assert end.neurons.v.tolist() == [1.5, 1.5]
        assert type(end.neurons) is kind


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_pieces_record_at_the_steps_of_the_whole_run(network, backend):
    def run(state, steps, trace):
        return network.run(state, PARAMETERS, KEY, steps=steps, record=Record(trace=trace), backend=backend)

    trace = Trace(("v", "wait"), [1, 7], 10)
    _, whole = run(network.initial(start(60)), 40, trace)
    state, _ = run(network.initial(start(60)), 5, None)
    _, later = run(state, 30, trace)
    for name in ("v", "wait"):
        np.testing.assert_array_equal(later.trace[name], whole.trace[name][:3])


def once(weights, **options):
    projections = [Projection(CSR.from_dense(jnp.diag(weights)), 3, "excitatory")]
    return Network(Population(fire_at_zero, 4), projections, **options)


WEIGHTS = jnp.array([1, 0.9, 0.8, 0.7], jnp.float32)


@pytest.mark.parametrize(("bits", "factor"), [(16, 0.3), (16, 1e-3), (16, 3), (32, 3)])
def test_a_state_of_a_network_with_other_weights(bits, factor):
    before, after = once(WEIGHTS, weight_bits=bits), once(factor * WEIGHTS, weight_bits=bits)
    state, _ = before.run(before.initial(Total(0.0)), steps=1)
    end, _ = after.run(state._replace(neurons=Total(jnp.full(4, 1e-9, jnp.float32))), steps=3)
    np.testing.assert_allclose(end.neurons.excitatory, WEIGHTS, rtol=2e-4)


@pytest.mark.parametrize("bits", [None, 16, 32])
def test_spikes_of_two_networks_that_arrive_in_one_step(bits):
    places = np.array([0, 1, 2, 3]), np.array([4, 4, 4, 0])

    def network(*weights):
        matrix = COO((jnp.float32(weights), *map(jnp.int32, places)), shape=(5, 5))
        delays = np.array([2, 1, 1, 1])
        return Network(Population(collect, 5), [Projection(matrix, delays, "excitatory")], weight_bits=bits)

    def fires(*neurons):
        return Fires(jnp.zeros((1, 5), bool).at[0, list(neurons)].set(True))

    before, after = network(1.45, 1, 0.3, 0.001), network(1, 1, 0.99, 0.001)
    for wrap in (lambda run: run, jax.jit):
        first, second = (wrap(lambda s, x, one=one: one.run(s, steps=1, inputs=x)[0]) for one in (before, after))
        state = first(before.initial(Sum(0.0)), fires(0))
        state = second(second(state, fires(1, 2)), fires())
        np.testing.assert_allclose(state.neurons.excitatory[4], 1.45 + 1 + 0.99, rtol=1e-4)


@pytest.mark.parametrize(("before", "after", "bits"), [(1, 0.3, 32), (1e6, 1, 16), ((1,) * 4, (3,) * 4, None)])
def test_a_state_whose_sums_do_not_fit(before, after, bits):
    before, after = (once(x * WEIGHTS if np.ndim(x) == 0 else jnp.array(x), weight_bits=bits) for x in (before, after))
    state, _ = before.run(before.initial(Total(0.0)), steps=1)
    with pytest.raises(
        ArgumentError, match=r"units of this one cannot represent their sums at the receptors \['excitatory'\]"
    ):
        after.run(state, steps=3)
    end, _ = jax.jit(lambda state: after.run(state, steps=3))(state)
    assert np.isnan(end.neurons.excitatory).all()


def test_sums_of_many_networks_that_arrive_in_one_step():
    def network(delay):
        matrix = CSR.from_dense(jnp.float32([[0, 1, 0.5], [0, 0, 0], [0, 0, 0]]))
        return Network(Population(collect, 3), [Projection(matrix, np.array([delay, 6]), "excitatory")], weight_bits=32)

    def step(network, state, *, fires):
        return network.run(state, steps=1, inputs=Fires(jnp.full((1, 3), fires)))[0]

    first, *others = (network(delay) for delay in (6, 5, 4, 3, 2))
    assert len({float(one.scales[0]) for one in (first, *others)}) == 1
    states = [first.initial(Sum(0.0))]
    for one in (first, *others[:3]):
        states.append(step(one, states[-1], fires=True))
    end = states[3]  # spikes of three networks
    for _ in range(4):
        end = step(others[2], end, fires=False)
    np.testing.assert_allclose(end.neurons.excitatory, [0, 3, 0.5], rtol=1e-6)
    end = jax.jit(lambda state: step(others[3], step(others[3], state, fires=True), fires=False))(states[4])
    assert np.isnan(end.neurons.excitatory).all()
    with pytest.raises(ArgumentError, match=r"at the receptors \['excitatory'\] is 3 \* 2\*\*29 units or more"):
        step(others[3], states[4], fires=True)


def test_a_state_has_the_receptors_by_name(network):
    state = network.initial(start(60))
    assert set(state.scales) == {"excitatory", "inhibitory"}
    other = state._replace(scales={"excitatory": state.scales["excitatory"], "gaba": state.scales["inhibitory"]})
    with pytest.raises(ArgumentError, match=r"receptors of the state are \['excitatory', 'gaba'\]; allowed: .*'inhib"):
        network.run(other, PARAMETERS, KEY, steps=1)
    matrix = random_matrix(np.random.default_rng(0), 60, 60, 0.1)
    projections = [Projection(matrix, 1, "excitatory"), Projection(matrix * np.float32(0.5), 2, "inhibitory")]
    first, second = (Network(Population(integrate, 60), some) for some in (projections, projections[::-1]))
    middle, _ = first.run(first.initial(start(60)), PARAMETERS, steps=5)
    assert_equal(second.run(middle, PARAMETERS, steps=5), first.run(middle, PARAMETERS, steps=5))


def test_any_number_of_blocks_gives_the_same_bits(network):
    record = Record(spikes=3000)
    expected = network.run(network.initial(start(60)), PARAMETERS, KEY, steps=80, record=record)
    for blocks in (1, 4, 59):
        other = balanced(function=noisy, arrays=noisy_arrays, blocks=blocks)
        assert_equal(other.run(other.initial(start(60)), PARAMETERS, KEY, steps=80, record=record), expected)


@pytest.mark.parametrize("size", [4501, 4503])
def test_blocks_that_begin_at_any_neuron(size):
    """On a GPU each thread of the first network has up to two neurons, and of the second one."""
    rng = np.random.default_rng(3)
    matrix = random_matrix(rng, size, size, 20 / size)
    probed = np.asarray([0, size // 3, size // 3 + 1, size - 1])

    def network(blocks):
        projections = [Projection(matrix, 3, "excitatory"), Projection(matrix, 2, "inhibitory")]
        return Network(Population(noisy, size, noisy_arrays), projections, blocks=blocks)

    def run(network, seed):
        key, record = jax.random.key(seed), Record(counts=True, trace=Trace(("v", "current"), probed, 5), spikes=9000)
        return network.run(network.initial(start(size)), PARAMETERS, key, steps=30, record=record)

    seeds = jnp.arange(2)
    found = jax.vmap(lambda seed: run(network(3), seed))(seeds)
    for k, seed in enumerate(seeds):
        expected = run(network(12), seed)
        assert int(expected[1].spikes.total) > 1000
        assert_equal(jax.tree.map(lambda x, k=k: x[k], found), expected)


def test_spikes_beyond_the_room_are_counted(network):
    state = network.initial(start(60))
    _, whole = network.run(state, PARAMETERS, KEY, steps=50, record=Record(spikes=2000))
    _, short = network.run(state, PARAMETERS, KEY, steps=50, record=Record(spikes=17))
    assert int(short.spikes.total) == int(whole.spikes.total) > 17
    np.testing.assert_array_equal(short.spikes.step, whole.spikes.step[:17])
    np.testing.assert_array_equal(short.spikes.neuron, whole.spikes.neuron[:17])
    total = int(whole.spikes.total)
    assert np.all(np.asarray(whole.spikes.step[total:]) == -1)
    pairs = list(zip(whole.spikes.step[:total].tolist(), whole.spikes.neuron[:total].tolist(), strict=True))
    assert pairs == sorted(pairs)


def test_counts_are_those_of_the_recorded_spikes(network):
    groups = np.arange(60) % 3 - 1
    record = Record(counts=groups, spikes=2000)
    _, recording = network.run(network.initial(start(60)), PARAMETERS, KEY, steps=50, record=record)
    expected = np.zeros((50, 2), int)
    for step, neuron in zip(recording.spikes.step, recording.spikes.neuron, strict=True):
        if step >= 0 and groups[neuron] >= 0:
            expected[step, groups[neuron]] += 1
    np.testing.assert_array_equal(recording.counts, expected)


@pytest.mark.parametrize("size", [1, 3, 150])
def test_batches_are_runs_of_their_own(network, size):
    states = jax.vmap(lambda seed: network.initial(start(60)))(jnp.arange(size))
    keys = jax.random.split(KEY, size)
    drives = jnp.linspace(0.0, 0.3, size, dtype=jnp.float32)

    def run(state, key, drive):
        return network.run(state, PARAMETERS._replace(drive=drive), key, steps=20, record=Record(counts=True))

    found = jax.jit(jax.vmap(run))(states, keys, drives)
    for k in {0, size - 1}:
        expected = run(jax.tree.map(lambda x, k=k: x[k], states), keys[k], drives[k])
        assert_equal(jax.tree.map(lambda x, k=k: x[k], found), expected)


def test_batches_of_networks():
    def with_inhibition(factor):
        rng = np.random.default_rng(1)
        excitation, inhibition = random_matrix(rng, 60, 60, 0.2), random_matrix(rng, 60, 60, 0.1)
        projections = [
            Projection(excitation, 1, "excitatory"),
            Projection(inhibition.with_data(factor * inhibition.data), 2, "inhibitory"),
        ]
        return Network(Population(integrate, 60), projections, weight_bits=16)

    networks = [with_inhibition(factor) for factor in (0, 1, 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)

    def run(network):
        return network.run(network.initial(start(60)), PARAMETERS, steps=30)[0]

    found = jax.vmap(run)(stacked)
    for k, network in enumerate(networks):
        assert_equal(jax.tree.map(lambda x, k=k: x[k], found), run(network))


def test_runs_in_a_scan(network):
    state = network.initial(start(60))

    def piece(state, _):
        state, recording = network.run(state, PARAMETERS, KEY, steps=10, record=Record(counts=True))
        return state, recording.counts

    end, counts = jax.jit(lambda state: jax.lax.scan(piece, state, length=4))(state)
    expected, recording = network.run(state, PARAMETERS, KEY, steps=40, record=Record(counts=True))
    assert_equal(end, expected)
    np.testing.assert_array_equal(counts.reshape(40, 1), recording.counts)


def test_derivatives_are_refused(network):
    state = network.initial(start(60))

    def loss(drive):
        end, _ = network.run(state, PARAMETERS._replace(drive=drive), KEY, steps=3)
        return jnp.sum(end.neurons.v)

    with pytest.raises(TypeError, match="no derivative: spikes are events"):
        jax.grad(loss)(jnp.float32(0.1))


several_devices = pytest.mark.skipif(jax.device_count() < 2, reason="a mesh of two devices; this machine has one GPU")


@several_devices
@pytest.mark.parametrize("map_shards", [False, True])
def test_a_batch_spread_over_devices(network, map_shards, monkeypatch, request):
    monkeypatch.setattr(gathered, "_warned", set())  # it comes once for each kernel
    # A program of JAX's persistent cache, from an earlier run of the tests, is not partitioned again, so does not warn.
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks only once whether there is one
    request.addfinalizer(lambda: jax.config.update("jax_enable_compilation_cache", before))
    request.addfinalizer(compilation_cache.reset_cache)
    mesh = jax.make_mesh((2,), ("seed",), (AxisType.Auto,), devices=jax.devices()[:2])
    keys = jax.device_put(jax.random.split(KEY, 4), NamedSharding(mesh, P("seed")))

    def run(key):
        return network.run(network.initial(start(60)), PARAMETERS, key, steps=20, record=Record(counts=True))

    batch = jax.vmap(run)
    if map_shards:
        batch = jax.shard_map(batch, mesh=mesh, in_specs=P("seed"), out_specs=P("seed"))
        found = jax.jit(batch)(keys)
    else:
        with pytest.warns(GatheredOperandsWarning, match="or call it inside jax.shard_map"):
            found = jax.block_until_ready(jax.jit(batch)(keys))
    for k in range(4):
        assert_equal(jax.tree.map(lambda x, k=k: x[k], found), run(jax.random.split(KEY, 4)[k]))


@several_devices
@pytest.mark.filterwarnings("ignore::xlakernel.core.errors.GatheredOperandsWarning")  # a warning that comes once
@pytest.mark.parametrize("part", ["state", "parameters"])
def test_a_network_of_sharded_arrays(network, part):
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=jax.devices()[:2])
    given = {"state": network.initial(start(60)), "parameters": PARAMETERS._replace(drive=jnp.linspace(0.1, 0.3, 60))}
    expected = network.run(**given, key=KEY, steps=20)
    placed = jax.tree.map(
        lambda x: jax.device_put(x, NamedSharding(mesh, P("x") if x.shape == (60,) else P())), given[part]
    )
    assert_equal(network.run(**{**given, part: placed}, key=KEY, steps=20), expected)


def test_nested_batches_and_batches_of_nothing(network):
    state = network.initial(start(60))

    def run(key, drive):
        return network.run(state, PARAMETERS._replace(drive=drive), key, steps=5)[0].neurons.v

    keys, drives = jax.random.split(KEY, 3), jnp.array([0.1, 0.2], jnp.float32)
    found = jax.vmap(lambda key: jax.vmap(lambda drive: run(key, drive))(drives))(keys)
    np.testing.assert_array_equal(found[2, 1], run(keys[2], drives[1]))
    assert jax.vmap(run, (None, 0))(KEY, drives[:0]).shape == (0, 60)


def test_runs_are_not_compiled_again_for_their_own_state(network):
    traced = []

    @jax.jit
    def run(state):
        traced.append(state)
        return network.run(state, PARAMETERS, KEY, steps=2)[0]

    run(run(network.initial(start(60))))
    assert len(traced) == 1
