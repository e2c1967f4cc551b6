"""The distribution of a warp over the columns of a dense matrix.

The threads of a warp form groups. A group has a thread for each column of the dense matrix, at most 32, and processes
one entry at a time. The indices and weights of 32 entries are loaded at once, one by each lane, and are distributed by
shuffles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .memory import load
from .warp import ALL

#: The largest second extent of a grid.
_MOST_TILES = 65535


def group_of(columns: int) -> int:
    """Return the number of threads for an entry, a power of two."""
    return 1 << (min(columns, 32) - 1).bit_length()


def tiles_of(columns: int) -> int:
    """Return the number of blocks that share the columns: of n blocks, each takes every n-th group of columns."""
    return min(_MOST_TILES, -(-columns // group_of(columns)))


@functools.cache
def weights_of(kind: type, *, homogeneous: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two device functions: one loads an entry's weight, the other broadcasts it from a lane."""

    @cuda.jit(device=True, forceinline=True)
    def same(data: Any, k: Any) -> Any:
        return kind(load(data, 0))

    @cuda.jit(device=True, forceinline=True)
    def own(data: Any, k: Any) -> Any:
        return kind(load(data, k))

    @cuda.jit(device=True, forceinline=True)
    def kept(weight: Any, lane: Any) -> Any:
        return weight

    @cuda.jit(device=True, forceinline=True)
    def real_from(weight: Any, lane: Any) -> Any:
        return kind(cuda.shfl_sync(ALL, weight, lane))

    @cuda.jit(device=True, forceinline=True)
    def complex_from(weight: Any, lane: Any) -> Any:
        return kind(complex(cuda.shfl_sync(ALL, weight.real, lane), cuda.shfl_sync(ALL, weight.imag, lane)))

    if homogeneous:
        return same, kept
    return own, complex_from if issubclass(kind, np.complexfloating) else real_from
