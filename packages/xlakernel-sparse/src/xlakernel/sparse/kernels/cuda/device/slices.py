"""Which blocks take a tile, where the columns are two slices, and each block has the sums of one of them.

Where a row's columns are sorted, those of the two slices meet in one place. A few columns of a tile tell roughly where,
and the tile is cut there, so that each part is read once. The blocks of both slices come to the same cut, and so each
entry is taken once, whatever the order. An entry on the wrong side of the cut, a *stray*, goes straight to the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .memory import load

#: Entries from which on it pays to look at some of them first.
_LONG = 128


@cuda.jit(device=True, forceinline=True)
def part_of(indices: Any, row: Any, first: Any, last: Any, width: Any, is_lower: Any) -> Any:
    """Return the row and the part, *first* and *last*, that the blocks of a slice take of a tile.

    A column in the middle of each quarter of the tile is asked for; if it is below *width*, the quarter is for the
    lower slice, which is meant if *is_lower*. A short tile, and one whose four columns do not ascend, is not cut: the
    blocks of both slices read it, and each takes only what is in its slice. The row that they get is ``~row``.
    """
    count = np.int32(last - first)
    if count < _LONG:
        return ~row, first, last
    c0 = load(indices, first + (count >> 3))
    c1 = load(indices, first + (3 * count >> 3))
    c2 = load(indices, first + (5 * count >> 3))
    c3 = load(indices, first + (7 * count >> 3))
    if c0 > c1 or c1 > c2 or c2 > c3:
        return ~row, first, last
    quarters = np.int32(c0 < width) + np.int32(c1 < width) + np.int32(c2 < width) + np.int32(c3 < width)
    cut = first + (count * quarters >> 2)
    if is_lower:
        return row, first, cut
    return row, cut, last
