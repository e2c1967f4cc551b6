"""Exported runs of networks: states as arguments and results, and a batch whose size is a symbol."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import register_namedtuple_serialization, symbolic_shape
from models import NATIVE, PARAMETERS, State, balanced, start
from rules import Fires, Sum, collect
from test_plastic_runs import recurrent, run

from xlakernel.core import deserialize, export
from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record

pytest.importorskip("flatbuffers")  # JAX writes programs with it
register_namedtuple_serialization(State, serialized_name="models.State")


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("plastic", [False, True])
def test_a_run_from_a_state_to_a_state(plastic):
    network = recurrent() if plastic else balanced()
    state = network.initial(start(60))

    def work(state):
        if plastic:
            return run(network, state)
        return network.run(state, PARAMETERS, steps=20, record=Record(counts=True, spikes=50))

    exported = deserialize(export(jax.jit(work))(state).serialize())
    first, recording = exported.call(state)
    assert_equal((first, recording), work(state))
    assert_equal(exported.call(first), work(first))


@pytest.mark.skipif(NATIVE != "numba", reason="a launch on a GPU is made for one size")
def test_a_batch_whose_size_is_a_symbol():
    projection = Projection(CSR.from_dense(jnp.ones((2, 2), jnp.float32)), 1, "excitatory")
    network = Network(Population(collect, 2), [projection])
    state = network.initial(Sum(0.0))

    def work(fires):
        after, recording = network.run(state, steps=3, inputs=Fires(fires), record=Record(counts=True))
        return after.neurons.excitatory, recording.counts

    (size,) = symbolic_shape("B")
    exported = export(jax.jit(jax.vmap(work)))(jax.ShapeDtypeStruct((size, 3, 2), bool))
    called = deserialize(exported.serialize()).call
    for size in (1, 3, 200):
        fires = np.random.default_rng(size).random((size, 3, 2)) < 0.5
        assert_equal(called(fires), tuple(np.stack(part) for part in zip(*map(work, fires), strict=True)))
