"""Addition of a tile, up to `TILE` entries of a row, times a value of the operand, to the columns of the entries."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from .memory import add_to, is_aligned, load, load4_if
from .terms import term, weight_at


@functools.cache
def take_tile_of(one: Any, *, homogeneous: bool) -> Any:
    """Return a device function for all threads of a warp: ``take(data, indices, first, last, to)``.

    The function calls ``one(column, weight, to)`` for each entry of a tile, from *first* to *last* - 1. Each thread
    first loads four times four entries, so that the loads overlap. Positions are counted from *at*, the first entry of
    the thread: the offsets of its other entries are then constants. *begin* and *end* are the tile's bounds.
    """
    weight = weight_at(homogeneous=homogeneous)

    @cuda.jit(device=True, forceinline=True)
    def columns_of(indices: Any, at: Any, offset: Any, begin: Any, end: Any) -> Any:
        return load4_if(np.int32(offset) < end and np.int32(offset + 4) > begin, indices, at + offset)

    @cuda.jit(device=True, forceinline=True)
    def weights_of(data: Any, at: Any, offset: Any, begin: Any, end: Any) -> Any:
        if homogeneous:
            w = load(data, 0)
            return w, w, w, w
        return load4_if(np.int32(offset) < end and np.int32(offset + 4) > begin, data, at + offset)

    @cuda.jit(device=True, forceinline=True)
    def four(columns: Any, weights: Any, offset: Any, begin: Any, end: Any, to: Any) -> None:
        if begin <= np.int32(offset) and np.int32(offset) < end:
            one(columns[0], weights[0], to)
        if begin <= np.int32(offset + 1) and np.int32(offset + 1) < end:
            one(columns[1], weights[1], to)
        if begin <= np.int32(offset + 2) and np.int32(offset + 2) < end:
            one(columns[2], weights[2], to)
        if begin <= np.int32(offset + 3) and np.int32(offset + 3) < end:
            one(columns[3], weights[3], to)

    @cuda.jit(device=True, forceinline=True)
    def take(data: Any, indices: Any, first: Any, last: Any, to: Any) -> None:
        if is_aligned(indices) and (homogeneous or is_aligned(data)) and (last + 3) // 4 * 4 <= indices.size:
            at = first // 4 * 4 + 4 * cuda.laneid
            begin, end = np.int32(first - at), np.int32(last - at)
            c0 = columns_of(indices, at, 0, begin, end)
            c1 = columns_of(indices, at, 128, begin, end)
            c2 = columns_of(indices, at, 256, begin, end)
            c3 = columns_of(indices, at, 384, begin, end)
            w0 = weights_of(data, at, 0, begin, end)
            w1 = weights_of(data, at, 128, begin, end)
            w2 = weights_of(data, at, 256, begin, end)
            w3 = weights_of(data, at, 384, begin, end)
            four(c0, w0, 0, begin, end, to)
            four(c1, w1, 128, begin, end, to)
            four(c2, w2, 256, begin, end, to)
            four(c3, w3, 384, begin, end, to)
        else:
            for i in range(first + cuda.laneid, last, 32):
                one(load(indices, i), weight(data, i), to)

    return take


@functools.cache
def push_of(operand: str, kind: type, *, homogeneous: bool) -> Any:
    """Return a device function for all threads of a warp: ``push(data, indices, first, last, to)``.

    The function adds the entries of a tile, times the operand's value, to a vector; *to* is (value, vector).
    """
    of = term(operand, kind)

    @cuda.jit(device=True, forceinline=True)
    def add(column: Any, weight: Any, to: Any) -> None:
        value, y = to
        add_to(y, column, of(weight, value))

    return take_tile_of(add, homogeneous=homogeneous)
