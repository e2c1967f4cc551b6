"""Products of two matrices in compressed rows, row by row.

The columns of a row are bits, which are sorted as they are. If few words have bits, these words are sorted, else all
words are read. Weights are added up in a dense row.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.bits import ones, trailing_zeros
from .helpers.elements import cast, zero
from .helpers.parts import first_row, part_count, write_starts

_SIX, _WITHIN, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)
#: All words are read if more than one in so many has bits.
_FEW = 16


@njit
def _mark(begin, end, a, b, b_start, words, touched):
    """Set the bits of a row's columns; write the words that have bits to *touched*, and return their number."""
    count = np.uint64(0)
    for k in range(begin, end):
        j = np.uint64(a[k])
        for m in range(np.uint64(b_start[j]), np.uint64(b_start[j + _ONE])):
            column = np.uint64(b[m])
            word = column >> _SIX
            touched[count] = word
            count += np.uint64(words[word] == 0)
            words[word] |= _ONE << (column & _WITHIN)
    return count


@njit
def _words(columns):
    """Return a word of bits for each 64 columns, and room for the numbers of these words and one more."""
    return np.zeros((columns + 63) // 64, np.uint64), np.empty((columns + 63) // 64 + 1, np.uint64)


@njit
def _count_rows(first, last, a, a_start, b, b_start, columns, counts):
    words, touched = _words(columns)
    for i in range(np.uint64(first), np.uint64(last)):
        total = np.uint64(0)
        for t in range(_mark(np.uint64(a_start[i]), np.uint64(a_start[i + _ONE]), a, b, b_start, words, touched)):
            total += ones(words[touched[t]])
            words[touched[t]] = 0
        counts[i] = total


@njit(parallel=True, cache=True)
def product_rows(a, a_start, b, b_start, columns, indptr):
    """Write the first entry of each row of the product."""
    parts = part_count(a.size + b.size)
    counts = np.empty(indptr.size - 1, np.int64)
    for part in prange(parts):
        first, last = first_row(a_start, part, parts), first_row(a_start, part + 1, parts)
        _count_rows(first, last, a, a_start, b, b_start, columns, counts)
    write_starts(counts, indptr)


@njit
def _take(words, number, q, indices):
    """Write the columns of a word's bits from position *q* on, and clear the word; return the position after them."""
    word = words[number]
    words[number] = 0
    while word != 0:
        indices[q] = (number << _SIX) + trailing_zeros(word)
        word &= word - _ONE
        q += _ONE
    return q


@njit
def _list_rows(first, last, a, a_start, b, b_start, indptr, columns, indices):
    words, touched = _words(columns)
    for i in range(np.uint64(first), np.uint64(last)):
        count = _mark(np.uint64(a_start[i]), np.uint64(a_start[i + _ONE]), a, b, b_start, words, touched)
        q = np.uint64(indptr[i])
        if np.int64(count) * _FEW > words.size:
            for number in range(np.uint64(words.size)):
                q = _take(words, number, q, indices)
        else:
            touched[:count].sort()
            for t in range(count):
                q = _take(words, touched[t], q, indices)


@njit(parallel=True, cache=True)
def product_entries(a, a_start, b, b_start, indptr, columns, indices):
    """Write the columns of the product's entries, which ascend in each row."""
    parts = part_count(a.size + b.size)
    for part in prange(parts):
        first, last = first_row(a_start, part, parts), first_row(a_start, part + 1, parts)
        _list_rows(first, last, a, a_start, b, b_start, indptr, columns, indices)


@njit(fastmath={"contract"})
def _add_row(weight, begin, end, b_data, b, sums):
    for m in range(begin, end):
        sums[np.uint64(b[m])] += weight * cast(b_data[m], sums)


@njit
def _sum_rows(first, last, a_data, a, a_start, b_data, b, b_start, indices, indptr, columns, y):
    sums = np.zeros(columns, y.dtype)
    for i in range(np.uint64(first), np.uint64(last)):
        for k in range(np.uint64(a_start[i]), np.uint64(a_start[i + _ONE])):
            j = np.uint64(a[k])
            _add_row(cast(a_data[k], y), np.uint64(b_start[j]), np.uint64(b_start[j + _ONE]), b_data, b, sums)
        for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + _ONE])):
            y[q] = sums[np.uint64(indices[q])]
            sums[np.uint64(indices[q])] = zero(y)


@njit(parallel=True, cache=True)
def product_weights(a_data, a, a_start, b_data, b, b_start, indices, indptr, columns, y):
    """Write the weights of the product."""
    parts = part_count(a.size + b.size)
    for part in prange(parts):
        first, last = first_row(a_start, part, parts), first_row(a_start, part + 1, parts)
        _sum_rows(first, last, a_data, a, a_start, b_data, b, b_start, indices, indptr, columns, y)
