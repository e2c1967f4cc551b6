"""The rows of a warp's share of a matrix, with what of their entries is in it, wherever an operand is not nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .memory import load
from .warp import ALL, row_of_share


@cuda.jit(device=True, forceinline=True)
def share_number(blocks: Any, block: Any) -> Any:
    """Return the number of a warp's share: those beside each other are of different blocks.

    A long row that is active is then the work of many multiprocessors, not of one.
    """
    return np.int64(cuda.threadIdx.x // 32) * blocks + block


def active_rows_of(is_active: Callable[..., Any], push: Callable[..., Any]) -> Callable[..., Any]:
    """Return a device function for all threads of a warp: ``visit(indptr, x, rows, begin, end, to)``.

    It calls ``push(row, first, last, to)`` for each active row among the places from *begin* to *end*, with the entries
    that are among them; see `row_of_share` for the places. 32 rows at a time are asked whether they are active.

    Args:
      is_active: device function of *x* and a row.
      push: device function; *to* is what it is handed.
    """

    @cuda.jit(device=True, forceinline=True)
    def visit(indptr: Any, x: Any, rows: Any, begin: Any, end: Any, to: Any) -> None:
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
                push(base + lane, cuda.shfl_sync(ALL, first, lane), cuda.shfl_sync(ALL, last, lane), to)
            base += 32

    return visit
