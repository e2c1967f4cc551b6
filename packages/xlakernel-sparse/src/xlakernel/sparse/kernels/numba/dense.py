"""Vectors of events times a dense matrix: only the lines of active events are read.

The vectors are the rows of ``x``, and the products those of ``y``. The matrix is row-major.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.active import list_active
from .helpers.elements import cast, term, zero
from .helpers.parts import first_of, part_count

# If more than one event in so many is active, whole rows are read: each cache line has a column of an active event.
_DENSE = 16


@njit
def _value(values, i, like):
    if values.ndim == 2:
        return cast(1, like)
    return cast(values[i], like)


@njit(fastmath={"contract"})
def _scaled(element, value, values, like):
    """Return an element of the matrix in the dtype of *like*, times *value*; a flag is no factor: 1 * inf is NaN."""
    if values.ndim == 2:
        return cast(element, like)
    return cast(element, like) * value


@njit(fastmath={"contract"})
def _add_rows(active, count, values, matrix, begin, end, y):
    """Add the rows of active events, times their *values*, to *y* from *begin* to *end* - 1; four rows at a time."""
    for j in range(begin, end):
        y[j] = zero(y)
    a = np.uint64(0)
    while a + np.uint64(4) <= count:
        p, q, r, s = active[a], active[a + np.uint64(1)], active[a + np.uint64(2)], active[a + np.uint64(3)]
        of_p, of_q = _value(values, p, y), _value(values, q, y)
        of_r, of_s = _value(values, r, y), _value(values, s, y)
        for j in range(begin, end):
            first = _scaled(matrix[p, j], of_p, values, y) + _scaled(matrix[q, j], of_q, values, y)
            second = _scaled(matrix[r, j], of_r, values, y) + _scaled(matrix[s, j], of_s, values, y)
            y[j] += first + second
        a += np.uint64(4)
    while a < count:
        p = active[a]
        of_p = _value(values, p, y)
        for j in range(begin, end):
            y[j] += _scaled(matrix[p, j], of_p, values, y)
        a += np.uint64(1)


@njit(parallel=True)
def _sum_rows(matrix, x, ones, y):
    vectors, columns = y.shape
    for c in range(vectors):
        active = np.empty(x.shape[1] + 1, np.uint64)
        count, values = list_active(x[c], ones, active)
        parts = min(part_count(np.int64(count) * columns), max(1, columns))
        for part in prange(parts):
            begin, end = np.uint64(first_of(columns, part, parts)), np.uint64(first_of(columns, part + 1, parts))
            _add_rows(active, count, values, matrix, begin, end, y[c])


@njit(cache=True)
def sum_rows_of_flags(matrix, x, y):
    """Compute the sum of the rows of *matrix* at which a row of *x* is True."""
    _sum_rows(matrix, x, np.empty((1, 1), np.uint8), y)


@njit(cache=True)
def sum_rows_of_values(matrix, x, y):
    """Compute the sum of the rows of *matrix*, times the elements of a row of *x* that are not 0."""
    _sum_rows(matrix, x, np.empty(0, np.uint8), y)


@njit(fastmath={"contract", "reassoc", "nsz"})
def _scan(matrix, i, x, y):
    total = zero(y)
    for j in range(np.uint64(x.size)):
        total += term(cast(matrix[i, j], y), x[j], True)
    return total


@njit(fastmath={"contract"})
def _pick(matrix, i, active, count, values, y):
    total = zero(y)
    for a in range(np.uint64(count)):
        j = active[a]
        total += _scaled(matrix[i, j], _value(values, j, y), values, y)
    return total


@njit(parallel=True)
def _sum_columns(matrix, x, ones, y):
    vectors, rows = y.shape
    for c in range(vectors):
        active = np.empty(x.shape[1] + 1, np.uint64)
        count, values = list_active(x[c], ones, active)
        is_dense = np.int64(count) * _DENSE > x.shape[1]
        work = np.int64(rows) * (np.int64(x.shape[1]) if is_dense else np.int64(count) * _DENSE)
        parts = min(part_count(work), max(1, rows))
        for part in prange(parts):
            for i in range(first_of(rows, part, parts), first_of(rows, part + 1, parts)):
                if is_dense:
                    y[c, i] = _scan(matrix, np.uint64(i), x[c], y)
                else:
                    y[c, i] = _pick(matrix, np.uint64(i), active, count, values, y)


@njit(cache=True)
def sum_columns_of_flags(matrix, x, y):
    """Compute the sum of the columns of *matrix* at which a row of *x* is True."""
    _sum_columns(matrix, x, np.empty((1, 1), np.uint8), y)


@njit(cache=True)
def sum_columns_of_values(matrix, x, y):
    """Compute the sum of the columns of *matrix*, times the elements of a row of *x* that are not 0."""
    _sum_columns(matrix, x, np.empty(0, np.uint8), y)
