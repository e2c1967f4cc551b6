"""The rule by which the entries of a procedural matrix are drawn, and its constants for kernels.

`ProceduralMatrix` documents the definition.
"""

from __future__ import annotations

import decimal
import math
from typing import Any, NamedTuple

import numpy as np

#: The kinds of words, each an independent stream; the networks' random numbers have other kinds.
PLACES, WEIGHTS = 3, 7
#: The coefficients of ``log2(1 + f) = f * (c[0] - f * (c[1] - ...))`` for f from 0 to 1, in multiples of 2**-31. The
#: polynomial is exact at 0 and 1 and at the Chebyshev points of the quotient ``(log2(1 + f) / f - 1) / (1 - f)``; its
#: error is 1.7e-7.
LOGARITHM = 3098161973, 1548878642, 1029151573, 749075138, 523484232, 297141728, 111299757, 19518379
#: Slots that are drawn at once; the number of entries in a chunk of a line drawn by number.
BATCH = 128
#: The mean number of entries in a chunk of a line drawn by probability: in nine chunks of ten, one batch suffices.
_MEAN = 100
#: The largest number of places in a chunk, so that the gaps of a batch add up to less than 2**31.
_LONGEST = 1 << 23
#: Smaller probabilities have gaps that exceed 32 bits.
LEAST = 1e-8


class Rule(NamedTuple):
    """The static part of a definition.

    Attributes:
      distribution: ``"homogeneous"``, ``"uniform"`` or ``"normal"``.
      probability: the probability that a place has an entry; or None.
      number: the number of entries in each line; or None.
    """

    distribution: str
    probability: float | None
    number: int | None

    @property
    def homogeneous(self) -> bool:
        """True if all entries have one weight."""
        return self.distribution == "homogeneous"

    def mean_entries(self, places: int) -> float:
        """Return the mean number of entries in a line of *places* places."""
        return float(self.number) if self.number is not None else (self.probability or 0.0) * places


class Walk(NamedTuple):
    """The numbers that kernels need to draw a line.

    Attributes:
      number: the number of entries in a line; 0 for lines drawn by probability.
      chunks: the number of chunks of a line.
      length: the number of places in a chunk of a line drawn by probability.
      multiplier, shift: the constants of the gaps between entries.
      is_normal: 1 for normal weights, else 0.
    """

    number: int
    chunks: int
    length: int
    multiplier: int
    shift: int
    is_normal: int

    def array(self) -> Any:
        """Return the numbers as an input of kernels."""
        return np.array(self, np.uint32)


def walk_of(rule: Rule, places: int) -> Walk:
    """Return the constants for lines of *places* places."""
    is_normal = int(rule.distribution == "normal")
    if rule.number is not None:
        number = rule.number if places else 0
        return Walk(number, math.ceil(number / BATCH), BATCH, 0, 0, is_normal)
    if not places or not rule.probability:
        return Walk(0, 0, 1, 0, 0, is_normal)
    chunks = max(math.ceil(places * rule.probability / _MEAN), math.ceil(places / _LONGEST))
    return Walk(0, chunks, math.ceil(places / chunks), *_gap_constants(rule.probability), is_normal)


def _gap_constants(probability: float) -> tuple[int, int]:
    """Return the multiplier and the shift of gaps: ``-1 / log2(1 - p)`` as a fraction of integers."""
    if probability == 1:
        return 0, 0
    with decimal.localcontext(prec=60):  # the same on every platform, unlike logarithms of floats
        scale = decimal.Decimal(2).ln() / -(1 - decimal.Decimal(probability)).ln()
        exponent = min(36, max(k for k in range(5, 64) if scale * 2**k < 2**32))
        return int(scale * 2**exponent), exponent - 5
