"""Networks whose entries are scattered: those of a source are one segment, and a GPU's blocks share their sums.

Each run is compared, bit by bit, with that of the same network whose entries are in segments.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from models import NATIVE, PARAMETERS, State, Total, balanced, fire_at_zero, noisy, noisy_arrays, random_matrix, start

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, Trace, network, uniform
from xlakernel.sparse.networks.layout import choose_layout

KEY = jax.random.key(1)


@pytest.fixture
def both(monkeypatch):
    """Return a function that makes a network twice: with segments for each block, and scattered."""

    def make(make_network):
        found = []
        for scattered in (False, True):
            monkeypatch.setattr(network, "_are_scattered", lambda *_, value=scattered: value)
            found.append(make_network())
            assert found[-1].layout.scattered == scattered
        return found

    return make


@numba.njit
def alone(state, arrived, p, rng):
    v = state.v * p.leak + uniform(rng, 0)
    return State(np.float32(0) if v > 1 else v, state.current, state.wait), v > 1


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
@pytest.mark.parametrize("bits", [None, 32])
@pytest.mark.parametrize("blocks", [1, 4, 59])
def test_runs_are_equal(both, blocks, bits, backend):
    record = Record(counts=True, trace=Trace("v", [1, 40], 5), spikes=3000)
    segmented, scattered = both(lambda: balanced(function=noisy, arrays=noisy_arrays, blocks=blocks, weight_bits=bits))
    expected = segmented.run(segmented.initial(start(60)), PARAMETERS, KEY, steps=80, record=record, backend=NATIVE)
    assert int(expected[1].spikes.total) > 50
    state = scattered.initial(start(60))
    found = scattered.run(state, PARAMETERS, KEY, steps=80, record=record, backend=backend)
    if backend == "jax":  # which rounds otherwise
        assert jnp.abs(found[0].neurons.v - expected[0].neurons.v).max() < 1e-4
        np.testing.assert_array_equal(found[0].pending, expected[0].pending)
        found, expected = found[1].spikes, expected[1].spikes
    assert_equal(found, expected)


def test_a_run_continues_in_the_other_network(both):
    segmented, scattered = both(lambda: balanced(function=noisy, arrays=noisy_arrays, blocks=7))
    expected, _ = segmented.run(segmented.initial(start(60)), PARAMETERS, KEY, steps=40)
    for first, second in ((segmented, scattered), (scattered, segmented)):
        middle, _ = first.run(first.initial(start(60)), PARAMETERS, KEY, steps=19)
        found, _ = second.run(middle, PARAMETERS, KEY, steps=21)
        assert_equal(found, expected)


@pytest.mark.parametrize(("size", "blocks"), [(3838, 2), (3837, 1), (3838, 1)])
def test_neurons_in_registers_and_in_memory(both, size, blocks):
    """On a GPU a thread has three or five neurons in registers, or loads four at once from memory."""
    rng = np.random.default_rng(3)
    matrix, probed = random_matrix(rng, size, size, 20 / size), np.asarray([0, size // 3, size - 1])
    projections = [Projection(matrix, 3, "excitatory"), Projection(matrix, 2, "inhibitory")]
    record = Record(counts=True, trace=Trace(("v", "current"), probed, 5), spikes=9000)

    def run(network, key):
        return network.run(network.initial(start(size)), PARAMETERS, key, steps=30, record=record)

    networks = both(lambda: Network(Population(noisy, size, noisy_arrays), projections, blocks=blocks))
    keys = jax.random.split(KEY, 2)
    expected, found = (jax.vmap(lambda key, one=one: run(one, key))(keys) for one in networks)
    assert int(expected[1].spikes.total.min()) > 1000
    assert_equal(found, expected)


def test_several_threads_of_the_cpu(both):
    size = 16_001
    matrix = random_matrix(np.random.default_rng(1), size, size, 5 / size)
    projections = [Projection(matrix, 1, "excitatory"), Projection(matrix, 1, "inhibitory")]
    networks = both(lambda: Network(Population(noisy, size, noisy_arrays), projections, blocks=4))
    record = Record(spikes=20_000)
    expected, found = (one.run(one.initial(start(size)), PARAMETERS, KEY, steps=10, record=record) for one in networks)
    assert int(expected[1].spikes.total) > 1000
    assert_equal(found, expected)


def test_networks_that_are_stacked(both):
    matrices = [
        CSR((jnp.full(240, w), np.resize([3, 17, 40, 8], 240), np.arange(0, 241, 4)), shape=(60, 60))
        for w in (0.1, 0.2)
    ]

    def make(matrix):
        projections = [Projection(matrix, 2, "excitatory"), Projection(matrix, 3, "inhibitory")]
        return Network(Population(noisy, 60, noisy_arrays), projections, blocks=5)

    def run(network):
        return network.run(network.initial(start(60)), PARAMETERS, KEY, steps=30)

    pairs = [both(lambda matrix=matrix: make(matrix)) for matrix in matrices]
    for networks in zip(*pairs, strict=True):
        found = jax.vmap(run)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks))
        for k, one in enumerate(networks):
            assert_equal(jax.tree.map(lambda x, k=k: x[k], found), run(one))


def test_more_spikes_of_a_block_than_it_has_threads(both):
    """All fire three times, those of one block from memory on a GPU; each has more synapses than a warp has lanes."""
    size, degree = 4100, 70
    indices = (np.arange(size)[:, None] + 11 * np.arange(degree)) % size
    matrix = CSR((jnp.ones(1), indices.ravel(), degree * np.arange(size + 1)), shape=(size, size))
    for blocks in (1, 2):
        networks = both(
            lambda blocks=blocks: Network(
                Population(fire_at_zero, size), [Projection(matrix, 2, "excitatory")], blocks=blocks
            )
        )
        for one in networks:
            end, recorded = one.run(one.initial(Total(0.0)), steps=4, record=Record(counts=True))
            np.testing.assert_array_equal(end.neurons.excitatory, np.full(size, 2 * degree, np.float32))
            np.testing.assert_array_equal(jnp.ravel(recorded.counts), [size, size, size, 0])


def test_several_populations_and_no_synapses(both):
    def make():
        sizes = {"a": Population(noisy, 40, noisy_arrays), "b": Population(noisy, 23, noisy_arrays)}
        matrix = random_matrix(np.random.default_rng(0), 40, 23, 0.1)
        projections = [
            Projection(matrix, 1, "excitatory", "a", "b"),
            Projection(matrix.T, 3, "inhibitory", "b", "a"),
        ]
        return Network(sizes, projections, blocks=5)

    state, record = {"a": start(40), "b": start(23)}, Record(spikes=500)
    expected, found = (one.run(one.initial(state), PARAMETERS, KEY, steps=60, record=record) for one in both(make))
    assert int(expected[1].spikes.total) > 30
    assert_equal(found, expected)
    empty = CSR((jnp.zeros(0), jnp.zeros(0, jnp.int32), jnp.zeros(61, jnp.int32)), shape=(60, 60))
    for projections in ([Projection(empty, 1, "excitatory"), Projection(empty, 1, "inhibitory")], []):
        function = noisy if projections else alone
        networks = both(lambda function=function, given=projections: Network(Population(function, 60), given, blocks=3))
        assert_equal(*(one.run(one.initial(start(60)), PARAMETERS, KEY, steps=20) for one in networks))


def test_which_networks_are_scattered(monkeypatch):
    """On GPUs alone, if a source has few entries in a block; not if an entry has no room for a place in the network."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert not network._are_scattered(100, 1000, 0)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert network._are_scattered(100, 1000, 150_000)
    assert not network._are_scattered(100, 1000, 250_000)
    assert not network._are_scattered(1, 1000, 1000)
    assert not network._are_scattered(100, 1000, 0)
    few, many = (choose_layout([1 << 20], ("a",), n, blocks=99, weight_bits=2, scattered=True) for n in (4000, 5000))
    assert (few.scattered, few.segments, few.target_bits, few.wide) == (True, 1, 20, True)
    assert (many.scattered, many.segments, many.target_bits) == (False, 99, 14)
