"""Parts of a kernel's work for several threads."""

from __future__ import annotations

import numpy as np
from numba import njit

# Numba calls the public function through a pointer, and code that contains a pointer cannot be cached on disk.
from numba.np.ufunc.parallel import _iget_num_threads

thread_count = _iget_num_threads

#: The number of entries below which one thread is faster than several threads.
SERIAL = 60_000
#: The limit for the private outputs of all threads together, in bytes.
PRIVATE_BYTES = 1 << 28


@njit
def part_count(work):
    """Return the number of parts, one for each thread, for *work* entries; 1 means no other threads."""
    if work < SERIAL:
        return 1
    return max(1, min(thread_count(), work // (SERIAL // 2)))


@njit
def private_part_count(work, outputs, itemsize):
    """Return the number of parts if all but the first have *outputs* private elements, which are cleared and summed."""
    parts = part_count(work)
    parts = min(parts, 1 + work // max(2 * outputs, 1))
    return max(1, min(parts, 1 + PRIVATE_BYTES // max(outputs * itemsize, 1)))


@njit
def first_row(indptr, part, parts):
    """Return the first row of *part*; all parts have about the same number of rows plus entries."""
    rows = indptr.size - 1
    total = np.int64(indptr[rows]) + rows
    # In two steps: ``total * part`` may exceed 64 bits.
    wanted = total // parts * part + total % parts * part // parts
    low, high = 0, rows
    while low < high:
        middle = (low + high) >> 1
        if np.int64(indptr[middle]) + middle < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def first_of(count, part, parts):
    """Return the first of *count* items in *part*; the parts' numbers of items differ by at most one."""
    return count // parts * part + count % parts * part // parts


@njit
def write_starts(counts, indptr):
    """Write the first entry of each row, and the number of entries, from the number of entries of each row."""
    total = np.int64(0)
    for i in range(counts.size):
        indptr[i] = total
        total += counts[i]
    indptr[counts.size] = total
