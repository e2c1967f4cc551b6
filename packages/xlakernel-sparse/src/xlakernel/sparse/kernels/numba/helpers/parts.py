"""How the work of a kernel is cut into parts for several threads."""

from __future__ import annotations

import numpy as np
from numba import njit

# The public one is called through a pointer, and what has a pointer in it cannot be kept on disk.
from numba.np.ufunc.parallel import _iget_num_threads as get_num_threads

#: Entries of a matrix below which one thread is quicker than waking others.
SERIAL = 60_000
#: Bytes that the private outputs of all threads may take together.
PRIVATE_BYTES = 1 << 28


@njit
def part_count(work):
    """Return how many parts, one for each thread, *work* entries are worth; 1: stay in this thread."""
    if work < SERIAL:
        return 1
    return max(1, min(get_num_threads(), work // (SERIAL // 2)))


@njit
def private_part_count(work, outputs, itemsize):
    """Return the same where each part but the first has *outputs* elements of its own, to be set and summed."""
    parts = part_count(work)
    parts = min(parts, 1 + work // max(2 * outputs, 1))
    return max(1, min(parts, 1 + PRIVATE_BYTES // max(outputs * itemsize, 1)))


@njit
def first_row(indptr, part, parts):
    """Return the first row of *part*, where all parts have equally many rows and entries together."""
    rows = indptr.size - 1
    total = np.int64(indptr[rows]) + rows
    # In two steps, because the product of both may need more than 64 bits.
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
    """Return the first of *count* things in *part*, all parts having equally many."""
    return count // parts * part + count % parts * part // parts
