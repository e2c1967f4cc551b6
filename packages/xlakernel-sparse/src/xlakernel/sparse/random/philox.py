"""Philox4x32-10 in Numba, for CPUs and GPUs (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .plain import INCREMENTS, MULTIPLIERS, ROUNDS

_LEFT, _RIGHT = map(np.uint64, MULTIPLIERS)
_FIRST, _SECOND = map(np.uint32, INCREMENTS)
_WORD = np.uint64(32)


@njit(forceinline=True)
def philox(key0, key1, a, b, c, d):
    """Return four words of 32 random bits for a key of two words and a counter of four, all uint32."""
    for _ in range(ROUNDS):
        # A product of two 32-bit numbers in 64 bits, which is one instruction.
        left, right = _LEFT * np.uint64(a), _RIGHT * np.uint64(c)
        a, b = np.uint32(np.uint32(right >> _WORD) ^ b ^ key0), np.uint32(right)
        c, d = np.uint32(np.uint32(left >> _WORD) ^ d ^ key1), np.uint32(left)
        key0, key1 = np.uint32(key0 + _FIRST), np.uint32(key1 + _SECOND)
    return a, b, c, d


@njit(forceinline=True)
def fraction(word):
    """Return the upper 24 bits of a word as a float32 in [0, 1)."""
    return np.float32(np.uint32(word >> np.uint32(8))) * np.float32(2.0**-24)


@njit(forceinline=True)
def normals(first, second):
    """Return two normal numbers from two words, by the Box-Muller transform."""
    radius = math.sqrt(np.float32(-2.0) * math.log(np.float32(1.0) - fraction(first)))
    angle = np.float32(2 * math.pi) * fraction(second)
    return np.float32(radius * math.cos(angle)), np.float32(radius * math.sin(angle))
