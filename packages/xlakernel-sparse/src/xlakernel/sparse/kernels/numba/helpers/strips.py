"""Scattering to a result with several columns, in strips: a few columns at a time.

A strip of the result is summed in a private buffer, small enough for a processor's cache, and then copied to the
result. If there are enough strips, each thread has its own strips. Otherwise, threads share a strip: each thread sums a
part of the entries in its own buffer, and the buffers are added up when they are copied. All buffers together take at
most `PRIVATE_BYTES`, or one strip if that is larger.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .elements import cast
from .parts import PRIVATE_BYTES, first_of, first_row, part_count
from .tiles import scatter_tile, tile_width


@njit
def _strip_width(y):
    columns = y.shape[1]
    if columns >= tile_width(64, y):
        return tile_width(64, y)
    if columns >= tile_width(32, y):
        return tile_width(32, y)
    if columns >= tile_width(16, y):
        return tile_width(16, y)
    return 1


@njit
def _entries(data, indices, begin, end, x, i, column, strip, active):
    """Add the entries *begin* … *end* - 1, multiplied by row *i* of *x*, to *strip*."""
    width = strip.shape[1]
    if width == tile_width(64, strip):
        scatter_tile(64, data, indices, begin, end, x, i, column, strip, active)
    elif width == tile_width(32, strip):
        scatter_tile(32, data, indices, begin, end, x, i, column, strip, active)
    elif width == tile_width(16, strip):
        scatter_tile(16, data, indices, begin, end, x, i, column, strip, active)
    else:
        scatter_tile(1, data, indices, begin, end, x, i, column, strip, active)


@njit
def _fill(part, parts, data, indices, indptr, x, column, strip, active):
    """Sum a part of the entries into *strip*, for the columns from *column* on."""
    for j in range(strip.shape[0]):
        for c in range(strip.shape[1]):
            strip[j, c] = cast(0, strip)
    for i in range(first_row(indptr, part, parts), first_row(indptr, part + 1, parts)):
        begin, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
        _entries(data, indices, begin, end, x, i, column, strip, active)


@njit
def _copy_out(first, last, strips, parts, number, begin, y):
    """Set the rows *first* … *last* - 1 of *y*, in the columns of *number* strips from strip *begin* on."""
    columns, width = y.shape[1], strips.shape[2]
    for s in range(number):
        fresh = (begin + s) * width
        offset = fresh - min(fresh, columns - width)  # the last strip overlaps the one before
        for j in range(first, last):
            for c in range(offset, width):
                total = strips[s * parts, j, c]
                for part in range(1, parts):
                    total += strips[s * parts + part, j, c]
                y[j, fresh - offset + c] = total


@njit(parallel=True)
def scatter_strips(data, indices, indptr, x, y, active):
    """Set ``y`` to the sum of ``data[k] * x[i]`` in row ``indices[k]`` for all entries k of all rows i."""
    rows, columns = y.shape
    if columns == 0 or rows == 0:
        return
    width = _strip_width(y)
    number = (columns + width - 1) // width
    work = np.int64(indptr[indptr.size - 1]) + indptr.size
    strip_bytes = rows * width * y.itemsize
    threads = min(part_count(work * columns), max(1, PRIVATE_BYTES // strip_bytes))
    # Clearing and copying a part of a strip should cost less than its entries.
    parts = max(1, min(threads // number, 1 + work // (2 * rows)))
    together = max(1, min(number, threads // parts))
    strips = np.empty((together * parts, rows, width), y.dtype)
    for begin in range(0, number, together):
        now = min(together, number - begin)
        if threads == 1:
            _fill(0, 1, data, indices, indptr, x, min(begin * width, columns - width), strips[0], active)
            _copy_out(0, rows, strips, 1, 1, begin, y)
        else:
            for task in prange(now * parts):
                column = min((begin + task // parts) * width, columns - width)
                _fill(task % parts, parts, data, indices, indptr, x, column, strips[task], active)
            for share in prange(threads):
                first, last = first_of(rows, share, threads), first_of(rows, share + 1, threads)
                _copy_out(first, last, strips, parts, now, begin, y)
