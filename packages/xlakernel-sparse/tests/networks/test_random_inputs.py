"""Random inputs: equality with plain JAX and with numbers drawn by a neuron's function, batches, and errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import models
import numba
import numpy as np
import pytest

from xlakernel.core import debug_mode
from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError
from xlakernel.sparse.networks import (
    Network,
    Normal,
    Poisson,
    Population,
    Record,
    Trace,
    normal,
    poisson,
    run_in_pieces,
)
from xlakernel.sparse.networks.model.fields import fields_of
from xlakernel.sparse.networks.model.noise import FIRST_DRAW, noise_of
from xlakernel.sparse.networks.random.drawing import drawing, drawing_four, preparing
from xlakernel.sparse.networks.random.generator import Generator

SIZE = 1003


class Drawn(NamedTuple):
    small: Any
    large: Any
    noise: Any


class Inputs(NamedTuple):
    drive: Any
    small: Any
    large: Any
    noise: Any


@numba.njit
def keep(state, arrived, p, rng, inputs):
    return Drawn(inputs.small, inputs.large, inputs.noise + inputs.drive), False


def keep_arrays(state, arrived, p, rng, inputs):
    return Drawn(inputs.small, inputs.large, inputs.noise + inputs.drive), jnp.zeros(inputs.small.shape, bool)


MEANS = np.linspace(0, 12, SIZE).astype(np.float32)
MEANS[:4] = np.nan, -1, 1e-9, 3.5


@pytest.fixture(scope="module")
def network():
    return Network(Population(keep, SIZE, keep_arrays), [], blocks=7)


def given(mean=1.7, steps=3):
    return Inputs(jnp.arange(steps, dtype=jnp.float32), Poisson(mean), Poisson(MEANS), Normal(2.0, jnp.asarray(MEANS)))


def run(network, key, inputs, steps=3, **keywords):
    state = network.initial(Drawn(jnp.int32(0), jnp.int32(0), jnp.float32(0)))
    return network.run(state, None, key, steps=steps, inputs=inputs, **keywords)[0].neurons


# A thread of a GPU has one neuron of a block, two of more than 1021 neurons, or those of more than 2045 in memory.
@pytest.mark.parametrize(("size", "blocks", "steps"), [(SIZE, 7, 3), (1021, 1, 6), (1501, 1, 5), (2046, 1, 5)])
def test_they_are_those_of_plain_jax(size, blocks, steps):
    network = Network(Population(keep, size, keep_arrays), [], blocks=blocks)
    means = np.resize(MEANS, size)
    inputs = given(steps=steps)._replace(large=Poisson(means), noise=Normal(2.0, jnp.asarray(means)))
    found, expected = (
        run(network, jax.random.key(3), inputs, steps=steps, backend=name) for name in (models.NATIVE, "jax")
    )
    np.testing.assert_array_equal(found.small, expected.small)
    np.testing.assert_array_equal(found.large, expected.large)
    np.testing.assert_allclose(found.noise, expected.noise, rtol=1e-5, atol=1e-4)


def test_no_number_is_drawn_out_of_bounds():
    """The last block begins and ends within groups of four neurons that share random words."""
    network = Network(Population(keep, 5, keep_arrays), [], blocks=3)
    assert network.layout.edges == (0, 1, 3, 5)
    inputs = given()._replace(large=Poisson(20.0), noise=Normal())
    with debug_mode():  # an access out of bounds is an error
        assert np.isfinite(run(network, jax.random.key(3), inputs).noise).all()


def test_they_are_those_of_draws_in_a_function(network):
    class Means(NamedTuple):
        mean: Any

    @numba.njit
    def draw(state, arrived, p, rng):
        drawn = poisson(rng, FIRST_DRAW, 1.7), poisson(rng, FIRST_DRAW + 1, p.mean), normal(rng, FIRST_DRAW + 2)
        return Drawn(*drawn), False

    own = Network(Population(draw, SIZE), [], blocks=3)
    state = own.initial(Drawn(jnp.int32(0), jnp.int32(0), jnp.float32(0)))
    expected = own.run(state, Means(jnp.asarray(MEANS)), jax.random.key(3), steps=3)[0].neurons
    found = run(network, jax.random.key(3), given()._replace(noise=Normal()))
    np.testing.assert_array_equal(found.small, expected.small)
    np.testing.assert_array_equal(found.large, expected.large)
    np.testing.assert_allclose(found.noise, expected.noise + 2, rtol=1e-5, atol=1e-5)


def test_their_moments(network):
    found = run(network, jax.random.key(5), given())
    assert abs(np.mean(found.small) - 1.7) < 5 * np.sqrt(1.7 / SIZE)
    scaled = (found.noise[4:] - 4) / MEANS[4:]
    assert abs(np.mean(scaled)) < 5 / np.sqrt(SIZE)
    assert abs(np.std(scaled) - 1) < 5 / np.sqrt(2 * SIZE)
    np.testing.assert_array_equal(found.large[:3], 0)


def test_batches_of_keys_and_means(network):
    keys, means = jax.random.split(jax.random.key(1), 3), jnp.array([0.5, 1.0, 5.0])
    found = jax.vmap(lambda key, mean: run(network, key, given(mean)))(keys, means)
    for k in range(3):
        single = run(network, keys[k], given(means[k]))
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x, k=k: x[k], found), single)


def test_pieces_draw_the_numbers_of_one_run(network):
    state = network.initial(Drawn(jnp.int32(0), jnp.int32(0), jnp.float32(0)))
    record = Record(trace=Trace(("small", "large", "noise"), [0, 5, 1002]))
    arguments = {"steps": 7, "inputs": given(steps=7), "record": record}
    whole, recording = network.run(state, None, jax.random.key(3), **arguments)
    pieces, joined = run_in_pieces(network, state, None, jax.random.key(3), piece=3, progress=False, **arguments)
    jax.tree.map(np.testing.assert_array_equal, (pieces, joined.trace), (whole, recording.trace))


def test_several_populations_have_parameters_of_their_own():
    network = Network({"a": Population(keep, 10, keep_arrays), "b": Population(keep, 21, keep_arrays)}, [], blocks=4)
    zero = Drawn(jnp.int32(0), jnp.int32(0), jnp.float32(0))
    state = network.initial({"a": zero, "b": zero})
    inputs = {
        "a": Inputs(jnp.zeros(2), Poisson(100.0), Poisson(jnp.full(10, 200.0)), Normal(7.0, 0.0)),
        "b": Inputs(jnp.zeros(2), Poisson(0.0), Poisson(jnp.full(21, 50.0)), Normal(jnp.arange(21.0), 0.0)),
    }
    found = network.run(state, None, jax.random.key(2), steps=2, inputs=inputs)[0].neurons
    assert 60 < np.min(found["a"].small) <= np.max(found["a"].small) < 150 < np.min(found["a"].large)
    assert np.max(found["b"].small) == 0 < 20 < np.min(found["b"].large) <= np.max(found["b"].large) < 90
    np.testing.assert_array_equal(found["a"].noise, np.full(10, 7.0))
    np.testing.assert_array_equal(found["b"].noise, np.arange(21.0))


def test_types_do_not_depend_on_those_of_parameters(network, x64):
    """With 64 bits, where JAX's default types are not those of the inputs."""
    key = jax.random.key(3)
    whole = run(network, key, given(2)._replace(noise=Normal(0, 2)))
    real = run(network, key, given(2.0)._replace(noise=Normal(0.0, 2.0)))
    jax.tree.map(np.testing.assert_array_equal, whole, real)
    expected = run(network, key, given(2)._replace(noise=Normal(0, 2)), backend="jax")
    np.testing.assert_array_equal(whole.small, expected.small)
    np.testing.assert_allclose(whole.noise, expected.noise, rtol=1e-5, atol=1e-5)


