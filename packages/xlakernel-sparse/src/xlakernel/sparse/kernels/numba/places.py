"""Places of the entries of a compressed structure: their rows, and entries that share a place."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.parts import first_of, first_row, part_count


@njit
def _fill(first, last, indptr, row):
    for i in range(np.uint64(first), np.uint64(last)):
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            row[k] = i


@njit(parallel=True, cache=True)
def entry_rows(indptr, row):
    """Write the row of each entry; padding gets the number of rows."""
    rows = indptr.size - 1
    used = np.int64(indptr[rows])
    parts = part_count(row.size + rows)
    unused = row.size - used
    for part in prange(parts):
        _fill(first_row(indptr, part, parts), first_row(indptr, part + 1, parts), indptr, row)
        for k in range(used + first_of(unused, part, parts), used + first_of(unused, part + 1, parts)):
            row[k] = rows


@njit
def _falls(begin, end, indices):
    """Return how many of the entries *begin* … *end* - 1 follow one whose index is not less."""
    falls = np.uint32(0)
    for k in range(np.uint64(begin) + np.uint64(1), np.uint64(end)):
        falls += np.uint32(indices[k - np.uint64(1)] >= indices[k])
    return falls


@njit(parallel=True, cache=True)
def descents(indices, indptr, count):
    """Count the entries that follow an entry of their row with an index that is not less."""
    rows = indptr.size - 1
    parts = part_count(indices.size + rows)
    counts = np.zeros(parts, np.int64)
    for part in prange(parts):
        for i in range(first_row(indptr, part, parts), first_row(indptr, part + 1, parts)):
            counts[part] += np.int64(_falls(indptr[i], indptr[i + 1], indices))
    count[()] = counts.sum()


@njit
def _first_of_row(begin, end, indices, latest, first):
    """Write the first entry of each place of a row; return the number of other entries.

    ``latest[j]`` is the last first entry in column j, of this row or of an earlier one: it need not be cleared.
    """
    repeated = 0
    for k in range(begin, end):
        j = np.uint64(indices[k])
        if latest[j] >= begin:
            first[k] = latest[j]
            repeated += 1
        else:
            first[k] = k
            latest[j] = k
    return repeated


@njit
def _first_of_rows(start, stop, indices, indptr, columns, first):
    latest = np.empty(0, np.int64)
    repeated = 0
    for k in range(np.uint64(indptr[start]), np.uint64(indptr[stop])):
        first[k] = k
    for i in range(np.uint64(start), np.uint64(stop)):
        begin, end = np.int64(indptr[i]), np.int64(indptr[i + np.uint64(1)])
        if _falls(begin, end, indices) != np.uint32(0):
            if latest.size == 0:
                latest = np.full(columns, -1, np.int64)
            repeated += _first_of_row(begin, end, indices, latest, first)
    return repeated


@njit(parallel=True, cache=True)
def first_of_places(indices, indptr, columns, first, repeated):
    """Write the first entry of the same row and column for each entry, and the number of entries that are not first."""
    rows = indptr.size - 1
    parts = part_count(indices.size + rows)
    counts = np.zeros(parts, np.int64)
    for part in prange(parts):
        start, stop = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
        counts[part] = _first_of_rows(start, stop, indices, indptr, columns, first)
    for k in range(np.int64(indptr[rows]), indices.size):
        first[k] = k
    repeated[()] = counts.sum()
