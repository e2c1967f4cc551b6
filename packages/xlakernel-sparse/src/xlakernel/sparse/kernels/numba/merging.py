"""Merged structures of two matrices in compressed rows, whose indices ascend within each row.

Which of two indices is less cannot be predicted: loops advance by the results of comparisons, without branches. Common
places are counted with bits, without the dependence of each step on the one before.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.parts import first_row, part_count, write_starts

_SIX, _WITHIN, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)


@njit
def _count_rows(start, stop, a, a_start, b, b_start, common, counts):
    """Count the places of the merged rows *start* … *stop* - 1; the columns of a row of *a* are set bits meanwhile."""
    largest = np.int64(0)
    for k in range(a_start[start], a_start[stop]):
        largest = max(largest, np.int64(a[k]))
    for k in range(b_start[start], b_start[stop]):
        largest = max(largest, np.int64(b[k]))
    words = np.zeros(largest // 64 + 1, np.uint64)
    for r in range(np.uint64(start), np.uint64(stop)):
        i, i_end = np.uint64(a_start[r]), np.uint64(a_start[r + _ONE])
        j, j_end = np.uint64(b_start[r]), np.uint64(b_start[r + _ONE])
        both = np.uint64(0)
        for k in range(i, i_end):
            words[np.uint64(a[k]) >> _SIX] |= _ONE << (np.uint64(a[k]) & _WITHIN)
        for k in range(j, j_end):
            both += (words[np.uint64(b[k]) >> _SIX] >> (np.uint64(b[k]) & _WITHIN)) & _ONE
        for k in range(i, i_end):
            words[np.uint64(a[k]) >> _SIX] = 0
        counts[r] = both if common else i_end - i + j_end - j - both


@njit(parallel=True, cache=True)
def merge_rows(a, a_start, b, b_start, common, indptr):
    """Write the first entry of each row of the merged structure."""
    parts = part_count(a.size + b.size)
    counts = np.empty(indptr.size - 1, np.int64)
    for part in prange(parts):
        start, stop = first_row(a_start, part, parts), first_row(a_start, part + 1, parts)
        _count_rows(start, stop, a, a_start, b, b_start, common, counts)
    write_starts(counts, indptr)


@njit
def _all_of_row(i, i_end, j, j_end, a, b, q, indices, first, second):
    """Write the places in either row."""
    while i < i_end and j < j_end:
        x, y = a[i], b[j]
        indices[q] = min(x, y)
        first[q] = i if x <= y else np.uint64(a.size)
        second[q] = j if y <= x else np.uint64(b.size)
        i += np.uint64(x <= y)
        j += np.uint64(y <= x)
        q += _ONE
    while i < i_end:
        indices[q], first[q], second[q] = a[i], i, b.size
        i += _ONE
        q += _ONE
    while j < j_end:
        indices[q], first[q], second[q] = b[j], a.size, j
        j += _ONE
        q += _ONE


@njit
def _common_of_row(i, i_end, j, j_end, a, b, q, indices, first, second):
    """Write the places in both rows."""
    while i < i_end and j < j_end:
        x, y = a[i], b[j]
        if x == y:
            indices[q], first[q], second[q] = x, i, j
            q += _ONE
        i += np.uint64(x <= y)
        j += np.uint64(y <= x)


@njit(parallel=True, cache=True)
def merge_entries(a, a_start, b, b_start, indptr, common, indices, first, second):
    """Write the column of each place of the merged structure, and its entries in both matrices."""
    parts = part_count(a.size + b.size)
    for part in prange(parts):
        for r in range(np.uint64(first_row(a_start, part, parts)), np.uint64(first_row(a_start, part + 1, parts))):
            i, i_end = np.uint64(a_start[r]), np.uint64(a_start[r + _ONE])
            j, j_end = np.uint64(b_start[r]), np.uint64(b_start[r + _ONE])
            q = np.uint64(indptr[r])
            if common:
                _common_of_row(i, i_end, j, j_end, a, b, q, indices, first, second)
            else:
                _all_of_row(i, i_end, j, j_end, a, b, q, indices, first, second)
