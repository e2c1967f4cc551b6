"""Reductions along the rows of a compressed matrix: sums, counts, maxima and minima.

LLVM vectorises a maximum only if no element is NaN. A second loop, without this assumption, looks for NaN; the row is
in the cache by then.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.elements import cast, zero
from .helpers.parts import first_row, part_count


@njit(fastmath={"reassoc", "contract", "nsz"})
def _sum(begin, end, data, y):
    total = zero(y)
    for k in range(begin, end):
        total += cast(data[k], y)
    return total


@njit
def _count(begin, end, data, y):
    total = np.uint32(0)
    for k in range(begin, end):
        total += np.uint32(data[k] != 0)
    return cast(total, y)


@njit(fastmath={"nnan", "nsz"})
def _max(begin, end, data, y):
    found = data[begin]
    for k in range(begin, end):
        found = max(found, data[k])
    return cast(found, y)


@njit(fastmath={"nnan", "nsz"})
def _min(begin, end, data, y):
    found = data[begin]
    for k in range(begin, end):
        found = min(found, data[k])
    return cast(found, y)


@njit
def _has_nan(begin, end, data):
    count = np.uint32(0)
    for k in range(begin, end):
        count += np.uint32(data[k] != data[k])
    return count != np.uint32(0)


@njit
def _extreme(begin, end, data, y, is_max):
    """Return the maximum, or the minimum, of the entries *begin* … *end* - 1."""
    if begin == end:
        return zero(y)
    if _has_nan(begin, end, data):
        return cast(np.nan, y)
    return _max(begin, end, data, y) if is_max else _min(begin, end, data, y)


@njit(parallel=True, cache=True)
def sum_rows(data, indptr, y):
    """Write the sum of the weights of each row."""
    parts = part_count(data.size + y.size)
    for part in prange(parts):
        for i in range(np.uint64(first_row(indptr, part, parts)), np.uint64(first_row(indptr, part + 1, parts))):
            y[i] = _sum(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)]), data, y)


@njit(parallel=True, cache=True)
def count_rows(data, indptr, y):
    """Write the number of weights of each row that are not 0."""
    parts = part_count(data.size + y.size)
    for part in prange(parts):
        for i in range(np.uint64(first_row(indptr, part, parts)), np.uint64(first_row(indptr, part + 1, parts))):
            y[i] = _count(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)]), data, y)


@njit(parallel=True, cache=True)
def extremes_of_rows(data, indptr, is_max, y):
    """Write the maximum of the weights of each row, or the minimum, and 0 for rows without entries."""
    parts = part_count(data.size + y.size)
    for part in prange(parts):
        for i in range(np.uint64(first_row(indptr, part, parts)), np.uint64(first_row(indptr, part + 1, parts))):
            y[i] = _extreme(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)]), data, y, is_max)
