"""Runs beside an oracle: sums in double precision from the matrices themselves, and the same steps in plain JAX."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from models import NATIVE, PARAMETERS, balanced, noisy, noisy_arrays, random_matrix, start

from xlakernel.sparse import COO
from xlakernel.sparse.networks import Network, Population, Projection, Record, Trace


class Inputs(NamedTuple):
    fires: jax.Array


class Sums(NamedTuple):
    excitatory: jax.Array
    inhibitory: jax.Array


@numba.njit
def collect(state, arrived, p, rng, inputs):
    return Sums(arrived.excitatory, arrived.inhibitory), inputs.fires


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("weight_bits", [16, 32])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_sums_are_those_of_the_matrices(blocks, weight_bits):
    rng = np.random.default_rng(1)
    n, steps = 40, 30
    wide, narrow = random_matrix(rng, n, n, 0.3), random_matrix(rng, 10, 25, 0.5)
    delay = rng.integers(1, 9, wide.nnz)
    projections = [
        Projection(wide, delay, "excitatory"),
        Projection(narrow, 4, "inhibitory", source=slice(20, 30), target=slice(5, 30)),
    ]
    network = Network(Population(collect, n), projections, blocks=blocks, weight_bits=weight_bits)
    fires = rng.random((steps, n)) < 0.2
    _, recording = network.run(
        network.initial(Sums(jnp.float32(0), jnp.float32(0))),
        steps=steps,
        inputs=Inputs(jnp.asarray(fires)),
        record=Record(trace=Trace(("excitatory", "inhibitory"), np.arange(n))),
    )
    expected = np.zeros((steps + 10, 2, n))
    sources = np.repeat(np.arange(n), np.diff(wide.indptr))
    for t in range(steps):
        on = fires[t][sources]
        np.add.at(expected[:, 0], (t + delay[on], np.asarray(wide.indices)[on]), np.asarray(wide.data, float)[on])
        expected[t + 4, 1, 5:30] += fires[t, 20:30] @ np.asarray(narrow.todense(), float)
    got = np.stack([recording.trace["excitatory"], recording.trace["inhibitory"]], axis=1)
    # Each of at most n weights is rounded to half a unit.
    bound = n * 0.3 / 2**weight_bits + 1e-6
    np.testing.assert_allclose(got, expected[:steps], atol=bound, rtol=0)


def test_delays_are_in_the_order_of_entries_in_each_format():
    rng = np.random.default_rng(2)
    matrix = random_matrix(rng, 12, 12, 0.4)
    delay, order = rng.integers(1, 9, matrix.nnz), rng.permutation(matrix.nnz)
    rows, columns = (np.asarray(x)[order] for x in matrix.coordinates())
    unsorted = COO((matrix.data[order], rows, columns), shape=matrix.shape)
    place = unsorted.with_data(jnp.arange(matrix.nnz))
    given = [(matrix, delay), (unsorted, delay[order]), (unsorted.tocsc(), delay[order][place.tocsc().data])]
    fires = Inputs(jnp.asarray(rng.random((10, 12)) < 0.3))
    found = []
    for some, delays in given:
        projections = [Projection(some, delays, "excitatory"), Projection(matrix, 1, "inhibitory")]
        network = Network(Population(collect, 12), projections)
        record = Record(trace=Trace("excitatory", np.arange(12)))
        state = network.initial(Sums(jnp.float32(0), jnp.float32(0)))
        found.append(network.run(state, steps=10, inputs=fires, record=record)[1].trace["excitatory"])
    assert np.any(found[0] > 0)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("delays", [True, False])
@pytest.mark.parametrize("blocks", [1, 3, 60])
def test_native_kernel_agrees_with_jax(blocks, delays):
    network = balanced(blocks=blocks, delays=delays)
    record = Record(counts=True, spikes=400, trace=Trace(("v", "wait"), [3, 59, 3], 8))
    state = network.initial(start(60))
    found = network.run(state, PARAMETERS, steps=200, record=record, backend=NATIVE)
    expected = network.run(state, PARAMETERS, steps=200, record=record, backend="jax")
    assert int(found[1].spikes.total) > 50
    np.testing.assert_allclose(found[1].trace["v"], expected[1].trace["v"], atol=1e-5)
    assert_equal(found[1]._replace(trace=None), expected[1]._replace(trace=None))
    np.testing.assert_array_equal(found[0].pending, expected[0].pending)


def test_random_numbers_agree_with_jax():
    network = balanced(function=noisy, arrays=noisy_arrays)
    state, key = network.initial(start(60)), jax.random.key(3)
    parameters = PARAMETERS._replace(drive=jnp.linspace(0.01, 20, 60, dtype=jnp.float32))
    record = Record(counts=np.arange(60) % 3, spikes=5000)
    found = network.run(state, parameters, key, steps=100, record=record, backend=NATIVE)
    expected = network.run(state, parameters, key, steps=100, record=record, backend="jax")
    assert_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0].neurons.v, expected[0].neurons.v, atol=1e-5)


@pytest.mark.parametrize("weight", [2.0**126, 8e37, 1.5e-38])
@pytest.mark.parametrize("backend", [None, "jax"])
def test_the_largest_and_the_smallest_weight(weight, backend):
    matrix = COO((jnp.full(1, weight, jnp.float32), jnp.array([0]), jnp.array([1])), shape=(2, 2))
    projections = [Projection(matrix, 1, "excitatory"), Projection(matrix, 1, "inhibitory")]
    network = Network(Population(collect, 2, reference=collect.py_func), projections)
    inputs = Inputs(jnp.array([[True, False], [False, False]]))
    record = Record(trace=Trace(["excitatory"], [1]))
    state = network.initial(Sums(jnp.float32(0), jnp.float32(0)))
    _, recording = network.run(state, steps=2, inputs=inputs, record=record, backend=backend)
    assert recording.trace["excitatory"][1, 0] == np.float32(weight)
