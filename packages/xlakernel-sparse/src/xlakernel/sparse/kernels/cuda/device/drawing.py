"""Lines of a procedural matrix on a GPU: a group of neighbouring threads draws the entries of a chunk together.

Each thread draws four neighbouring slots at once. A prefix sum over the group turns gaps into places.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ....operators.connections import BATCH, PLACES, WEIGHTS
from ....random.philox import fraction, normals, philox
from ...drawing import gap, scaled
from .memory import load
from .warp import ALL


class Draws(NamedTuple):
    """The properties of a matrix's lines that compiled code depends on.

    Attributes:
      distribution: that of the weights.
      by_number: True if lines have a given number of entries.
    """

    distribution: str
    by_number: bool


@cuda.jit(device=True, forceinline=True)
def _gap(word: Any, length: Any, multiplier: Any, shift: Any) -> Any:
    odd = np.uint32(word | np.uint32(1))
    return np.int32(min(gap(odd, np.uint32(cuda.clz(odd)), multiplier, shift), length))


@functools.cache
def _prefix_sum(threads: int) -> Any:
    """Return a device function that sums the values of a thread and of the threads before it in its group."""

    @cuda.jit(device=True, forceinline=True)
    def prefix_sum(value: Any) -> Any:
        lane, offset = np.int32(cuda.laneid % threads), 1
        while offset < threads:
            before = cuda.shfl_up_sync(ALL, value, offset)
            if lane >= offset:
                value = np.int32(value + before)
            offset *= 2
        return value

    return prefix_sum


@functools.cache
def _weights_of(kind: type, distribution: str) -> Any:
    """Return a device function ``f(params, key0, key1, group, chunk, line)`` for the weights of four slots."""

    @cuda.jit(device=True, forceinline=True)
    def homogeneous(params: Any, key0: Any, key1: Any, group: Any, chunk: Any, line: Any) -> Any:
        weight = kind(load(params, 0))
        return weight, weight, weight, weight

    @cuda.jit(device=True, forceinline=True)
    def drawn(params: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        first, second = kind(load(params, 0)), kind(load(params, 1))
        return (
            kind(first + second * kind(a)),
            kind(first + second * kind(b)),
            kind(first + second * kind(c)),
            kind(first + second * kind(d)),
        )

    @cuda.jit(device=True, forceinline=True)
    def uniform(params: Any, key0: Any, key1: Any, group: Any, chunk: Any, line: Any) -> Any:
        a, b, c, d = philox(key0, key1, group, chunk, line, np.uint32(WEIGHTS))
        return drawn(params, fraction(a), fraction(b), fraction(c), fraction(d))

    @cuda.jit(device=True, forceinline=True)
    def normal(params: Any, key0: Any, key1: Any, group: Any, chunk: Any, line: Any) -> Any:
        a, b, c, d = philox(key0, key1, group, chunk, line, np.uint32(WEIGHTS))
        first, second = normals(a, b)
        third, fourth = normals(c, d)
        return drawn(params, first, second, third, fourth)

    return {"homogeneous": homogeneous, "uniform": uniform, "normal": normal}[distribution]


@functools.cache
def chunk_of(kind: type, draws: Draws, threads: int, take: Any) -> Any:
    """Return a device function for all threads of a warp, ``visit(wanted, line, chunk, value, source, to)``.

    Each group of threads draws a chunk of a line if *wanted*. For each batch, all threads of the warp call
    ``take(four, weights, value, to)``, where *four* are the places of the thread's slots, -1 for slots without entries.
    The result replaces *value*, and is returned after the last batch. *source* has the parameters of the weights, the
    two words of the key, the numbers of `Walk`, and the number of places of a line.

    Args:
      kind: NumPy's scalar type of the weights.
      draws: what is drawn.
      threads: the number of threads of a group, a power of two.
      take: device function, as above.
    """
    prefix_sum, weights = _prefix_sum(threads), _weights_of(kind, draws.distribution)
    last = threads - 1

    @cuda.jit(device=True, forceinline=True)
    def visit_number(wanted: Any, line: Any, chunk: Any, value: Any, source: Any, to: Any) -> Any:
        params, key0, key1, walk, places = source
        number = np.int64(load(walk, 0)) - np.int64(chunk) * BATCH
        count = np.int32(min(number, np.int64(BATCH))) if wanted else np.int32(0)
        slot = np.int32(4 * (cuda.laneid % threads))
        while cuda.any_sync(ALL, slot < count):
            group = np.uint32(slot >> np.int32(2))
            a, b, c, d = philox(key0, key1, group, chunk, line, np.uint32(PLACES))
            four = (
                np.int32(scaled(a, places)) if slot < count else np.int32(-1),
                np.int32(scaled(b, places)) if slot + 1 < count else np.int32(-1),
                np.int32(scaled(c, places)) if slot + 2 < count else np.int32(-1),
                np.int32(scaled(d, places)) if slot + 3 < count else np.int32(-1),
            )
            value = take(four, weights(params, key0, key1, group, chunk, line), value, to)
            slot = np.int32(slot + 4 * threads)
        return value

    @cuda.jit(device=True, forceinline=True)
    def visit_gaps(wanted: Any, line: Any, chunk: Any, value: Any, source: Any, to: Any) -> Any:
        params, key0, key1, walk, places = source
        length, multiplier, shift = load(walk, 2), load(walk, 3), load(walk, 4)
        base = np.int64(chunk) * np.int64(length)
        extent = np.int32(min(np.int64(length), np.int64(places) - base)) if wanted else np.int32(0)
        group, start = np.uint32(cuda.laneid % threads), np.int32(0)
        while cuda.any_sync(ALL, start < extent):
            a, b, c, d = philox(key0, key1, group, chunk, line, np.uint32(PLACES))
            p = _gap(a, length, multiplier, shift)
            q = np.int32(p + 1 + _gap(b, length, multiplier, shift))
            r = np.int32(q + 1 + _gap(c, length, multiplier, shift))
            s = np.int32(r + 1 + _gap(d, length, multiplier, shift))
            through = prefix_sum(np.int32(s + 1))
            before = np.int32(start + through - (s + 1))
            p, q, r, s = np.int32(before + p), np.int32(before + q), np.int32(before + r), np.int32(before + s)
            four = (
                np.int32(base + p) if p < extent else np.int32(-1),
                np.int32(base + q) if q < extent else np.int32(-1),
                np.int32(base + r) if r < extent else np.int32(-1),
                np.int32(base + s) if s < extent else np.int32(-1),
            )
            value = take(four, weights(params, key0, key1, group, chunk, line), value, to)
            start = np.int32(start + cuda.shfl_sync(ALL, through, np.int32(cuda.laneid // threads * threads + last)))
            group = np.uint32(group + np.uint32(threads))
        return value

    return visit_number if draws.by_number else visit_gaps
