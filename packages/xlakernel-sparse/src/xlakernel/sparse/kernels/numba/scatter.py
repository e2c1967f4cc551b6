"""A transposed matrix times a vector: each row, times its element of the vector, is added to the result.

Each thread adds to a private result; the private results are summed at the end.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.elements import cast, scale_each, scale_once
from .helpers.parts import first_of, first_row, part_count, private_part_count


@njit
def clear(y):
    """Set all elements of a vector to 0."""
    for j in range(y.size):
        y[j] = cast(0, y)


@njit
def add_private(first, last, private, y):
    """Add other threads' results, *private* of shape (parts, outputs), to the elements *first* … *last* - 1 of *y*."""
    for part in range(private.shape[0]):
        for j in range(np.uint64(first), np.uint64(last)):
            y[j] += private[part, j]


@njit(fastmath={"contract"})
def scatter_rows(first, last, data, indices, indptr, x, y):
    """Add the rows *first* … *last* - 1, times their elements of *x*, to *y*."""
    for i in range(np.uint64(first), np.uint64(last)):
        value = scale_once(data, x[i], y)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            y[np.uint64(indices[k])] += scale_each(data, k, value, y)


@njit(parallel=True, cache=True)
def scatter(data, indices, indptr, x, y):
    """Compute ``y[indices[k]] += data[k] * x[i]`` from zeros, for all entries k of all rows i."""
    rows = indptr.size - 1
    parts = private_part_count(np.int64(indptr[rows]) + rows, y.size, y.itemsize)
    if parts == 1:
        clear(y)
        scatter_rows(0, rows, data, indices, indptr, x, y)
    else:
        private = np.empty((parts - 1, y.size), y.dtype)
        for part in prange(parts):
            own = y if part == 0 else private[part - 1]
            clear(own)
            scatter_rows(
                first_row(indptr, part, parts), first_row(indptr, part + 1, parts), data, indices, indptr, x, own
            )
        shares = part_count(private.size)
        if shares == 1:
            add_private(0, y.size, private, y)
        else:
            for share in prange(shares):
                add_private(first_of(y.size, share, shares), first_of(y.size, share + 1, shares), private, y)
