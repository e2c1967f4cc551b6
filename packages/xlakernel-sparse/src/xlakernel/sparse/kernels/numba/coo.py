"""A matrix in coordinates, in any order, times a vector or a matrix."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.elements import equal_weight, term, weight
from .helpers.parts import first_of, private_part_count
from .helpers.strips import scatter_strips
from .scatter import add_private, clear


@njit(fastmath={"contract"})
def _entries(first, last, data, row, col, x, y, active):
    equal = equal_weight(data, y)
    for k in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(row[k])
        if i < np.uint64(y.size):  # others do not exist
            y[i] += term(weight(data, k, equal, y), x[np.uint64(col[k])], active)


@njit(parallel=True)
def _scatter(data, row, col, x, y, active):
    parts = private_part_count(row.size, y.size, y.itemsize)
    if parts == 1:
        clear(y)
        _entries(0, row.size, data, row, col, x, y, active)
    else:
        private = np.empty((parts - 1, y.size), y.dtype)
        for part in prange(parts):
            own = y if part == 0 else private[part - 1]
            clear(own)
            first, last = first_of(row.size, part, parts), first_of(row.size, part + 1, parts)
            _entries(first, last, data, row, col, x, own, active)
        add_private(0, y.size, private, y)


@njit(cache=True)
def scatter_entries(data, row, col, x, y):
    """``y[row[k]] += data[k] * x[col[k]]`` for all entries k, from 0; none where ``row[k]`` is no row."""
    _scatter(data, row, col, x, y, None)


@njit(cache=True)
def scatter_active_entries(data, row, col, x, y):
    """The same over the entries whose element of *x* is not 0 or False."""
    _scatter(data, row, col, x, y, True)


@njit(cache=True)
def scatter_entries_matrix(data, row, col, x, y):
    """The same as `scatter_entries` with rows of *x* and *y*; *col* has shape (nnz, 1)."""
    scatter_strips(data, row, col, x, y, None)


@njit(cache=True)
def scatter_active_entries_matrix(data, row, col, x, y):
    """The same over the elements of *x* that are not 0 or False."""
    scatter_strips(data, row, col, x, y, True)
