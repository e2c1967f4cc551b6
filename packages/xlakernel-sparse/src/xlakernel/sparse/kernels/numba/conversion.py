"""Conversion of compressed rows to compressed columns by a counting sort of two levels.

Neighbouring columns form a bucket. First the entries are moved to their buckets, which are few enough to be written as
sequential streams. Then each bucket is sorted by itself, inside a processor's cache. Each thread moves the entries of
neighbouring rows, and places them in each bucket after the entries of earlier rows: rows ascend within a column.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .helpers.elements import cast
from .helpers.parts import first_of, first_row, part_count
from .helpers.prefetch import prefetch_for_writing

# Base-2 logarithms of the smallest and the largest number of columns in a bucket; uint16 can number them.
_SMALLEST, _LARGEST = 7, 16
# The numbers of elements of 4 and of 2 bytes in a cache line. The next cache line of each stream is prefetched before
# the first store to the line: processors complete stores in order, and would otherwise wait for the line.
_LINE, _LINE_OF_16_BITS = np.uint64(16), np.uint64(32)


@njit
def _bucket_bits(columns):
    """Return the base-2 logarithm of the number of columns in a bucket, which is about the square root of *columns*."""
    bits = _SMALLEST
    while bits < _LARGEST and columns >> (2 * bits) > 0:
        bits += 1
    return bits


@njit
def _move(payload, k, q, moved):
    """Write the payload of entry *k* to ``moved[q]``; write *k* itself if *payload* has shape (1, 1)."""
    if payload.ndim == 1:
        moved[q] = payload[k]
    else:
        moved[q] = cast(k, moved)


@njit
def _count(begin, end, indices, bits, counts):
    """Count the entries of each bucket."""
    counts[:] = 0
    for k in range(np.uint64(begin), np.uint64(end)):
        counts[np.uint64(indices[k]) >> np.uint64(bits)] += 1


@njit
def _start(counts, starts):
    """Replace *counts*, of shape (parts, buckets), by the first position of each part in each bucket."""
    position = np.int64(0)
    for bucket in range(counts.shape[1]):
        starts[bucket] = position
        for part in range(counts.shape[0]):
            count = counts[part, bucket]
            counts[part, bucket] = position
            position += count
    starts[counts.shape[1]] = position


@njit
def _distribute(first, last, indices, indptr, payload, bits, positions, row, column, moved):
    """Move the entries of the rows *first* … *last* - 1 to their buckets."""
    within = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for i in range(np.uint64(first), np.uint64(last)):
        for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            j = np.uint64(indices[k])
            bucket = j >> np.uint64(bits)
            q = np.uint64(positions[bucket])
            positions[bucket] = np.int64(q + np.uint64(1))
            row[q] = i
            column[q] = j & within
            _move(payload, k, q, moved)
            prefetch_for_writing(row, q + _LINE)
            prefetch_for_writing(column, q + _LINE_OF_16_BITS)
            prefetch_for_writing(moved, q + _LINE)


@njit
def _order(begin, end, first, row, column, moved, indices_t, indptr_t, moved_t, counts):
    """Sort the entries *begin* … *end* - 1, the bucket whose first column is *first*."""
    counts[:] = 0
    for k in range(np.uint64(begin), np.uint64(end)):
        counts[np.uint64(column[k])] += 1
    position = begin
    for c in range(min(counts.size, indptr_t.size - 1 - first)):
        indptr_t[first + c] = position
        count = counts[c]
        counts[c] = position
        position += count
    for k in range(np.uint64(begin), np.uint64(end)):
        j = np.uint64(column[k])
        q = np.uint64(counts[j])
        counts[j] = np.int64(q + np.uint64(1))
        indices_t[q] = row[k]
        moved_t[q] = moved[k]
        prefetch_for_writing(indices_t, q + _LINE)
        prefetch_for_writing(moved_t, q + _LINE)


@njit
def _order_share(share, shares, starts, bits, row, column, moved, indices_t, indptr_t, moved_t):
    """Sort the buckets that begin in a share; shares have equal numbers of entries plus buckets."""
    buckets = starts.size - 1
    entries = starts[buckets]
    counts = np.empty(1 << bits, np.int64)
    begin, end = first_of(entries + buckets, share, shares), first_of(entries + buckets, share + 1, shares)
    for bucket in range(buckets):
        if begin <= starts[bucket] + bucket < end:
            first = bucket << bits
            _order(starts[bucket], starts[bucket + 1], first, row, column, moved, indices_t, indptr_t, moved_t, counts)


@njit
def _pad(begin, payload, indices_t, moved_t):
    """Fill the padding after the entries with zeros; in a permutation, with the positions themselves."""
    for k in range(begin, indices_t.size):
        indices_t[k] = 0
        if payload.ndim == 1:
            moved_t[k] = cast(0, moved_t)
        else:
            moved_t[k] = k


@njit(parallel=True)
def _transpose(payload, indices, indptr, indices_t, indptr_t, moved_t):
    rows, columns = indptr.size - 1, indptr_t.size - 1
    used = np.int64(indptr[rows])
    parts = part_count(used + rows + columns)
    bits = _bucket_bits(columns)
    buckets = (columns + (1 << bits) - 1) >> bits
    counts = np.empty((parts, buckets), np.int64)
    starts = np.empty(buckets + 1, np.int64)
    row, column, moved = np.empty(used, indices.dtype), np.empty(used, np.uint16), np.empty(used, moved_t.dtype)
    for part in prange(parts):
        first, last = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
        _count(indptr[first], indptr[last], indices, bits, counts[part])
    _start(counts, starts)
    for part in prange(parts):
        first, last = first_row(indptr, part, parts), first_row(indptr, part + 1, parts)
        _distribute(first, last, indices, indptr, payload, bits, counts[part], row, column, moved)
    for part in prange(parts):
        _order_share(part, parts, starts, bits, row, column, moved, indices_t, indptr_t, moved_t)
    indptr_t[columns] = used
    _pad(used, payload, indices_t, moved_t)


@njit(cache=True)
def transpose(indices, indptr, indices_t, indptr_t, permutation):
    """Compute the structure of the transpose, and the original position of each entry."""
    _transpose(np.empty((1, 1), np.int8), indices, indptr, indices_t, indptr_t, permutation)


@njit(cache=True)
def transpose_with_data(data, indices, indptr, data_t, indices_t, indptr_t):
    """Compute the structure of the transpose, and the data in its order."""
    _transpose(data, indices, indptr, indices_t, indptr_t, data_t)
