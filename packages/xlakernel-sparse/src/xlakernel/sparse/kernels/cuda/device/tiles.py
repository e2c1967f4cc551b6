"""Tiles of the active rows in a block's part of a matrix: each is up to `TILE` entries of a row, for one warp."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .memory import load
from .walk import TILE
from .warp import ALL

#: The number of threads that list a share's rows. With fewer threads there are more shares, and a long row, or
#: neighbouring active rows, are distributed to more multiprocessors.
LANES = 8
#: The largest number of tiles that a block lists before its warps process them.
ROOM = 512
#: Bytes of shared memory for the list.
LIST_BYTES = ROOM * (8 + 8 + 4) + 64


@cuda.jit(device=True, forceinline=True)
def empty_list() -> Any:
    """Return a list of tiles in shared memory: rows, first entries, numbers of entries, and the length."""
    return (
        cuda.shared.array(ROOM, np.int64),
        cuda.shared.array(ROOM, np.int64),
        cuda.shared.array(ROOM, np.int32),
        cuda.shared.array(1, np.int32),
    )


@cuda.jit(device=True, forceinline=True)
def _flags(flag: Any) -> Any:
    """Return the flags of the `LANES` threads that list this thread's share, as bits."""
    mine = np.uint32(cuda.ballot_sync(ALL, flag)) >> np.uint32(cuda.laneid // LANES * LANES)
    return mine & np.uint32((1 << LANES) - 1)


@cuda.jit(device=True, forceinline=True)
def _put(listed: Any, row: Any, first: Any, last: Any) -> Any:
    """List tiles of a row's entries until the list is full; return the first entry that is not listed."""
    rows, firsts, counts, length = listed
    if first < last:
        stop = first // 4 * 4  # aligned for loads of four entries
        wanted = min((last - stop + (TILE - 1)) // TILE, np.int64(ROOM))
        place = cuda.atomic.add(length, 0, np.int32(wanted))
        while first < last and place < ROOM:
            stop += TILE
            rows[place], firsts[place], counts[place] = row, first, min(last, stop) - first
            first = min(last, stop)
            place += 1
    return first


@cuda.jit(device=True, forceinline=True)
def _narrow(indptr: Any, place: Any, asked: Any, step: Any, low: Any, high: Any) -> Any:
    """Return narrower bounds of the row that contains *place*: `LANES` threads compare every *step*-th row."""
    row = asked + (cuda.laneid % LANES + 1) * step
    before = row < low
    if low <= row and row < high:
        before = load(indptr, row) + row <= place
    found = np.int64(cuda.popc(_flags(before)))
    if found < LANES:
        high = min(high, asked + (found + 1) * step)
    if found > 0:
        low = max(low, asked + found * step)
    return low, high


@cuda.jit(device=True, forceinline=True)
def _row_near_place(indptr: Any, rows: Any, place: Any, places: Any) -> Any:
    """Return the row that contains *place*, or a row a few rows earlier; called by all threads of a warp.

    Each row has one place, and one more for each of its entries. Shares with equal numbers of places are then equal
    work, for long and for empty rows. The first two rounds search where the row would be if all rows had the same
    length, in a narrow and in a wide range.
    """
    likely = np.int64(np.float32(rows) * (np.float32(place) / np.float32(places)))
    low, high = _narrow(indptr, place, likely - LANES, np.int64(2), np.int64(0), rows)
    if cuda.any_sync(ALL, high - low > LANES):
        step = (rows + 1023) // 1024
        low, high = _narrow(indptr, place, likely - LANES // 2 * step, step, low, high)
    while cuda.any_sync(ALL, high - low > LANES):
        low, high = _narrow(indptr, place, low, (high - low + LANES - 1) // LANES, low, high)
    return low


def _cutting(cut: Any) -> Any:
    """Return a device function for all threads of a block, ``cut_all(listed, to)``.

    The function replaces each listed tile by the part that *cut* returns, and drops empty parts.
    """

    @cuda.jit(device=True, forceinline=True)
    def cut_all(listed: Any, to: Any) -> None:
        rows, firsts, counts, length = listed
        i = np.int32(cuda.threadIdx.x)
        row, first, last = np.int64(0), np.int64(0), np.int64(0)
        if i < min(length[0], np.int32(ROOM)):
            row, first, last = cut(rows[i], firsts[i], firsts[i] + counts[i], to)
        cuda.syncthreads()
        if i == 0:
            length[0] = 0
        cuda.syncthreads()
        if first < last:
            place = cuda.atomic.add(length, 0, np.int32(1))
            rows[place], firsts[place], counts[place] = row, first, last - first
        cuda.syncthreads()

    return cut_all


def active_tiles_of(is_active: Any, take: Any, cut: Any = None) -> Any:
    """Return a device function, ``visit(indptr, x, rows, places, share, groups, group, listed, to)``.

    All threads of a block call it. The block visits part *group* of *groups* parts of the matrix; several blocks may
    visit one part. All threads of a warp call ``take(row, first, last, to)`` for each tile of each active row in the
    part: entries *first* to *last* - 1. `LANES` threads list the tiles of a *share* of the *places*; see
    `_row_near_place`. Neighbouring shares are in different parts, so that many multiprocessors process a long row. Each
    warp of the block processes tiles that any thread has listed: the work is even for any distribution of active rows.

    Args:
      is_active: device function of *x* and a row.
      take: device function, as above; *to* is passed on to it.
      cut: device function, ``cut(row, first, last, to)``, or None. It is called for each listed tile before the tiles
        are processed. The row and the part that it returns replace the tile: the part may be empty, and the row may be
        another number, which is passed to *take*. With *cut*, the block must have at least `ROOM` threads.
    """
    cut_all = None if cut is None else _cutting(cut)

    @cuda.jit(device=True, forceinline=True)
    def visit(
        indptr: Any, x: Any, rows: Any, places: Any, share: Any, groups: Any, group: Any, listed: Any, to: Any
    ) -> None:
        begin = (np.int64(cuda.threadIdx.x // LANES) * groups + group) * share
        end = min(begin + share, places)
        base = _row_near_place(indptr, rows, begin, places)
        if begin >= places:
            base = rows
        row, first, last = np.int64(0), np.int64(0), np.int64(0)
        goes_on = 1
        while goes_on != 0:
            if cuda.threadIdx.x == 0:
                listed[3][0] = 0
            cuda.syncthreads()
            has_room = True
            while has_room:
                first = _put(listed, row, first, last)
                if cuda.any_sync(ALL, first < last):
                    has_room = False
                elif cuda.any_sync(ALL, base < rows):
                    row = base + cuda.laneid % LANES
                    begins_here = False
                    if row < rows:
                        first = np.int64(load(indptr, row))
                        last = min(np.int64(load(indptr, row + 1)), end - row - 1)
                        begins_here = first + row < end
                        first = max(first, begin - row - 1) if is_active(x, row) else last
                    base = base + LANES if _flags(begins_here) == np.uint32((1 << LANES) - 1) else rows
                else:
                    has_room = False
            goes_on = cuda.syncthreads_or(np.int32(base < rows or first < last))
            if cut_all is not None:
                cut_all(listed, to)
            i = np.int32(cuda.threadIdx.x // 32)
            while i < min(listed[3][0], np.int32(ROOM)):  # a range would need a division
                take(listed[0][i], listed[1][i], listed[1][i] + listed[2][i], to)
                i += np.int32(cuda.blockDim.x // 32)
            cuda.syncthreads()

    return visit
