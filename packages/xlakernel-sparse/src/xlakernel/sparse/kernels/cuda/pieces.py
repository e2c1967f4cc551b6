"""From the number of a piece to the entries that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .active import PIECE, block_scan
from .memory import load
from .warp import ALL


@cuda.jit(device=True, forceinline=True)
def sum_groups(totals: Any, upto: Any) -> None:
    """Write to shared memory how many pieces there are up to and with each group; called by all 1024 threads."""
    sums = cuda.shared.array(32, np.int64)
    mine = np.int64(load(totals, cuda.threadIdx.x)) if cuda.threadIdx.x < totals.size else np.int64(0)
    upto[cuda.threadIdx.x] = block_scan(mine, sums)
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def piece_in(rows: Any, pieces: Any, lengths: Any, indptr: Any, upto: Any, groups: Any, each: Any, number: Any) -> Any:
    """Return the row, the first entry and the end of a piece; called by all threads of a warp."""
    low, high = np.int64(0), np.int64(groups - 1)  # the first group with more pieces than *number* is among them
    while low < high:
        middle = (low + high) // 2
        if upto[middle] > number:
            high = middle
        else:
            low = middle + 1
    base = low * each
    within = number - (upto[low - 1] if low > 0 else np.int64(0))
    place, left = np.int64(0), np.int64(load(lengths, low))
    while left > 1:  # 32 places at once, as `row_at` does
        step = (left + 31) // 32
        last = min((cuda.laneid + 1) * step, left)
        not_yet = cuda.popc(cuda.ballot_sync(ALL, load(pieces, base + place + last - 1) <= within))
        behind = min(np.int64(not_yet) * step, left - 1)
        place += behind
        left = min(step, left - behind)
    row = np.int64(load(rows, base + place))
    before = np.int64(load(pieces, base + place - 1)) if place > 0 else np.int64(0)
    first = np.int64(load(indptr, row)) + (within - before) * PIECE
    return row, first, min(first + PIECE, np.int64(load(indptr, row + 1)))
