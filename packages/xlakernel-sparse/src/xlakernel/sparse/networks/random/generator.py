"""Counter-based random numbers for the functions of neurons.

A number is a function of the key, the neuron, the step and the *draw*. It is the same for any number of threads, blocks
and pieces of a run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ...random.philox import fraction, normals, philox
from .streams import (
    FIRST_TERMS,
    LOG2_E,
    NORMAL,
    PARTS,
    POISSON,
    POWERS,
    QUANTILES,
    RECIPROCALS,
    SHARE,
    UNIFORM,
)

_TWO, _WORD, _MASK, _LOG2_E = np.uint32(2), np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(LOG2_E)
_POWERS, _RECIPROCALS = np.array(POWERS, np.uint64), np.array(RECIPROCALS, np.uint64)


class Generator(NamedTuple):
    """The random numbers of one neuron in one step; the argument ``rng`` of a neuron's function."""

    key0: Any
    key1: Any
    neuron: Any
    step: Any


@njit(forceinline=True)
def words_of_four(rng, draw, kind):
    """Return the four words that the neuron shares with three others."""
    return philox(
        np.uint32(rng.key0),
        np.uint32(rng.key1),
        np.uint32(np.uint32(rng.neuron) >> _TWO),
        np.uint32(rng.step),
        np.uint32(draw),
        np.uint32(kind),
    )


@njit(forceinline=True)
def _word(rng, draw, kind):
    """Return the neuron's own word among the four, 32 random bits."""
    a, b, c, d = words_of_four(rng, draw, kind)
    lane = np.uint32(rng.neuron) & np.uint32(3)
    first, second = (b, d) if lane & np.uint32(1) else (a, c)
    return second if lane & _TWO else first


@njit(forceinline=True)
def uniform(rng, draw):
    """Return a uniform random number in [0, 1), a float32.

    Args:
      rng: the argument of the neuron's function.
      draw: a number that distinguishes the uniform numbers of a step, an integer of at least 0.
    """
    return fraction(_word(rng, draw, UNIFORM))


@njit(forceinline=True)
def normal(rng, draw):
    """Return a random number from the standard normal distribution, a float32.

    Two neurons share the two numbers of a Box-Muller transform.

    Args:
      rng: the argument of the neuron's function.
      draw: a number that distinguishes the normal numbers of a step, an integer of at least 0.
    """
    a, b, c, d = words_of_four(rng, draw, NORMAL)
    lane = np.uint32(rng.neuron) & np.uint32(3)
    first, second = normals(c, d) if lane & _TWO else normals(a, b)
    return second if lane & np.uint32(1) else first


@njit(forceinline=True)
def normals_of(words):
    """Return the normal numbers of four neurons from their four words."""
    a, b, c, d = words
    return *normals(a, b), *normals(c, d)


@njit(forceinline=True)
def poisson(rng, draw, mean):
    """Return a random number from a Poisson distribution, an int64.

    The number is a sum of parts with means of at most 3.5. Each part is drawn by inversion of the distribution in fixed
    point, which is the same on every platform; cumulative probabilities are within 1e-8. Time grows with the mean.

    Args:
      rng: the argument of the neuron's function.
      draw: a number that distinguishes the Poisson numbers of a step, an integer of at least 0.
      mean: the mean of the distribution, rounded to float32, at least 0 and at most 229 376. A larger mean counts
        as 229 376, and NaN as 0.
    """
    rest, count, part = np.float32(mean), np.int64(0), 0
    while rest > np.float32(0) and part < PARTS:
        share = min(rest, np.float32(SHARE))
        count += _inverse(_word(rng, draw, POISSON + 4 * part), share)
        rest -= share
        part += 1
    return count


@njit(forceinline=True)
def _inverse(word, mean):
    """Return the count of a Poisson distribution at the quantile ``word / 2**32``, for a mean of at most 3.5."""
    count = np.int64(first_count(word, mean))
    if count == FIRST_TERMS:
        fixed, quantile = _fixed(mean), np.uint64(word)
        probability = _first_probability(fixed)
        cumulative = probability
        for k in range(FIRST_TERMS):
            probability = _next_probability(probability, fixed, k)
            cumulative += probability
        while quantile >= cumulative and probability > 0:
            probability = _next_probability(probability, fixed, count)
            cumulative += probability
            count += 1
    return count


