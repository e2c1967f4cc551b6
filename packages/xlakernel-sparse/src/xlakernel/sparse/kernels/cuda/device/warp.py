"""Cooperation of the 32 threads of a warp: sums, and searches in a compressed structure."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from .memory import load

ALL = 0xFFFFFFFF


@cuda.jit(device=True, forceinline=True)
def row_at(indptr: Any, rows: Any, entry: Any) -> Any:
    """Return the row of *entry*: ``indptr[row] <= entry < indptr[row + 1]``.

    Each round compares 32 rows, so that 10^6 rows take four rounds.
    """
    lane = cuda.laneid
    low, high = np.int64(0), np.int64(rows)
    while high - low > 1:
        step = (high - low + 31) // 32
        place = low + (lane + 1) * step
        before = False
        if place < high:
            before = load(indptr, place) <= entry
        low += cuda.popc(cuda.ballot_sync(ALL, before)) * step
        high = min(low + step, high)
    return low


@cuda.jit(device=True, forceinline=True)
def next_row(indptr: Any, rows: Any, row: Any, entry: Any) -> Any:
    """Return the first row after *row* that is not empty, and its end; this row begins at *entry*."""
    place = min(row + 1 + cuda.laneid, rows - 1)
    end = np.int64(load(indptr, place + 1))
    found = cuda.ballot_sync(ALL, end > entry)
    if found != 0:
        first = cuda.ffs(found) - 1
        return row + 1 + first, cuda.shfl_sync(ALL, end, first)
    far = row_at(indptr, rows, entry)
    return far, np.int64(load(indptr, far + 1))


@cuda.jit(device=True, forceinline=True)
def _from_lane(value: Any, offset: Any) -> Any:
    return cuda.shfl_xor_sync(ALL, value, offset)


@cuda.jit(device=True, forceinline=True)
def _complex_from_lane(value: Any, offset: Any) -> Any:
    return complex(cuda.shfl_xor_sync(ALL, value.real, offset), cuda.shfl_xor_sync(ALL, value.imag, offset))


@functools.cache
def warp_sum(kind: type, apart: int = 1, within: int = 32) -> Any:
    """Return a device function that sums the values of some lanes, and returns the sum in all of them.

    Args:
      kind: NumPy's scalar type of the values.
      apart: the distance between the summed lanes, a power of two; 1: neighbouring lanes.
      within: the number of neighbouring lanes that contain the summed lanes, a power of two; 32: the whole warp.
    """
    from_lane = _complex_from_lane if issubclass(kind, np.complexfloating) else _from_lane

    @cuda.jit(device=True, forceinline=True)
    def total(value: Any) -> Any:
        offset = within // 2
        while offset >= apart:
            value = kind(value + from_lane(value, offset))
            offset //= 2
        return value

    return total
