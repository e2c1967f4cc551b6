"""Addition of a block's sums in shared memory to the output, four columns at once on GPUs that support it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .memory import add4_to, add_to, adds_four


def flush_of(total: Any, threads: int) -> Any:
    """Return a device function for all threads of a block: ``flush(weight, own, block, blocks)``.

    The function adds each column's total, times *weight*, to the output. *own* is a tuple of the sums, the output, the
    first column of the block's slice of the columns (a multiple of four), and the number of columns in the slice.

    Args:
      total: device function, ``total(sums, column)``: the total of a column of the slice.
      threads: the number of threads of a block.
    """

    @cuda.jit(device=True, forceinline=True)
    def amount(sums: Any, column: Any, weight: Any) -> Any:
        found = total(sums, column)
        return found * weight if found != 0 else np.float32(0)  # 0 times an infinite weight is NaN

    @cuda.jit(device=True, forceinline=True)
    def one(weight: Any, own: Any, column: Any) -> None:
        sums, y, low, _ = own
        found = amount(sums, column, weight)
        if found != 0:
            add_to(y, low + column, found)

    @cuda.jit(device=True, forceinline=True)
    def four(weight: Any, own: Any, column: Any) -> None:
        sums, y, low, _ = own
        a, b = amount(sums, column, weight), amount(sums, column + np.uint32(1), weight)
        c, d = amount(sums, column + np.uint32(2), weight), amount(sums, column + np.uint32(3), weight)
        if a != 0 or b != 0 or c != 0 or d != 0:
            add4_to(y, low + column, (a, b, c, d))

    ones, fours = _all_of(one, 1, threads), _all_of(four, 4, threads)

    @cuda.jit(device=True, forceinline=True)
    def flush(weight: Any, own: Any, block: Any, blocks: Any) -> None:
        _, y, _, width = own
        if adds_four(y):
            fours(weight, own, block, blocks)
            rest = width // 4 * 4 + cuda.threadIdx.x
            if rest < width:
                one(weight, own, np.uint32(rest))
        else:
            ones(weight, own, block, blocks)

    return flush


def _all_of(add: Any, each: int, threads: int) -> Any:
    """Return a device function that calls *add* for the columns of a slice, *each* at a time.

    Columns after the last multiple of *each* are left to the caller. Blocks begin at different columns, so that few
    blocks add to the same column at once. Columns are computed as multiples of *each*, so that the compiler loads four
    sums at once.
    """

    @cuda.jit(device=True, forceinline=True)
    def add_all(weight: Any, own: Any, block: Any, blocks: Any) -> None:
        width = own[3]
        whole = np.int32(width // each * each)
        ahead = np.int32(np.uint32(width * block) // np.uint32(blocks) // each * each)
        i = np.int32(each * cuda.threadIdx.x)
        while i < whole:
            add(weight, own, np.uint32(i + ahead if i + ahead < whole else i + ahead - whole))
            i += np.int32(each * threads)

    return add_all
