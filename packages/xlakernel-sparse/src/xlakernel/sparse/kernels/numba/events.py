"""A transposed matrix times events: the rows of active events are scattered, and the other rows are not read."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.active import active_flags, active_values, cut_active, entries_of, list_active
from .helpers.elements import cast, scale_each, scale_once
from .helpers.parts import first_of, part_count, private_part_count, thread_count
from .helpers.prefetch import prefetch
from .helpers.strips import scatter_strips
from .scatter import add_private, clear

# The number of entries of the next row to prefetch, and the largest number of entries in a cache line.
_AHEAD = np.uint64(256)
_LINE = np.uint64(16)
# Several vectors are multiplied all at once, entry by entry, if more than one in so many elements is active.
_DENSE = 8
_BLOCK = 32


@njit
def _prefetch_row(i, data, order, indices, indptr):
    begin, end = np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])
    for k in range(begin, min(end, begin + _AHEAD), _LINE):
        prefetch(indices, k)
        if order.ndim == 1:
            prefetch(order, k)
        elif data.ndim == 1:
            prefetch(data, k)


@njit
def no_order():
    """Return the *order* of entries whose weights are in the order of the entries."""
    return np.empty((1, 1), np.uint8)


@njit
def _position(order, k):
    """Return the position of the weight of entry *k*; an *order* of shape (1, 1) means that it is *k*."""
    return k if order.ndim == 2 else np.uint64(order[k])


@njit(fastmath={"contract"})
def _rows(first, last, active, values, data, order, indices, indptr, y):
    """Scatter the rows ``active[first:last]``; *values* has shape (1, 1) if all values are 1."""
    for a in range(np.uint64(first), np.uint64(last)):
        i = np.uint64(active[a])
        if a + np.uint64(1) < np.uint64(last):
            _prefetch_row(np.uint64(active[a + np.uint64(1)]), data, order, indices, indptr)
        value = cast(1, y)
        if values.ndim == 1:
            value = values[i]
        value = scale_once(data, value, y)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            y[np.uint64(indices[k])] += scale_each(data, _position(order, k), value, y)


@njit(parallel=True)
def scatter_active(active, count, values, data, order, indices, indptr, y):
    """Compute the sum of the rows ``active[:count]``, times their *values*."""
    entries = entries_of(active, count, indptr)
    parts = private_part_count(entries, y.size, y.itemsize)
    if parts == 1:
        clear(y)
        _rows(0, count, active, values, data, order, indices, indptr, y)
    else:
        cuts = np.empty(parts + 1, np.int64)
        cut_active(active, count, indptr, entries, cuts)
        private = np.empty((parts - 1, y.size), y.dtype)
        for part in prange(parts):
            own = y if part == 0 else private[part - 1]
            clear(own)
            _rows(cuts[part], cuts[part + 1], active, values, data, order, indices, indptr, own)
        shares = part_count(private.size)
        if shares == 1:
            add_private(0, y.size, private, y)
        else:
            for share in prange(shares):
                add_private(first_of(y.size, share, shares), first_of(y.size, share + 1, shares), private, y)


@njit(cache=True)
def scatter_flags(data, indices, indptr, x, y):
    """Compute the sum of the rows i for which ``x[i]`` is True."""
    active = np.empty(x.size + 1, np.uint64)
    count = active_flags(x, active)
    scatter_active(active, count, np.empty((1, 1), y.dtype), data, no_order(), indices, indptr, y)


@njit(cache=True)
def scatter_values(data, indices, indptr, x, y):
    """Compute the sum of ``x[i]`` times row i over all nonzero ``x[i]``."""
    active = np.empty(x.size + 1, np.uint64)
    count = active_values(x, active)
    scatter_active(active, count, x, data, no_order(), indices, indptr, y)


@njit(cache=True)
def scatter_listed(data, indices, indptr, active, count, y):
    """Compute the sum of the rows ``active[:count]``."""
    scatter_active(active, count[()], np.empty((1, 1), y.dtype), data, no_order(), indices, indptr, y)


@njit
def _count(x):
    """Return the number of elements of a matrix that are not 0 or False."""
    count = np.int64(0)
    for c in range(x.shape[0]):
        for i in range(np.uint64(x.shape[1])):
            count += np.int64(x[c, i] != 0)
    return count


@njit
def _transpose(matrix, into):
    """Write the transposed matrix in blocks that fit in a processor's first cache.

    An assignment to a slice, ``into[:] = ...``, takes Numba seconds to compile: it formats both shapes for an error.
    """
    rows, columns = matrix.shape
    for top in range(0, rows, _BLOCK):
        for begin in range(0, columns, _BLOCK):
            for i in range(np.uint64(top), np.uint64(min(top + _BLOCK, rows))):
                for j in range(np.uint64(begin), np.uint64(min(begin + _BLOCK, columns))):
                    into[j, i] = matrix[i, j]


@njit
def _scatter_dense(data, indices, indptr, x, y):
    columns, product = np.empty((x.shape[1], x.shape[0]), x.dtype), np.empty((y.shape[1], y.shape[0]), y.dtype)
    _transpose(x, columns)
    scatter_strips(data, indices, indptr, columns, product, True)
    _transpose(product, y)


@njit(parallel=True)
def _scatter_each(data, indices, indptr, x, y, ones, events):
    vectors = x.shape[0]
    if vectors < thread_count():  # the threads share the entries of each vector
        active = np.empty(x.shape[1] + 1, np.uint64)
        for c in range(vectors):
            count, values = list_active(x[c], ones, active)
            scatter_active(active, count, values, data, no_order(), indices, indptr, y[c])
        return
    parts = min(part_count(events * (indices.size // max(1, x.shape[1])) + y.size), vectors)
    for part in prange(parts):
        active = np.empty(x.shape[1] + 1, np.uint64)
        for c in range(first_of(vectors, part, parts), first_of(vectors, part + 1, parts)):
            count, values = list_active(x[c], ones, active)
            clear(y[c])
            _rows(0, count, active, values, data, no_order(), indices, indptr, y[c])


@njit
def _scatter_matrix(data, indices, indptr, x, y, ones):
    events = _count(x)
    if events * _DENSE < x.size:
        _scatter_each(data, indices, indptr, x, y, ones, events)
    else:
        _scatter_dense(data, indices, indptr, x, y)


@njit(cache=True)
def scatter_rows_of_flags(data, indices, indptr, x, y):
    """Compute `scatter_flags` for each row of a matrix *x*, whose product is a row of *y*."""
    _scatter_matrix(data, indices, indptr, x, y, np.empty((1, 1), y.dtype))


@njit(cache=True)
def scatter_rows_of_values(data, indices, indptr, x, y):
    """Compute `scatter_values` for each row of a matrix *x*, whose product is a row of *y*."""
    _scatter_matrix(data, indices, indptr, x, y, np.empty(0, y.dtype))


@njit(cache=True)
def list_flags(x, active, count):
    """Write the positions of True, followed by zeros, and their number."""
    number = active_flags(x, active)
    active[number:] = 0
    count[()] = number
