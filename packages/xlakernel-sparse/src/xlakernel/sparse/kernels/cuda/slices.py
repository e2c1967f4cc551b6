"""Which blocks take a tile, where the columns are two slices, and each block has the sums of one of them.

Where a row's columns are sorted, those of the two slices meet in one place, and a tile is cut there: its parts are read
once each. The place is known roughly, by a few of its columns, and so a part has some entries of the other slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .memory import load

#: The row of a tile that is not cut: the blocks of each slice read all of it, and take what is theirs.
MIXED = -1
#: Entries from which on it pays to look at some of them first.
_LONG = 128


@cuda.jit(device=True, forceinline=True)
def part_of(indices: Any, row: Any, first: Any, last: Any, width: Any, is_lower: Any) -> Any:
    """Return the row, the first and the last entry of the part of a tile that the blocks of a slice take.

    The columns in the middle of each quarter of the tile are asked for. A quarter whose column is below *width* belongs
    to the lower slice, which *is_lower* says whether it is wanted; if the four do not ascend, the tile is `MIXED`.
    """
    count = np.int32(last - first)
    if count < _LONG:
        return np.int64(MIXED), first, last
    c0 = load(indices, first + (count >> 3))
    c1 = load(indices, first + (3 * count >> 3))
    c2 = load(indices, first + (5 * count >> 3))
    c3 = load(indices, first + (7 * count >> 3))
    if c0 > c1 or c1 > c2 or c2 > c3:
        return np.int64(MIXED), first, last
    quarters = np.int32(c0 < width) + np.int32(c1 < width) + np.int32(c2 < width) + np.int32(c3 < width)
    place = first + (count * quarters >> 2)
    if is_lower:
        return row, first, place
    return row, place, last
