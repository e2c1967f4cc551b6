"""Several populations with functions of their own, other dtypes, wide layouts, and networks for several threads."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from models import NATIVE, PARAMETERS, State, Total, fire_at_zero, integrate, integrate_arrays, random_matrix, start

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError
from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, Record, Trace
from xlakernel.sparse.networks.kernels.numba import simulation
from xlakernel.sparse.networks.layout import choose_layout
from xlakernel.sparse.networks.model import fields, populations


class Clock(NamedTuple):
    left: jax.Array
    is_on: jax.Array


class Period(NamedTuple):
    period: jax.Array


@numba.njit
def tick(state, arrived, p, rng):
    is_due = state.left <= 0
    return Clock(p.period if is_due else state.left - 1, not state.is_on), is_due


def tick_arrays(state, arrived, p, rng):
    is_due = state.left <= 0
    return Clock(jnp.where(is_due, p.period, state.left - 1), ~state.is_on), is_due


def two_populations(blocks=None):
    rng = np.random.default_rng(4)
    return Network(
        {"clocks": Population(tick, 7, tick_arrays), "cells": Population(integrate, 30, integrate_arrays)},
        [
            Projection(random_matrix(rng, 7, 30, 0.6), 3, "excitatory", source="clocks", target="cells"),
            Projection(random_matrix(rng, 30, 30, 0.2), 1, "inhibitory", source="cells", target="cells"),
        ],
        blocks=blocks,
    )


TRACES = {"clocks": Trace("is_on", [6], 10), "cells": Trace(["wait", "v"], [2, 0], 4)}


def run_both(network, backend):
    neurons = {
        "clocks": Clock(jnp.arange(7, dtype=jnp.int32), jnp.zeros(7, bool)),
        "cells": start(30),
    }
    parameters = {"clocks": Period(jnp.arange(5, 12, dtype=jnp.int32)), "cells": PARAMETERS}
    record = Record(counts=True, spikes=500, trace=TRACES)
    return network.run(network.initial(neurons), parameters, steps=100, record=record, backend=backend)


@pytest.mark.parametrize("blocks", [2, 9])
def test_populations_of_two_functions(blocks):
    network = two_populations(blocks)
    state, recording = run_both(network, NATIVE)
    expected_state, expected = run_both(network, "jax")
    np.testing.assert_array_equal(recording.counts, expected.counts)
    assert np.all(np.asarray(recording.counts).sum(0) > 10)
    np.testing.assert_array_equal(recording.spikes.neuron, expected.spikes.neuron)
    assert recording.trace["clocks"]["is_on"].shape == (10, 1)
    np.testing.assert_array_equal(recording.trace["clocks"]["is_on"], expected.trace["clocks"]["is_on"])
    np.testing.assert_array_equal(recording.trace["cells"]["wait"], expected.trace["cells"]["wait"])
    np.testing.assert_allclose(recording.trace["cells"]["v"], expected.trace["cells"]["v"], atol=1e-5)
    np.testing.assert_array_equal(state.neurons["clocks"].left, expected_state.neurons["clocks"].left)
    np.testing.assert_array_equal(state.neurons["clocks"].is_on, expected_state.neurons["clocks"].is_on)


class Wide(NamedTuple):
    count: jax.Array
    total: jax.Array
    bits: jax.Array


@numba.njit
def accumulate(state, arrived, p, rng):
    return Wide(state.count + 3_000_000_000, state.total + 1e-12, state.bits ^ np.uint32(0x80000001)), False


def test_fields_of_64_bits():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        network = Network(Population(accumulate, 3), [])
        neurons = Wide(jnp.array([-1, 0, 2**40]), jnp.array([1.0, -1.0, 0.0]), jnp.array([0, 1, 2**31], jnp.uint32))
        end, _ = network.run(network.initial(neurons), steps=3)
        np.testing.assert_array_equal(end.neurons.count, np.array([-1, 0, 2**40]) + 9_000_000_000)
        np.testing.assert_allclose(np.asarray(end.neurons.total) - [1, -1, 0], 3e-12, rtol=1e-3)
        np.testing.assert_array_equal(end.neurons.bits, np.array([0, 1, 2**31], np.uint32) ^ np.uint32(0x80000001))


def test_networks_for_several_threads():
    n = 20_000
    rng = np.random.default_rng(0)
    matrix = random_matrix(rng, n, n, 10 / n)
    state = State(jnp.asarray(rng.uniform(0, 1, n), jnp.float32), jnp.zeros(n, jnp.float32), jnp.zeros(n, jnp.int32))
    found = []
    for blocks in (1, 16):
        network = Network(
            Population(integrate, n, integrate_arrays),
            [Projection(matrix, 2, "excitatory"), Projection(matrix, 5, "inhibitory")],
            blocks=blocks,
        )
        found.append(network.run(network.initial(state), PARAMETERS, steps=50, record=Record(counts=True, spikes=100)))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_equal_weights_are_exact():
    n = 5
    matrix = random_matrix(np.random.default_rng(0), n, n, 0.9)
    equal = CSR((jnp.array([0.3]), matrix.indices, matrix.indptr), shape=(n, n))
    network = Network(Population(integrate, n), [Projection(equal, 1, "excitatory")])
    assert network.scales[0] == np.float32(0.3)
    assert not network.layout.wide


def with_tiny(share):
    """Return a matrix of weights of about 1, this share of which are a thousandth of that."""
    matrix = random_matrix(np.random.default_rng(0), 40, 40, 0.9)
    weights = np.random.default_rng(1).uniform(0.5, 1, matrix.nnz).astype(np.float32)
    weights[: int(share * matrix.nnz)] *= np.float32(1e-3)
    return CSR((weights, matrix.indices, matrix.indptr), shape=matrix.shape)


def test_small_weights_beside_large_ones_take_32_bits():
    large, small = with_tiny(0), with_tiny(1)
    for projections, wide in (
        ([Projection(large, 1, "excitatory"), Projection(small, 1, "excitatory")], True),
        ([Projection(large, 1, "excitatory"), Projection(small, 1, "inhibitory")], False),
        ([Projection(with_tiny(0.2), 1, "excitatory")], True),
        ([Projection(with_tiny(0.01), 1, "excitatory")], False),  # as of a distribution with a tail
        ([Projection(small * np.float32(0), 1, "excitatory"), Projection(large, 1, "excitatory")], False),
    ):
        assert Network(Population(fire_at_zero, 40), projections).layout.wide == wide
    both = [Projection(large, 2, "excitatory"), Projection(small, 1, "excitatory")]
    network = Network(Population(fire_at_zero, 40), both)
    end, _ = network.run(network.initial(Total(0.0)), steps=2)
    np.testing.assert_allclose(end.neurons.excitatory, np.asarray(small.todense(), float).sum(0), rtol=1e-4)
    assert not Network(Population(fire_at_zero, 40), both, weight_bits=16).layout.wide


class Quotient(NamedTuple):
    value: jax.Array


@numba.njit
def reciprocal(value):
    return np.float32(1) / value


@numba.njit
def divide(state, arrived, p, rng):
    return Quotient(reciprocal(state.value)), False


def test_division_by_zero_is_infinite():
    network = Network(Population(divide, 2), [])
    end, _ = network.run(network.initial(Quotient(jnp.array([0.0, 2.0], jnp.float32))), steps=1)
    np.testing.assert_array_equal(end.neurons.value, [np.inf, 0.5])
    with pytest.raises(ZeroDivisionError):
        reciprocal(np.float32(0))  # the user's function is left as it is


@numba.njit
def unpack(state, arrived, p, rng):
    inhibitory, excitatory = arrived
    return Total(state.excitatory + excitatory - inhibitory), False


@numba.njit
def received(values):
    return values.excitatory


@numba.njit
def add_by_helper(state, inputs, p, rng):
    return Total(state.excitatory + received(inputs)), False


def test_receptors_without_an_effect_are_errors():
    matrix = random_matrix(np.random.default_rng(0), 4, 4, 0.9)
    typo = [Projection(matrix, 1, "excitatory"), Projection(matrix, 1, "excitatry")]
    network = Network(Population(add_by_helper, 4), typo)
    with pytest.raises(ArgumentError, match=r"projection 1 has the receptor 'excitatry'.*used there: \['excitatory'\]"):
        network.run(network.initial(Total(0.0)), steps=1)
    for function, receptors in ((unpack, ("inhibitory", "excitatory")), (add_by_helper, ("excitatory",))):
        network = Network(Population(function, 4), [Projection(matrix, 1, name) for name in receptors])
        jax.eval_shape(lambda one: one.run(one.initial(Total(0.0)), steps=1), network)  # compiles nothing


def test_caches_that_keep_functions_are_bounded():
    caches = [cache for module in (fields, populations, simulation) for cache in vars(module).values()]
    sizes = [cache.cache_parameters()["maxsize"] for cache in caches if hasattr(cache, "cache_parameters")]
    assert sizes.count(None) == 1  # that of a flag, in `simulation`
    assert len(sizes) > 6


@pytest.mark.parametrize(
    ("sizes", "blocks"), [([10], 3), ([1000, 10], 4), ([7, 7, 7], 3), ([5], 5), ([1, 1], 1), ([4096, 1], 5)]
)
def test_blocks_cover_each_neuron_of_one_population(sizes, blocks):
    layout = choose_layout(sizes, ("a", "b"), 9, blocks=blocks, weight_bits=16)
    assert layout.edges[0] == 0
    assert layout.edges[-1] == sum(sizes)
    borders = np.cumsum([0, *sizes])
    for first, stop, owner in zip(layout.edges, layout.edges[1:], layout.owners, strict=False):
        assert borders[owner] <= first < stop <= borders[owner + 1]
    assert 1 << layout.target_bits >= layout.width
    assert 1 << layout.row_bits >= 18
    assert layout.blocks <= max(blocks, len(sizes))


def test_layouts_take_more_bits_where_they_need_them():
    few = choose_layout([1000], ("a",), 60, blocks=1, weight_bits=16)
    many = choose_layout([1000], ("a",), 100, blocks=1, weight_bits=16)
    assert (few.wide, many.wide) == (False, True)
    assert not choose_layout([1000], ("a",), 100, blocks=1, weight_bits=2).wide
    with pytest.raises(ArgumentError, match="need 37 bits; allowed: 32"):
        choose_layout([1 << 20], ("a",), 100_000, blocks=1, weight_bits=16)


class Count(NamedTuple):
    value: jax.Array


@numba.njit
def congruential(state, arrived, p, rng):
    return Count(state.value * 1664525 + 1013904223), False


@pytest.mark.parametrize(("blocks", "made_for"), [(1, None), (3, None), (None, "jax")])
def test_integers_wrap_in_each_step(blocks, made_for):
    with use_backend(made_for) if made_for else nullcontext():
        network = Network(Population(congruential, 3), [], blocks=blocks)
    end, _ = network.run(network.initial(Count(jnp.arange(3, dtype=jnp.int32))), steps=5)
    expected = np.arange(3, dtype=np.uint32)
    for _ in range(5):
        expected = expected * np.uint32(1664525) + np.uint32(1013904223)
    np.testing.assert_array_equal(np.asarray(end.neurons.value), expected.astype(np.int32))


def test_spikes_in_flight_keep_their_weight_in_another_network():
    matrix = random_matrix(np.random.default_rng(0), 4, 4, 0.9)
    first, second = (
        Network(Population(fire_at_zero, 4), [Projection(matrix * np.float32(factor), 3, "excitatory")])
        for factor in (1, 10)
    )
    state, _ = first.run(first.initial(Total(0.0)), steps=1)
    expected, _ = first.run(state, steps=3)
    found, _ = second.run(state._replace(neurons=Total(jnp.zeros(4) + 1e-9)), steps=3)
    received = np.asarray(expected.neurons.excitatory)
    np.testing.assert_allclose(found.neurons.excitatory, received, atol=40 * float(second.scales[0]))
    assert np.any(received > 0)


def test_sums_of_many_weights_do_not_overflow():
    n = 70_000
    indptr = jnp.arange(n + 1, dtype=jnp.int32)
    weights = jnp.full(n, 0.082, jnp.float32).at[0].set(0.0821)
    matrix = type(random_matrix(np.random.default_rng(0), 2, 2, 1))(
        (weights, jnp.zeros(n, jnp.int32), indptr), shape=(n, n)
    )
    for weight_bits in (16, 32):
        network = Network(Population(fire_at_zero, n), [Projection(matrix, 1, "excitatory")], weight_bits=weight_bits)
        end, _ = network.run(network.initial(Total(0.0)), steps=2)
        np.testing.assert_allclose(end.neurons.excitatory[0], 0.082 * n, rtol=1e-4)
