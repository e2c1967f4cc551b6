"""Lines of a compressed matrix as dense vectors: rows by their numbers, and diagonals."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.elements import shared_weight, weight, zero
from .helpers.pages import use_huge_pages
from .helpers.parts import first_of, part_count


@njit
def _range_of(rows, r, indptr):
    """Return the first entry of row ``rows[r]``, and the end; an empty range if there is no such row."""
    i = np.int64(rows[r])
    if i < 0 or i >= indptr.size - 1:
        return np.uint64(0), np.uint64(0)
    return np.uint64(indptr[i]), np.uint64(indptr[i + 1])


@njit
def _slice(first, last, data, indices, indptr, rows, y):
    shared = shared_weight(data, y)
    for r in range(first, last):
        for j in range(y.shape[1]):
            y[r, j] = zero(y)
        begin, end = _range_of(rows, r, indptr)
        for k in range(begin, end):
            y[r, np.uint64(indices[k])] += weight(data, k, shared, y)


@njit(parallel=True, cache=True)
def slice_rows(data, indices, indptr, rows, y):
    """Write the rows of the matrix with the numbers *rows*; there are zeros where a number is out of range."""
    use_huge_pages(y)
    parts = min(part_count(y.size), max(1, rows.size))
    for part in prange(parts):
        _slice(first_of(rows.size, part, parts), first_of(rows.size, part + 1, parts), data, indices, indptr, rows, y)


@njit(cache=True)
def gather_slices(indices, indptr, rows, dense, y):
    """Compute ``y[k] = sum(dense[r, indices[k]])`` over the *r* for which entry *k* is in row ``rows[r]``."""
    for k in range(y.size):
        y[k] = zero(y)
    for r in range(rows.size):
        begin, end = _range_of(rows, r, indptr)
        for k in range(begin, end):
            y[k] += dense[r, np.uint64(indices[k])]


@njit(parallel=True, cache=True)
def diagonal(data, indices, indptr, offset, y):
    """Write the elements in the columns ``i + offset`` of the rows i, from row 0 or ``-offset`` on."""
    top = max(np.int64(0), -np.int64(offset))
    shared = shared_weight(data, y)
    parts = min(part_count(indices.size), max(1, y.size))
    for part in prange(parts):
        for i in range(first_of(y.size, part, parts), first_of(y.size, part + 1, parts)):
            column = i + top + offset
            total = zero(y)
            for k in range(np.uint64(indptr[i + top]), np.uint64(indptr[i + top + 1])):
                if np.int64(indices[k]) == column:
                    total += weight(data, k, shared, y)
            y[i] = total


@njit(cache=True)
def first_entries(indptr, lines, y):
    """Write the first entry of each of the *lines*, put one after the other, and the end, which is returned."""
    total = np.int64(0)
    y[0] = 0
    for i in range(lines.size):
        line = np.uint64(lines[i])
        total += np.int64(indptr[line + np.uint64(1)]) - np.int64(indptr[line])
        y[i + 1] = total
    return total


@njit(cache=True)
def copy_lines(values, indptr, lines, y):
    """Write the *values* of the entries of the *lines*, line by line; if *values* is None, the entries' numbers."""
    position = np.uint64(0)
    for i in range(lines.size):
        line = np.uint64(lines[i])
        begin = np.uint64(indptr[line])
        count = np.uint64(indptr[line + np.uint64(1)]) - begin
        for k in range(count):
            y[position + k] = begin + k if values is None else values[begin + k]
        position += count
