"""Row sums over a warp's share of the entries of a compressed matrix, added to a vector.

A warp processes its entries in tiles of 512. Each thread loads four groups of four consecutive entries, 16 bytes at a
time if the dtype allows, gathers the operand for all of them, and then determines their rows. The sum of a row is added
to the output where the row or the warp's share ends, so that several warps can share a row of any length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .entries import Entries
from .memory import add_to, load
from .warp import next_row, row_at, warp_sum

#: Entries that a warp processes at a time.
TILE = 512


def walk_of(entries: Entries) -> Any:
    """Return a device function that adds the row sums of some entries to the output.

    All threads of a warp call ``walk(data, indices, indptr, rows, source, start, stop, y, skipped)`` for the entries
    from *start* to *stop* - 1, at least one. The first element of *y* is for row *skipped*.
    """
    kind, raw, terms, one, value, is_aligned = entries
    total = warp_sum(kind)
    zero = kind(0)

    @cuda.jit(device=True, forceinline=True)
    def single(data: Any, indices: Any, source: Any, k: Any, stop: Any) -> Any:
        return one(data, indices, source, k) if k < stop else zero

    @cuda.jit(device=True, forceinline=True)
    def singles(data: Any, indices: Any, source: Any, k: Any, stop: Any) -> Any:
        return (
            single(data, indices, source, k, stop),
            single(data, indices, source, k + 1, stop),
            single(data, indices, source, k + 2, stop),
            single(data, indices, source, k + 3, stop),
        )

    @cuda.jit(device=True, forceinline=True)
    def quads(data: Any, indices: Any, k: Any) -> Any:
        return (
            raw(data, indices, k),
            raw(data, indices, k + 128),
            raw(data, indices, k + 256),
            raw(data, indices, k + 384),
        )

    @cuda.jit(device=True, forceinline=True)
    def all_of(four: Any) -> Any:
        return kind((four[0] + four[1]) + (four[2] + four[3]))

    @cuda.jit(device=True, forceinline=True)
    def within(four: Any, whole: Any, at: Any, first: Any, last: Any) -> Any:
        """Return the sum of the terms at places *at* to *at* + 3 that are between *first* and *last* - 1."""
        if first <= at and at + 4 <= last:
            return whole
        found = zero
        if at < last and at + 4 > first:  # a row begins or ends within this thread's four
            found = kind(found + (four[0] if first <= at and at < last else zero))
            found = kind(found + (four[1] if first <= at + 1 and at + 1 < last else zero))
            found = kind(found + (four[2] if first <= at + 2 and at + 2 < last else zero))
            found = kind(found + (four[3] if first <= at + 3 and at + 3 < last else zero))
        return found

    @cuda.jit(device=True, forceinline=True)
    def walk(
        data: Any, indices: Any, indptr: Any, rows: Any, source: Any, start: Any, stop: Any, y: Any, skipped: Any
    ) -> Any:
        lane = cuda.laneid
        at = np.int32(4 * lane)
        row = row_at(indptr, rows, start)
        end = np.int64(load(indptr, row + 1))
        after = np.int64(load(indptr, min(row + 2, rows)))  # the end of the next row, loaded in advance
        found = zero
        tile = start // 4 * 4
        first = np.int32(start - tile)
        is_fast = is_aligned(data, indices) and tile + TILE <= stop
        while tile < stop:
            k = tile + at
            if is_fast:
                now = quads(data, indices, k)
                is_fast = tile + 2 * TILE <= stop
                p0 = terms(now[0], data, source, k)
                p1 = terms(now[1], data, source, k + 128)
                p2 = terms(now[2], data, source, k + 256)
                p3 = terms(now[3], data, source, k + 384)
            else:
                p0 = singles(data, indices, source, k, stop)
                p1 = singles(data, indices, source, k + 128, stop)
                p2 = singles(data, indices, source, k + 256, stop)
                p3 = singles(data, indices, source, k + 384, stop)
            s0, s1, s2, s3 = all_of(p0), all_of(p1), all_of(p2), all_of(p3)
            left = np.int32(min(stop - tile, np.int64(TILE)))
            while first < left:
                last = np.int32(min(end - tile, np.int64(left)))
                if first == 0 and last == TILE:
                    found = kind(found + ((s0 + s1) + (s2 + s3)))
                else:
                    if first < 128:
                        found = kind(found + within(p0, s0, at, first, last))
                    if first < 256 and last > 128:
                        found = kind(found + within(p1, s1, at + 128, first, last))
                    if first < 384 and last > 256:
                        found = kind(found + within(p2, s2, at + 256, first, last))
                    if last > 384:
                        found = kind(found + within(p3, s3, at + 384, first, last))
                here = tile + last
                if here in (end, stop):
                    whole = total(found)
                    if lane == 0:
                        add_to(y, row - skipped, value(data, whole))
                    found = zero
                    if after > here:
                        row, end = row + 1, after
                    elif here < stop:
                        row, end = next_row(indptr, rows, row, here)
                    after = np.int64(load(indptr, min(row + 2, rows)))
                first = last
            first = np.int32(0)
            tile += TILE

    return walk
