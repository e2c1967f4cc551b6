"""Copies of an operand in a block's shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from .memory import is_aligned, load, load4


@cuda.jit(device=True, forceinline=True)
def _four_bits(events: Any, k: Any) -> Any:
    a, b, c, d = load4(events, k)
    return np.uint32(a) | np.uint32(b) << 1 | np.uint32(c) << 2 | np.uint32(d) << 3


@cuda.jit(device=True, forceinline=True)
def stage_bits(events: Any, words: Any) -> Any:
    """Write the events as bits, 32 in a word of shared memory; synchronise the block before reading them."""
    fast = is_aligned(events)
    for word in range(cuda.threadIdx.x, (events.size + 31) // 32, cuda.blockDim.x):
        k = 32 * word
        bits = np.uint32(0)
        if fast and k + 32 <= events.size:
            for i in range(8):
                bits |= np.uint32(_four_bits(events, k + 4 * i)) << np.uint32(4 * i)
        else:
            for i in range(min(32, events.size - k)):
                bits |= np.uint32(load(events, k + i)) << np.uint32(i)
        words[word] = bits


@cuda.jit(device=True, forceinline=True)
def stage_slice(x: Any, first: Any, count: Any, words: Any) -> None:
    """Copy ``x[first : first + count]`` to shared memory; synchronise the block before reading it."""
    step = cuda.blockDim.x
    i = np.int64(cuda.threadIdx.x)
    while i + 7 * step < count:  # eight loads at a time, so that the loads overlap
        a, b = load(x, first + i), load(x, first + i + step)
        c, d = load(x, first + i + 2 * step), load(x, first + i + 3 * step)
        e, f = load(x, first + i + 4 * step), load(x, first + i + 5 * step)
        g, h = load(x, first + i + 6 * step), load(x, first + i + 7 * step)
        words[i], words[i + step], words[i + 2 * step], words[i + 3 * step] = a, b, c, d
        words[i + 4 * step], words[i + 5 * step], words[i + 6 * step], words[i + 7 * step] = e, f, g, h
        i += 8 * step
    while i < count:
        words[i] = load(x, first + i)
        i += step
