"""Plastic projections beside a slow loop in double precision, and beside plain JAX."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from models import NATIVE, random_matrix
from rules import PAIR, RULES, Fires, Pair, Sum, collect, collect_arrays, depress, potentiate, prescribed, rule

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, Trace


def slow_pair_rule(matrix, delay, fires, *, tau_pre, tau_post, potentiation, depression):
    """Return the sums that arrive in each step, and the weights at the end, of pair-based STDP."""
    steps, n = fires.shape
    source = np.repeat(np.arange(n), np.diff(matrix.indptr))
    target = np.asarray(matrix.indices)
    weight = np.asarray(matrix.data, float).copy()
    pre, post = np.zeros(n), np.zeros(n)
    sums = np.zeros((steps, n))
    for t in range(steps):
        pre, post = pre * np.exp(-1 / tau_pre), post * np.exp(-1 / tau_post)
        arrives = fires[t - delay] if t >= delay else np.zeros(n, bool)
        for k in np.flatnonzero(arrives[source]):
            weight[k] = np.clip(weight[k] - depression * post[target[k]], 0, 1)
            sums[t, target[k]] += weight[k]
        pre += arrives
        for k in np.flatnonzero(fires[t][target]):
            weight[k] = np.clip(weight[k] + potentiation * pre[source[k]], 0, 1)
        post += fires[t]
    return sums, weight


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
@pytest.mark.parametrize("delay", [1, 7])
def test_pair_rule_agrees_with_a_slow_loop(backend, delay):
    rng = np.random.default_rng(0)
    n, steps = 24, 1200
    matrix = random_matrix(rng, n, n, 0.3)
    fires = rng.random((steps, n)) < 0.03
    network = prescribed(matrix, delay, rule(depress, potentiate), blocks=3)
    state, recording = network.run(
        network.initial(Sum(jnp.float32(0))),
        steps=steps,
        inputs=Fires(jnp.asarray(fires)),
        plasticity=PAIR,
        record=Record(trace=Trace("excitatory", np.arange(n))),
        backend=backend,
    )
    sums, weights = slow_pair_rule(matrix, delay, fires, tau_pre=20, tau_post=30, potentiation=0.02, depression=0.01)
    assert np.ptp(weights - np.asarray(matrix.data)) > 0.2
    np.testing.assert_allclose(state.weights[0], weights, atol=2e-5)
    np.testing.assert_allclose(recording.trace["excitatory"], sums, atol=1e-3)


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_weights_arrive_as_the_nearest_units(backend):
    unit = 2.0**-7
    weights = np.float32(2 + unit * np.array([0, 0.25, 0.75, 0.9]))
    matrix = CSR((weights, np.arange(4), np.arange(5)), shape=(4, 4))
    network = prescribed(matrix, 1, rule(depress, potentiate, maximum=2.0**21))
    assert network.scales.tolist() == [unit]
    _, recording = network.run(
        network.initial(Sum(jnp.float32(0))),
        steps=2,
        inputs=Fires(jnp.array([[True] * 4, [False] * 4])),
        plasticity=Pair(0.0, 0.0),
        record=Record(trace=Trace("excitatory", np.arange(4))),
        backend=backend,
    )
    np.testing.assert_array_equal(recording.trace["excitatory"][1], 2 + unit * np.array([0, 0, 1, 1]))


@pytest.mark.parametrize("backend", [NATIVE, "jax"])
def test_one_synapse_by_hand(backend):
    # Source 0 fires in steps 0, 2 and 5, and target 1 in steps 2 and 4; the delay is 2.
    fires = np.zeros((8, 2), bool)
    fires[[0, 2, 5], 0] = True
    fires[[2, 4], 1] = True
    matrix = CSR((jnp.array([0.5]), jnp.array([1]), jnp.array([0, 1, 1])), shape=(2, 2))
    network = prescribed(matrix, 2, rule(depress, potentiate, tau_pre=10.0, tau_post=5.0))
    state, recording = network.run(
        network.initial(Sum(jnp.float32(0))),
        steps=8,
        inputs=Fires(jnp.asarray(fires)),
        plasticity=PAIR,
        record=Record(trace=Trace("excitatory", [1])),
        backend=backend,
    )
    weight, delivered = 0.5, [0.0] * 8
    delivered[2] = weight  # arrives before the target fires, of which it has no trace yet
    weight += 0.02 * 1  # the target fires in the step of the arrival
    weight -= 0.01 * np.exp(-2 / 5)
    delivered[4] = weight
    weight += 0.02 * (np.exp(-2 / 10) + 1)
    weight -= 0.01 * (np.exp(-5 / 5) + np.exp(-3 / 5))
    delivered[7] = weight
    np.testing.assert_allclose(recording.trace["excitatory"][:, 0], delivered, atol=1e-6)
    np.testing.assert_allclose(state.weights[0], [weight], atol=1e-6)


@pytest.mark.parametrize("blocks", [1, 5])
def test_native_kernel_agrees_with_jax(blocks):
    """All rules in one network, which is compiled once; its spikes are given, so that no rule depends on another."""
    rng = np.random.default_rng(3)
    matrix = random_matrix(rng, 40, 40, 0.3)
    projections = [Projection(matrix, 4, "excitatory", plasticity=plasticity) for plasticity, _ in RULES.values()]
    parameters = {number: parameters for number, (_, parameters) in enumerate(RULES.values())}
    network = Network(Population(collect, 40, collect_arrays), projections, blocks=blocks)
    fires = Fires(jnp.asarray(rng.random((200, 40)) < 0.05))
    start, record = network.initial(Sum(jnp.float32(0))), Record(trace=Trace("excitatory", np.arange(40)))
    found, expected = (
        network.run(start, steps=200, inputs=fires, plasticity=parameters, record=record, backend=backend)
        for backend in (NATIVE, "jax")
    )
    for weights, wanted in zip(found[0].weights, expected[0].weights, strict=True):
        assert float(jnp.ptp(wanted - matrix.data)) > 0.02
        np.testing.assert_allclose(weights, wanted, atol=1e-5)
    np.testing.assert_allclose(found[1].trace["excitatory"], expected[1].trace["excitatory"], atol=4e-5)
    np.testing.assert_array_equal(found[0].past.fired, expected[0].past.fired)
    np.testing.assert_array_equal(found[0].past.last, expected[0].past.last)
    np.testing.assert_allclose(found[0].past.traces, expected[0].past.traces, rtol=1e-5)