@njit(forceinline=True)
def first_count(word, mean):
    """Return the count of `_inverse`, but at most `FIRST_TERMS`, without branches."""
    fixed, quantile = _fixed(mean), np.uint64(word)
    probability = _first_probability(fixed)
    cumulative, count = probability, np.uint64(0)
    for k in range(FIRST_TERMS):
        count += np.uint64((quantile >= cumulative) & (probability > 0))
        probability = _next_probability(probability, fixed, k)
        cumulative += probability
    return np.int32(count if fixed > 0 else 0)


@njit(forceinline=True)
def count_of(word, quantiles):
    """Return the count of `_inverse`, but at most `QUANTILES`, from the result of `quantiles_of` for the mean."""
    count = np.int32(0)
    for quantile in quantiles:
        count = np.int32(count + np.int32(word > quantile))
    return count


@njit(forceinline=True)
def poissons_of(rng, draw, mean, quantiles, words):
    """Return the numbers of `poisson` in four steps, int32.

    Args:
      rng: the generator of the first step.
      draw: that of `poisson`.
      mean: that of `poisson`.
      quantiles: the result of `quantiles_of` for the mean.
      words: the neuron's own words of 32 bits in the four steps.
    """
    a, b = count_of(np.uint32(words[0]), quantiles), count_of(np.uint32(words[1]), quantiles)
    c, d = count_of(np.uint32(words[2]), quantiles), count_of(np.uint32(words[3]), quantiles)
    if max(a, b, c, d) == QUANTILES or mean > np.float32(SHARE):
        for k in range(4):
            later = Generator(rng.key0, rng.key1, rng.neuron, np.uint32(np.uint32(rng.step) + np.uint32(k)))
            count = np.int32(poisson(later, draw, mean))
            a, b, c, d = b, c, d, count
    return a, b, c, d


@njit(forceinline=True)
def quantiles_of(mean):
    """Return, for each count below `QUANTILES`, the largest word for which `_inverse` is at most this count.

    A mean above 3.5 counts as 3.5.
    """
    share = min(mean, np.float32(SHARE)) if mean > np.float32(0) else np.float32(0)
    fixed = _fixed(share)
    probability = _first_probability(fixed)
    return _quantiles(fixed, probability, probability)


def _quantiles_from(count):
    if count == QUANTILES:
        return njit(lambda fixed, probability, cumulative: ())
    rest = _quantiles_from(count + 1)

    @njit(forceinline=True)
    def quantiles(fixed, probability, cumulative):
        is_last = (probability == 0) | (cumulative > _MASK) | (fixed == 0)
        following = _next_probability(probability, fixed, count)
        own = np.uint32(_MASK if is_last else cumulative - np.uint64(1))
        return (own, *rest(fixed, following, cumulative + following))

    return quantiles


@njit(forceinline=True)
def _fixed(mean):
    return np.uint64(np.uint32(mean * np.float32(2.0**30)))


@njit(forceinline=True)
def _first_probability(mean):
    """Return ``exp(-mean)``."""
    exponent = mean * _LOG2_E
    fraction, whole = (exponent >> np.uint64(29)) & _MASK, exponent >> np.uint64(61)
    power = np.uint64(POWERS[-1])
    for k in range(len(POWERS) - 2, -1, -1):
        power = _POWERS[k] - (fraction * power >> _WORD)
    power = _MASK - (fraction * power >> _WORD)
    return power + (np.uint64(1) << whole >> np.uint64(1)) >> whole


@njit(forceinline=True)
def _next_probability(probability, mean, count):
    """Return the probability of ``count + 1`` from that of *count*."""
    return probability * (mean * _RECIPROCALS[count] >> np.uint64(31)) >> np.uint64(30)


_quantiles = _quantiles_from(0)
