"""Matrix-vector product: each row gathers the elements of the vector at the column indices of its entries.

Flags are packed as bits into 32-bit words: processors have instructions that gather words, but none that gather bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.active import pack_flags
from .helpers.elements import shared_weight, term, unsigned, weight, zero
from .helpers.parts import first_row, part_count


@njit
def _element(x, j):
    """Return element *j* of *x*; an *x* of shape (1, words) holds bits, as `pack_flags` writes them."""
    if x.ndim == 2:
        return (x[0, np.uint64(j >> np.uint32(5))] >> np.uint32(j & np.uint32(31))) & np.uint32(1) != 0
    return x[np.uint64(j)]


# *active* is not an array but a compile-time switch, None or True, with the meaning that it has in `term`.
# LLVM may reassociate sums, in order to vectorise them. NaN and infinities are preserved.
@njit(fastmath={"contract", "reassoc", "nsz"})
def gather_rows(first, last, data, indices, indptr, x, y, active):
    """Compute the elements *first* … *last* - 1 of *y*, those of `gather`."""
    shared = shared_weight(data, y)
    # Indices are unsigned: Numba then emits no branch for negative indices, and LLVM can vectorise the loop.
    for i in range(np.uint64(first), np.uint64(last)):
        total = zero(y)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            total += term(weight(data, k, shared, y), _element(x, unsigned(indices[k])), active)
        y[i] = total


@njit(parallel=True)
def _gather(data, indices, indptr, x, y, active):
    parts = part_count(np.int64(indptr[y.size]) + y.size)
    if parts == 1:
        gather_rows(0, y.size, data, indices, indptr, x, y, active)
    else:
        for part in prange(parts):
            first, last = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
            gather_rows(first, last, data, indices, indptr, x, y, active)


@njit(cache=True)
def gather(data, indices, indptr, x, y):
    """Compute ``y[i] = sum(data[k] * x[indices[k]])`` over the entries k of row i."""
    _gather(data, indices, indptr, x, y, None)


@njit(cache=True)
def gather_values(data, indices, indptr, x, y):
    """Compute `gather`, omitting terms whose *x* element is 0, even if the weight is infinite or NaN."""
    _gather(data, indices, indptr, x, y, True)


@njit(cache=True)
def gather_flags(data, indices, indptr, x, y):
    """Compute `gather` for bools *x*; True counts as 1."""
    bits = np.empty((1, (x.size + 31) // 32), np.uint32)
    pack_flags(x, bits[0])
    _gather(data, indices, indptr, bits, y, True)
