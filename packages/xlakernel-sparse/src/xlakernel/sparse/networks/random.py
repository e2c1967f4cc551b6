"""Counter-based random numbers for the functions of neurons.

A number is a function of the key, the neuron, the step and the *draw*. It is the same for any number of threads, blocks
and pieces of a run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .random_streams import INCREMENTS, MULTIPLIERS, NORMAL, PARTS, POISSON, RECIPROCALS, ROUNDS, SHARE, UNIFORM

_LEFT, _RIGHT = map(np.uint64, MULTIPLIERS)
_FIRST, _SECOND = map(np.uint32, INCREMENTS)


class Generator(NamedTuple):
    """The random numbers of one neuron in one step; the argument ``rng`` of a neuron's function."""

    key0: Any
    key1: Any
    neuron: Any
    step: Any


@njit
def philox(rng, draw, kind):
    """Return four words of 32 random bits, uint32."""
    key0, key1 = np.uint32(rng.key0), np.uint32(rng.key1)
    a, b, c, d = np.uint32(rng.neuron), np.uint32(rng.step), np.uint32(draw), np.uint32(kind)
    for _ in range(ROUNDS):
        # Of 32 and 32 bits to 64, which is one instruction.
        left, right = _LEFT * np.uint64(a), _RIGHT * np.uint64(c)
        a, b = np.uint32(np.uint32(right >> np.uint64(32)) ^ b ^ key0), np.uint32(right)
        c, d = np.uint32(np.uint32(left >> np.uint64(32)) ^ d ^ key1), np.uint32(left)
        key0, key1 = np.uint32(key0 + _FIRST), np.uint32(key1 + _SECOND)
    return a, b, c, d


@njit
def _fraction(word):
    """Return the upper 24 bits of a word as a float32 in [0, 1)."""
    return np.float32(np.uint32(word >> np.uint32(8))) * np.float32(2.0**-24)


@njit
def _open_fraction(word):
    """Return a word as a float64 in (0, 1)."""
    return (np.float64(word) + 0.5) * 2.0**-32


@njit
def uniform(rng, draw):
    """Return a uniform random number in [0, 1), a float32.

    Args:
      rng: the argument of the neuron's function.
      draw: a number that distinguishes the uniform numbers of a step, an integer of at least 0.
    """
    a, b, c, d = philox(rng, draw >> 2, UNIFORM)
    word = draw & 3
    return _fraction(a if word == 0 else b if word == 1 else c if word == 2 else d)


@njit
def normal(rng, draw):
    """Return a random number from the standard normal distribution, a float32.

    Args:
      rng: the argument of the neuron's function.
      draw: a number that distinguishes the normal numbers of a step, an integer of at least 0.
    """
    a, b, _, _ = philox(rng, draw, NORMAL)
    radius = math.sqrt(np.float32(-2.0) * math.log(np.float32(1.0) - _fraction(a)))
    return np.float32(radius * math.cos(np.float32(2 * math.pi) * _fraction(b)))


@njit
def poisson(rng, draw, mean):
    """Return a random number from a Poisson distribution, an int64.

    It is the sum of numbers with means of at most 10, each by inversion of the distribution: time grows with the mean.

    Args:
      rng: the argument of the neuron's function.
      draw: a number that distinguishes the Poisson numbers of a step, an integer of at least 0.
      mean: the mean of the distribution, at least 0 and at most 655 360; a larger one counts as this, NaN as 0.
    """
    rest, count, part = np.float64(mean), np.int64(0), 0
    while rest > 0.0 and part < PARTS:
        share = min(rest, SHARE)
        a, _, _, _ = philox(rng, draw, POISSON + 4 * part)
        count += _inverse(_open_fraction(a), share)
        rest -= share
        part += 1
    return count


@njit
def _inverse(fraction, mean):
    """Return the smallest count with a cumulative probability of at least *fraction*."""
    count = np.int64(0)
    probability = math.exp(-mean)
    while fraction > probability and count < len(RECIPROCALS):
        fraction -= probability
        probability *= mean * RECIPROCALS[count]
        count += 1
    return count
