"""What a warp does with entries whose operand is known: add their weights to where their columns say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from .memory import add_to, is_aligned, load, load4_if
from .terms import term, weight_at
from .walk import TILE

Device = Callable[..., Any]


@cuda.jit(device=True, forceinline=True)
def columns_of(indices: Any, k: Any, first: Any, last: Any) -> Any:
    """Return the columns of the entries from *k*, a multiple of four; zeros where none is from *first* to *last*."""
    return load4_if(k < last and k + 4 > first, indices, k)


@functools.cache
def push_of(operand: str, kind: type, *, homogeneous: bool) -> Any:
    """Return a device function for all threads of a warp: ``push(data, indices, first, last, value, y)``.

    It adds what the entries from *first* to *last* are, times the operand's *value*, to the vector *y*.
    """
    of, weight = term(operand, kind), weight_at(homogeneous=homogeneous)

    @cuda.jit(device=True, forceinline=True)
    def weights_of(data: Any, k: Any, first: Any, last: Any) -> Any:
        if homogeneous:
            w = load(data, 0)
            return w, w, w, w
        return load4_if(k < last and k + 4 > first, data, k)

    @cuda.jit(device=True, forceinline=True)
    def add(four: Any, columns: Any, k: Any, first: Any, last: Any, value: Any, y: Any) -> None:
        if first <= k and k < last:
            add_to(y, columns[0], of(four[0], value))
        if first <= k + 1 and k + 1 < last:
            add_to(y, columns[1], of(four[1], value))
        if first <= k + 2 and k + 2 < last:
            add_to(y, columns[2], of(four[2], value))
        if first <= k + 3 and k + 3 < last:
            add_to(y, columns[3], of(four[3], value))

    @cuda.jit(device=True, forceinline=True)
    def push(data: Any, indices: Any, first: Any, last: Any, value: Any, y: Any) -> None:
        tile = first // 4 * 4
        aligned = is_aligned(indices) and (homogeneous or is_aligned(data))
        while tile < last:
            k = tile + 4 * np.int64(cuda.laneid)
            if aligned and min(tile + TILE, (last + 3) // 4 * 4) <= indices.size:
                c0 = columns_of(indices, k, first, last)
                c1 = columns_of(indices, k + 128, first, last)
                c2 = columns_of(indices, k + 256, first, last)
                c3 = columns_of(indices, k + 384, first, last)
                w0 = weights_of(data, k, first, last)
                w1 = weights_of(data, k + 128, first, last)
                w2 = weights_of(data, k + 256, first, last)
                w3 = weights_of(data, k + 384, first, last)
                add(w0, c0, k, first, last, value, y)
                add(w1, c1, k + 128, first, last, value, y)
                add(w2, c2, k + 256, first, last, value, y)
                add(w3, c3, k + 384, first, last, value, y)
            else:
                for i in range(max(first, tile) + cuda.laneid, min(last, tile + TILE), 32):
                    add_to(y, load(indices, i), of(weight(data, i), value))
            tile += TILE

    return push