def test_drawn_numbers_have_the_types_that_are_checked(x64):
    noise = Noise(Poisson(0.3), Normal(0, 2), Normal())
    inputs = fields_of("inputs", noise, 4, leading=(1,))
    words = numba.types.Array(numba.int32, 2, "C")
    rng = numba.typeof(Generator(*[np.uint32(0)] * 4))
    own = inputs, fields_of("noise", noise_of(noise), 4)
    prepare, draw = preparing(*own), drawing(*own)
    prepared = returned(prepare, words, words, numba.int64)
    types = returned(draw, prepared, rng)
    assert tuple(types) == (numba.int64, numba.float32, numba.float32)
    four = drawing_four(*own)
    values = returned(four.draw, prepared, returned(four.words, rng), rng)
    assert values == returned(four.zero)
    assert returned(four.choose, values, numba.int64) == types


def returned(function, *arguments):
    """Return the type of the result for arguments of these types."""
    function.compile(arguments)
    return function.nopython_signatures[0].return_type


class Noise(NamedTuple):
    a: Any
    b: Any
    c: Any


def test_errors(network):
    with pytest.raises(ArgumentError, match="random inputs, and key is None"):
        run(network, None, given())
    with pytest.raises(ShapeError, match=r"mean_of_small: shape \(3,\); allowed: \(\) or \(1003,\)"):
        run(network, jax.random.key(0), given(jnp.ones(3)))
    with pytest.raises(ArgumentError, match=r"inputs: a Poisson; allowed: a named tuple"):
        run(network, jax.random.key(0), Poisson(1.0))
    for inputs in (given([1.0] * SIZE), given()._replace(drive=[0.0, 1.0, 2.0])):
        with pytest.raises(DtypeError, match=r": a list; allowed: a number, or an array of float32"):
            run(network, jax.random.key(0), inputs)
        state = network.initial(Drawn(jnp.int32(0), jnp.int32(0), jnp.float32(0)))
        with pytest.raises(DtypeError, match=r": a list; allowed: a number, or an array of float32"):
            run_in_pieces(network, state, None, jax.random.key(0), steps=3, inputs=inputs)
    with pytest.raises(DtypeError, match=r"mean_of_small: a NoneType; allowed: a number"):
        run(network, jax.random.key(0), given(None))
    with pytest.raises(ArgumentError, match=r"noise: a Normal; allowed: in the inputs of Network\.run"):
        network.run(network.initial(Drawn(0, 0, 0.0)), Drawn(0, 0, Normal()), jax.random.key(0), steps=1)
