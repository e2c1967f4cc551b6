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
from xlakernel.sparse.networks.random.generator import Generator, _inverse, philox, quantiles_of


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
    numbers = (*key, *counter)
    assert tuple(map(int, philox(*map(np.uint32, numbers)))) == expected
    assert tuple(map(int, reference.philox(*map(jnp.uint32, numbers)))) == expected


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
        fits_poisson(values, mean)


def fits_poisson(values, mean):
    counts = np.bincount(values)
    law = scipy.stats.poisson(mean)
    often = [k for k in range(counts.size) if law.pmf(k) * values.size > 20]
    got = [counts[k] for k in often]
    expected = law.pmf(often)
    assert scipy.stats.chisquare(got, expected / expected.sum() * np.sum(got)).pvalue > 1e-3


def test_neurons_that_share_words_are_independent(drawn):
    for values in (drawn.first, drawn.normal, drawn.small, drawn.large):
        lanes = values.reshape(-1, 4).astype(float)
        assert np.abs(np.corrcoef(lanes.T) - np.eye(4)).max() < 0.06


@pytest.mark.parametrize("mean", [0.0, 2.0**-31, 1e-6, 0.01, 0.5, 1.0, 2.32, 3.499, 3.5, np.nan, -1.0])
def test_the_distribution_function_of_poisson_numbers(mean):
    # The count rises with the quantile: the place of each step is the cumulative probability.
    mean = np.float32(mean)
    counts = [int(_inverse(np.uint32(word), mean)) for word in (0, 2**32 - 1)] if mean > 0 else [0, 0]
    law = scipy.stats.poisson(max(float(np.nan_to_num(mean)), 0.0))
    assert counts[0] == 0
    for count in range(counts[1]):
        low, high = 0, 2**32 - 1
        while low < high:
            middle = (low + high) // 2
            if _inverse(np.uint32(middle), mean) > count:
                high = middle
            else:
                low = middle + 1
        assert low / 2**32 == pytest.approx(law.cdf(count), abs=1e-8)
    assert law.sf(counts[1]) < 2e-8


@pytest.mark.parametrize("mean", [0, 1e-12, 1e-9, 1e-4, 0.3, 1.0, 2.7, 3.5, 10.0, np.nan])
def test_quantiles_are_the_steps_of_the_distribution(mean):
    share = np.float32(min(mean, 3.5)) if mean > 0 else np.float32(0)
    for count, last in enumerate(map(int, quantiles_of(np.float32(mean)))):
        assert _inverse(np.uint32(last), share) <= count
        assert last == 2**32 - 1 or _inverse(np.uint32(last + 1), share) > count


def test_plain_jax_draws_the_same(drawn):
    n = drawn.first.size
    words = jax.random.bits(jax.random.key(7), (2,), jnp.uint32)
    rng = Generator(words[0], words[1], jnp.arange(n, dtype=jnp.uint32), jnp.uint32(2))
    np.testing.assert_array_equal(reference.uniform(rng, 0), drawn.first)
    np.testing.assert_array_equal(reference.uniform(rng, 5), drawn.second)
    np.testing.assert_allclose(reference.normal(rng, 0), drawn.normal, atol=2e-5)
    np.testing.assert_array_equal(reference.poisson(rng, 0, 1.7), drawn.small)
    np.testing.assert_array_equal(reference.poisson(rng, 1, 43.5), drawn.large)


def test_plain_jax_draws_the_same_for_each_mean():
    means = np.concatenate([10.0 ** np.arange(-11, 5), np.linspace(0, 13, 400), [np.nan, np.inf, -1]])
    means = means.astype(np.float32)
    words = jax.random.bits(jax.random.key(3), (2,), jnp.uint32)
    neurons = np.arange(means.size, dtype=np.uint32)
    expected = [
        draw_poisson(Generator(*map(np.uint32, (*words, n, 5))), mean) if np.isfinite(mean) else 0
        for n, mean in zip(neurons, means, strict=True)
    ]
    found = reference.poisson(Generator(words[0], words[1], neurons, jnp.uint32(5)), 2, np.nan_to_num(means, posinf=0))
    np.testing.assert_array_equal(found, expected)


def test_plain_jax_has_the_same_counts_at_each_step_of_the_distribution():
    means = np.concatenate([np.float32(10.0) ** np.arange(-9, 1), np.linspace(0, 3.5, 300)]).astype(np.float32)
    words, each = [], []
    for mean in means:
        quantiles = np.floor(scipy.stats.poisson(mean).cdf(np.arange(12)) * 2**32)
        near = (quantiles[:, None] + np.arange(-4, 5)).reshape(-1)
        own = np.unique(np.clip([*near, 0, 2**32 - 1], 0, 2**32 - 1)).astype(np.uint32)
        words.append(own)
        each.append(np.full(own.size, mean))
    words, each = np.concatenate(words), np.concatenate(each)
    np.testing.assert_array_equal(reference._inverse(jnp.asarray(words), jnp.asarray(each)), invert_all(words, each))


@numba.njit
def invert_all(words, means):
    found = np.zeros(words.size, np.int32)
    for k in range(words.size):
        found[k] = _inverse(words[k], means[k])
    return found


@numba.njit
def draw_poisson(rng, mean):
    return poisson(rng, 2, mean)
