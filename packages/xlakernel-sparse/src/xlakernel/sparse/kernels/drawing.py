"""Numbers of procedural matrices from random words, in Numba, for CPUs and GPUs; `ProceduralMatrix` defines them."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..operators.connections import LOGARITHM

_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = map(np.uint32, LOGARITHM)
_WORD = np.uint64(32)


@njit(forceinline=True)
def scaled(word, limit):
    """Return ``word * limit / 2**32``, rounded down: the upper half of the product."""
    return np.uint32(np.uint64(word) * np.uint64(limit) >> _WORD)


@njit(forceinline=True)
def gap(odd, zeros, multiplier, shift):
    """Return the number of places without an entry before the next entry.

    Args:
      odd: a random word with its lowest bit set.
      zeros: the number of leading zeros of *odd*.
      multiplier: a constant of the probability; see `Walk`.
      shift: the other constant.
    """
    zeros = np.uint32(np.uint32(zeros) & np.uint32(31))  # a bound that keeps the shift in 32 bits
    f = np.uint32(np.uint32(odd << zeros) << np.uint32(1))
    power = np.uint32(_C6 - scaled(f, _C7))
    power = np.uint32(_C5 - scaled(f, power))
    power = np.uint32(_C4 - scaled(f, power))
    power = np.uint32(_C3 - scaled(f, power))
    power = np.uint32(_C2 - scaled(f, power))
    power = np.uint32(_C1 - scaled(f, power))
    power = np.uint32(_C0 - scaled(f, power))
    below = np.uint32(np.uint32(0x7FFFFFFF) - scaled(f, power)) >> np.uint32(4)
    logarithm = np.uint32(np.uint32(zeros << np.uint32(27)) | np.uint32(below))
    return np.uint32(scaled(logarithm, multiplier) >> np.uint32(shift))
