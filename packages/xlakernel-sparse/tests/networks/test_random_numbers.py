"""Random numbers: known answers of the generator, distributions, and equality with plain JAX."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
import scipy.stats

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, normal, poisson, reference, uniform
from xlakernel.sparse.networks.random import Generator, philox

pytestmark = pytest.mark.kernels


class Numbers(NamedTuple):
    first: jax.Array
    second: jax.Array
    normal: jax.Array
    small: jax.Array
    large: jax.Array


@numba.njit
def draw_all(state, arrived, p, rng):
    return (
        Numbers(uniform(rng, 0), uniform(rng, 5), normal(rng, 0), poisson(rng, 0, 1.7), poisson(rng, 1, 43.5)),
        False,
    )


# The known answers of Random123's philox4x32 with 10 rounds: counters, keys, results.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    rng = Generator(*map(np.uint32, (*key, counter[0], counter[1])))
    assert tuple(map(int, philox(rng, np.uint32(counter[2]), np.uint32(counter[3])))) == expected
    words = reference.philox(
        Generator(*(jnp.uint32(value) for value in rng)), jnp.uint32(counter[2]), jnp.uint32(counter[3])
    )
    assert tuple(map(int, words)) == expected


@pytest.fixture(scope="module")
def drawn():
    n = 20_000
    empty = CSR((jnp.ones(1), jnp.zeros(0, jnp.int32), jnp.zeros(n + 1, jnp.int32)), shape=(n, n))
    network = Network(Population(draw_all, n), [Projection(empty, 1, "none")], blocks=8)
    floats, integers = jnp.zeros(n), jnp.zeros(n, jnp.int32)
    state = network.initial(Numbers(floats, floats, floats, integers, integers))
    state, _ = network.run(state, None, jax.random.key(7), steps=3)
    return jax.tree.map(np.asarray, state.neurons)


def test_distributions(drawn):
    for values in (drawn.first, drawn.second):
        assert values.min() >= 0
        assert values.max() < 1
        assert scipy.stats.kstest(values, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(drawn.normal, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(drawn.first, drawn.second)[0, 1]) < 0.03
    for values, mean in ((drawn.small, 1.7), (drawn.large, 43.5)):
        counts = np.bincount(values)
        law = scipy.stats.poisson(mean)
        often = [k for k in range(counts.size) if law.pmf(k) * values.size > 20]
        got = [counts[k] for k in often]
        expected = law.pmf(often)
        assert scipy.stats.chisquare(got, expected / expected.sum() * np.sum(got)).pvalue > 1e-3


def test_plain_jax_draws_the_same(drawn):
    n = drawn.first.size
    words = jax.random.bits(jax.random.key(7), (2,), jnp.uint32)
    rng = Generator(words[0], words[1], jnp.arange(n, dtype=jnp.uint32), jnp.uint32(2))
    np.testing.assert_array_equal(reference.uniform(rng, 0), drawn.first)
    np.testing.assert_array_equal(reference.uniform(rng, 5), drawn.second)
    np.testing.assert_allclose(reference.normal(rng, 0), drawn.normal, atol=2e-5)
    np.testing.assert_array_equal(reference.poisson(rng, 0, 1.7), drawn.small)
    # In float32 a fraction close to a step of the distribution may fall on its other side.
    assert np.mean(np.asarray(reference.poisson(rng, 1, 43.5)) != drawn.large) < 1e-3
