"""The neuroscience of tutorials for sparse events in JAX, on this package."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.sparse import CSR, BinaryArray


def test_currents_of_spikes_through_equal_weights():
    """1000 neurons onto 500, 5 % of all pairs, a weight of 0.1, one neuron in ten spiking."""
    rng = np.random.default_rng(42)
    dense = (rng.random((1000, 500)) < 0.05).astype(np.float32) * np.float32(0.1)
    known = scipy.sparse.csr_array(dense)
    matrix = CSR(
        (jnp.array([0.1], jnp.float32), jnp.asarray(known.indices, jnp.int32), jnp.asarray(known.indptr, jnp.int32)),
        shape=dense.shape,
    )
    spikes = jnp.asarray(rng.random(1000) < 0.10)
    assert matrix.homogeneous
    assert_allclose(BinaryArray(spikes) @ matrix, np.asarray(spikes, np.float32) @ dense, rtol=1e-5, atol=1e-6)


def test_product_with_a_vector():
    """2000 neurons onto 1000, 5 % of all pairs, weights between 0.01 and 0.5; rows are the targets."""
    rng = np.random.default_rng(42)
    dense = (rng.random((1000, 2000)) < 0.05).astype(np.float32)
    dense *= rng.uniform(0.01, 0.5, dense.shape).astype(np.float32)
    x = rng.random(2000).astype(np.float32)
    matrix = CSR.from_scipy(scipy.sparse.csr_array(dense))
    assert matrix.nnz == np.count_nonzero(dense)
    assert_allclose(jax.jit(lambda a, x: a @ x)(matrix, x), dense @ x, rtol=1e-4)


def test_a_trace_settles_where_it_should():
    """1000 neurons, 5 % spiking in each of 100 steps, a time constant of 20 steps: 0.05 / (1 - exp(-1 / 20))."""
    trains = jnp.stack([jnp.asarray(np.random.default_rng(step).random(1000) < 0.05) for step in range(100)])
    # The trace of each target's arrivals: one synapse from each neuron to itself.
    diagonal = CSR((jnp.ones(1), jnp.arange(1000), jnp.arange(1001)), shape=(1000, 1000))

    @jax.jit
    def run(trains):
        def step(trace, spikes):
            return math.exp(-1 / 20) * trace + BinaryArray(spikes) @ diagonal, None

        return jax.lax.scan(step, jnp.zeros(1000), trains)[0]

    trace = run(trains)
    expected = np.zeros(1000)
    for spikes in np.asarray(trains):
        expected = expected * math.exp(-1 / 20) + spikes
    assert_allclose(trace, expected, rtol=1e-5, atol=1e-6)
    settled = 0.05 / (1 - math.exp(-1 / 20))
    assert round(settled, 4) == 1.0252
    assert abs(float(trace.mean()) - settled) < 0.05


def test_threshold_reset_and_delivery():
    """10 000 neurons between -75 and -50 mV, a threshold of -55: one in five fires, and is reset to -70 mV."""
    v = jnp.asarray(np.random.default_rng(0).uniform(-75.0, -50.0, 10_000).astype(np.float32))
    matrix = CSR.random(jax.random.key(0), (10_000, 300), per_row=3, weights=1.0)

    @jax.jit
    def step(v, matrix):
        spikes = v >= -55.0
        return spikes, jnp.where(spikes, -70.0, v), BinaryArray(spikes) @ matrix

    spikes, after, arrivals = step(v, matrix)
    active = np.asarray(v) >= -55.0
    assert abs(active.mean() - 0.2) < 0.02
    assert_array_equal(spikes, active)
    assert_array_equal(after, np.where(active, np.float32(-70.0), v))
    assert_array_equal(arrivals, active.astype(np.float32) @ matrix.to_scipy())
    assert arrivals.sum() == 3 * active.sum()


def test_a_step_of_leaky_neurons_under_input_from_synapses():
    """5000 neurons, a time constant of 20 ms, a step of 0.1 ms, a threshold of -55 mV and a reset to -70 mV."""
    rng = np.random.default_rng(0)
    v = rng.uniform(-75.0, -50.0, 5000).astype(np.float32)
    drive = rng.uniform(0.0, 5.0, 5000).astype(np.float32)  # mV/ms
    matrix = CSR.random(jax.random.key(1), (5000, 5000), per_row=20, weights=jax.random.normal)

    @jax.jit
    def step(v, drive, matrix):
        v = v + 0.1 * (-(v + 70.0) / 20.0 + drive)
        spikes = v >= -55.0
        return jnp.where(spikes, -70.0, v), spikes, BinaryArray(spikes) @ matrix

    after, spikes, currents = step(v, drive, matrix)
    moved = v + 0.1 * (-(v.astype(np.float64) + 70.0) / 20.0 + drive)
    near = np.abs(moved + 55.0) < 1e-4  # rounding may decide these
    assert near.sum() < 5
    assert_array_equal(np.asarray(spikes)[~near], (moved >= -55.0)[~near])
    assert_allclose(after, np.where(spikes, -70.0, moved), rtol=1e-5)
    assert_allclose(currents, np.asarray(spikes, np.float64) @ matrix.to_scipy(), rtol=1e-4, atol=1e-4)
