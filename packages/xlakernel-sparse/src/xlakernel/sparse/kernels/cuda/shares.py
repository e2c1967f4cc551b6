"""The active rows of a warp's share of a matrix, and what of their entries is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .memory import load
from .walk import TILE
from .warp import ALL, row_of_share

#: Entries of a row from which on a block pushes them together.
LONG = 4 * TILE
#: How many of such parts a block sets aside; what is beyond is pushed by the warp that found it.
ROOM = 128


@cuda.jit(device=True, forceinline=True)
def share_number(blocks: Any, block: Any) -> Any:
    """Return the number of a warp's share: those beside each other are of different blocks.

    A long row that is active is then the work of many multiprocessors, not of one.
    """
    return np.int64(cuda.threadIdx.x // 32) * blocks + block


@cuda.jit(device=True, forceinline=True)
def set_aside(queue: Any, row: Any, first: Any, last: Any) -> Any:
    """Note a long part of a row for the whole block, if there is room; called by all threads of a warp."""
    rows, firsts, lasts, length = queue
    place = np.int32(0)
    if cuda.laneid == 0:
        place = np.int32(cuda.atomic.add(length, 0, 1))
        if place < ROOM:
            rows[place], firsts[place], lasts[place] = row, first, last
    return cuda.shfl_sync(ALL, place, 0) < ROOM


def active_rows_of(
    is_active: Callable[..., Any], push: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two device functions: ``visit(indptr, x, rows, begin, end, to, queue)`` and ``finish(queue, to)``.

    The first, for all threads of a warp, calls ``push(row, first, last, to)`` for each active row among the places from
    *begin* to *end*, with the entries that are among them; see `row_of_share` for the places. 32 rows at a time are
    asked whether they are active. What is long is set aside, and then pushed by the second, which is for all threads of
    a block, in pieces: it would keep one warp busy while the others have nothing to do.

    Args:
      is_active: device function of *x* and a row.
      push: device function; *to* is what it is handed.
    """

    @cuda.jit(device=True, forceinline=True)
    def visit(indptr: Any, x: Any, rows: Any, begin: Any, end: Any, to: Any, queue: Any) -> None:
        base = row_of_share(indptr, rows, begin)
        while base < rows and load(indptr, base) + base < end:
            row = base + cuda.laneid
            first, last = np.int64(0), np.int64(0)
            if row < rows and is_active(x, row):
                first = max(np.int64(load(indptr, row)), begin - row - 1)
                last = min(np.int64(load(indptr, row + 1)), end - row - 1)
            left = np.uint32(cuda.ballot_sync(ALL, first < last))
            while left != 0:
                lane = cuda.ffs(left) - 1
                left = np.uint32(left & (left - np.uint32(1)))
                its, stop = cuda.shfl_sync(ALL, first, lane), cuda.shfl_sync(ALL, last, lane)
                if stop - its < LONG or not set_aside(queue, base + lane, its, stop):
                    push(base + lane, its, stop, to)
            base += 32

    @cuda.jit(device=True, forceinline=True)
    def finish(queue: Any, to: Any) -> None:
        cuda.syncthreads()
        rows, firsts, lasts, length = queue
        warp, warps = cuda.threadIdx.x // 32, cuda.blockDim.x // 32
        for i in range(min(length[0], ROOM)):
            aligned = firsts[i] // TILE * TILE
            for piece in range(aligned + warp * TILE, lasts[i], warps * TILE):
                push(rows[i], max(piece, firsts[i]), min(piece + TILE, lasts[i]), to)

    return visit, finish
