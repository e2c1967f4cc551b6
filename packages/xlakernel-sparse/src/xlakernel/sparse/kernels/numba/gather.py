"""A matrix times a vector: each row gathers the elements of the vector that it has entries for."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from ._elements import term, weight, zero
from ._parts import first_row, part_count


# A sum may be taken in any order, as vectors need it. NaN and infinities stay what they are.
@njit(fastmath={"contract", "reassoc", "nsz"})
def _rows(first, last, data, indices, indptr, x, y, active):
    # Unsigned: Numba then asks of no index whether it counts from the end, and LLVM can vectorise.
    for i in range(np.uint64(first), np.uint64(last)):
        total = zero(y)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            total += term(weight(data, k, y), x[np.uint64(indices[k])], active)
        y[i] = total


@njit(parallel=True)
def _gather(data, indices, indptr, x, y, active):
    parts = part_count(np.int64(indptr[y.size]) + y.size)
    if parts == 1:
        _rows(0, y.size, data, indices, indptr, x, y, active)
    else:
        for part in prange(parts):
            first, last = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
            _rows(first, last, data, indices, indptr, x, y, active)


@njit(cache=True)
def gather(data, indices, indptr, x, y):
    """``y[i] = sum(data[k] * x[indices[k]])`` over the entries k of row i."""
    _gather(data, indices, indptr, x, y, None)


@njit(cache=True)
def gather_active(data, indices, indptr, x, y):
    """The same over the entries whose element of *x* is not 0 or False."""
    _gather(data, indices, indptr, x, y, True)
