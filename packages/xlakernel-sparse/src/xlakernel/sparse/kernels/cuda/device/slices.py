"""Distribution of tiles to blocks if the columns are split into two slices, and a block holds the sums of one slice.

If a row's columns are sorted, its entries in the two slices are two contiguous parts. A few columns of a tile locate
the border approximately, and the tile is cut there, so that each part is read once. The blocks of both slices compute
the same cut. Each entry is therefore processed once, for any order of the columns. An entry on the wrong side of the
cut, a *stray*, is added to the output directly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .memory import load

#: The smallest number of entries in a tile for which a cut is faster.
_LONG = 128


@cuda.jit(device=True, forceinline=True)
def part_of(indices: Any, row: Any, first: Any, last: Any, width: Any, is_lower: Any) -> Any:
    """Return the row, and *first* and *last* of the part of a tile for one slice, the lower if *is_lower*.

    A column in the middle of each quarter of the tile is read; if it is below *width*, the quarter belongs to the lower
    slice. If the tile is short, or the four columns do not ascend, the tile is not cut: the blocks of both slices read
    it, and each block adds only the entries in its slice. The returned row is then ``~row``.
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
