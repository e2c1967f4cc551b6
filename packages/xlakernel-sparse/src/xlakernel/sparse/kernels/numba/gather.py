"""A matrix times a vector: each row gathers the elements of the vector that it has entries for.

Flags are gathered in one of two ways. Where weights are wanted too, from bits: 32 together in a word, because there are
instructions that gather words and none that gather bytes. Where all weights are equal, flags are only counted.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from ._active import pack_flags
from ._elements import cast, term, unsigned, weight, zero
from ._parts import first_row, part_count


def _element(x, j):
    """Return element *j* of *x*, which may be bits, as `pack_flags` writes them, in an array of shape (1, words)."""
    raise NotImplementedError


@overload(_element)
def _element_of(x, j):
    if isinstance(x, types.Array) and x.ndim == 2:
        return lambda x, j: (x[0, np.uint64(j >> np.uint32(5))] >> np.uint32(j & np.uint32(31))) & np.uint32(1) != 0
    return lambda x, j: x[np.uint64(j)]


# A sum may be taken in any order, as vectors need it. NaN and infinities stay what they are.
@njit(fastmath={"contract", "reassoc", "nsz"})
def _sum_rows(first, last, data, indices, indptr, x, y, active):
    # Unsigned: Numba then asks of no index whether it counts from the end, and LLVM can vectorise.
    for i in range(np.uint64(first), np.uint64(last)):
        total = zero(y)
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            total += term(weight(data, k, y), _element(x, unsigned(indices[k])), active)
        y[i] = total


@njit
def _count_rows(first, last, data, indices, indptr, flags, y, active):
    """Compute the rows from the numbers of their active entries, which have the same weight."""
    one, four = np.uint64(1), np.uint64(4)
    for i in range(np.uint64(first), np.uint64(last)):
        k, end = np.uint64(indptr[i]), np.uint64(indptr[i + one])
        # In four sums, of which none waits for another.
        a, b, c, d = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
        while k + four <= end:
            a += np.uint64(flags[np.uint64(unsigned(indices[k]))])
            b += np.uint64(flags[np.uint64(unsigned(indices[k + one]))])
            c += np.uint64(flags[np.uint64(unsigned(indices[k + np.uint64(2)]))])
            d += np.uint64(flags[np.uint64(unsigned(indices[k + np.uint64(3)]))])
            k += four
        while k < end:
            a += np.uint64(flags[np.uint64(unsigned(indices[k]))])
            k += one
        count = a + b + c + d
        # Not 0 times the weight, which may be NaN.
        y[i] = cast(count, y) * cast(data[0, 0], y) if count != 0 else zero(y)


def _rows(first, last, data, indices, indptr, x, y, active):
    """Compute the rows *first* … *last* - 1; of flags, count what is active."""
    raise NotImplementedError


@overload(_rows)
def _rows_of(first, last, data, indices, indptr, x, y, active):
    compute = _count_rows if x.dtype == types.bool_ else _sum_rows

    def rows(first, last, data, indices, indptr, x, y, active):
        compute(first, last, data, indices, indptr, x, y, active)

    return rows


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
def gather_values(data, indices, indptr, x, y):
    """The same over the entries whose element of *x* is not 0."""
    _gather(data, indices, indptr, x, y, True)


@njit(cache=True)
def gather_flags(data, indices, indptr, x, y):
    """The same over the entries whose element of *x* is True, which counts as 1."""
    if data.ndim == 2:
        _gather(data, indices, indptr, x, y, True)
    else:
        bits = np.empty((1, (x.size + 31) // 32), np.uint32)
        pack_flags(x, bits[0])
        _gather(data, indices, indptr, bits, y, True)
