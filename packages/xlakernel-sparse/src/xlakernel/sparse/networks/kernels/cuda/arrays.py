"""Arrays of a block of threads: those of its slice of a batch, and its sums."""

from __future__ import annotations

import functools
from typing import Any

import numba
from numba import cuda


@functools.cache
def slices(batched: bool) -> Any:
    """Return a device function that returns the arrays of one slice of a batch."""
    if batched:

        @cuda.jit(device=True, inline="always")
        def slice_of(array, number):
            return array[number]
    else:

        @cuda.jit(device=True, inline="always")
        def slice_of(array, number):
            return array

    return slice_of


@functools.cache
def sums_of_block(in_shared: bool) -> Any:
    """Return a device function that returns the sums of a block."""
    if in_shared:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return cuda.shared.array(0, numba.int32)
    else:

        @cuda.jit(device=True, inline="always")
        def sums_of(memory, block, length):
            return memory[block * length : (block + 1) * length]

    return sums_of
