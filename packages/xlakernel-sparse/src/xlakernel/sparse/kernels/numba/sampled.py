"""Elements of a product of two dense matrices, at the places where a sparse one has entries."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from ._elements import cast, zero
from ._parts import first_of, first_row, part_count


@njit(fastmath={"contract", "reassoc", "nsz"})
def _rows(first, last, indices, indptr, u, v, out):
    for i in range(np.uint64(first), np.uint64(last)):
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            j = np.uint64(indices[k])
            if u.ndim == 1:
                out[k] = u[i] * v[j]
            else:
                total = zero(out)
                for c in range(np.uint64(u.shape[1])):
                    total += u[i, c] * v[j, c]
                out[k] = total


@njit
def _clear(first, last, out):
    for k in range(first, last):
        out[k] = cast(0, out)


@njit(parallel=True, cache=True)
def sample(indices, indptr, u, v, out):
    """``out[k] = sum(u[i] * v[indices[k]])`` for the entries k of all rows i, and 0 in the padding behind them."""
    rows = indptr.size - 1
    used = np.int64(indptr[rows])
    parts = part_count((rows + out.size) * max(1, u.size // max(1, rows)))
    if parts == 1:
        _rows(0, rows, indices, indptr, u, v, out)
        _clear(used, out.size, out)
    else:
        for part in prange(parts):
            _rows(first_row(indptr, part, parts), first_row(indptr, part + 1, parts), indices, indptr, u, v, out)
            unused = out.size - used
            _clear(used + first_of(unused, part, parts), used + first_of(unused, part + 1, parts), out)
