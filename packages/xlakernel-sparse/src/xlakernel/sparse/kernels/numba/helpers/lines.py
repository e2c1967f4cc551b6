"""The entries of one line of a procedural matrix, written to arrays like those of a matrix with compressed rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

from ....operators.connections import BATCH, PLACES, WEIGHTS
from ....random.philox import fraction, normals, philox
from ...drawing import gap, scaled
from .elements import cast

_GROUPS = BATCH // 4


@intrinsic
def _leading_zeros(typing: Any, number: Any) -> Any:
    """Return the number of leading zeros of a number that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return number(number), generate


@njit
def weights_buffer(params, room, like):
    """Return an array for the weights of *room* entries; or *params*, of shape (1, 1), the weight of all entries."""
    if params.ndim == 2:
        return params
    return np.empty(room, like.dtype)


@njit
def room_of(walk, places):
    """Return the largest number of entries of a line."""
    return max(np.int64(walk[0]), np.int64(places))


@njit
def _draw(key, batch, chunk, line, kind, words, groups):
    for group in range(np.uint32(groups)):
        counter = np.uint32(np.uint32(batch * _GROUPS) + group)
        a, b, c, d = philox(key[0], key[1], counter, np.uint32(chunk), np.uint32(line), np.uint32(kind))
        at = np.uint64(4) * np.uint64(group)
        words[at] = a
        words[at + np.uint64(1)] = b
        words[at + np.uint64(2)] = c
        words[at + np.uint64(3)] = d


@njit
def _to_gaps(words, length, multiplier, shift):
    for k in range(np.uint64(BATCH)):
        odd = np.uint32(words[k] | np.uint32(1))
        words[k] = min(gap(odd, _leading_zeros(odd), multiplier, shift), length)


@njit
def _to_weights(words, count, params, is_normal, data):
    """Write the weights of *count* entries to *data*."""
    if is_normal:
        for k in range(0, count, 2):
            even, odd = normals(words[k], words[k + 1])
            data[k] = params[0] + params[1] * cast(even, data)
            if k + 1 < count:
                data[k + 1] = params[0] + params[1] * cast(odd, data)
    else:
        for k in range(np.uint64(count)):
            data[k] = params[0] + params[1] * cast(fraction(words[k]), data)


@njit
def _weigh(key, batch, chunk, line, params, walk, words, data, first, last):
    """Write the weights of the entries from *first* to *last* - 1, those of a batch."""
    if params.ndim == 1:
        _draw(key, batch, chunk, line, WEIGHTS, words, (last - first + 3) // 4)
        _to_weights(words, last - first, params, walk[5] != 0, data[first:last])


@njit
def _by_number(line, key, walk, places, params, words, indices, data):
    number, first = np.int64(walk[0]), np.int64(0)
    for chunk in range(np.int64(walk[1])):
        last = min(first + BATCH, number)
        _draw(key, 0, chunk, line, PLACES, words, (last - first + 3) // 4)
        for k in range(last - first):
            indices[first + k] = scaled(words[k], np.uint32(places))
        _weigh(key, 0, chunk, line, params, walk, words, data, first, last)
        first = last
    return number


@njit
def _by_probability(line, key, walk, places, params, words, indices, data):
    length, count = np.int64(walk[2]), np.int64(0)
    for chunk in range(np.int64(walk[1])):
        base = chunk * length
        extent = min(length, places - base)
        place, batch = np.int64(0), 0
        while place < extent:
            _draw(key, batch, chunk, line, PLACES, words, _GROUPS)
            _to_gaps(words, walk[2], walk[3], walk[4])
            first = count
            for k in range(BATCH):
                place += np.int64(words[k])
                if place >= extent:
                    break
                indices[count] = base + place
                count += 1
                place += 1
            _weigh(key, batch, chunk, line, params, walk, words, data, first, count)
            batch += 1
    return count


@njit
def draw_line(line, key, walk, places, params, words, indices, data):
    """Write the places of a line's entries to *indices* and their weights to *data*; return their number.

    *words* has room for `BATCH` words, *indices* for the entries; *data* is the result of `weights_buffer`.
    """
    if walk[0] != 0:
        return _by_number(line, key, walk, places, params, words, indices, data)
    return _by_probability(line, key, walk, places, params, words, indices, data)
