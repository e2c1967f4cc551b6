"""Filling an array with a value on a stream."""

from __future__ import annotations

import math

from cuda.bindings import driver

from .driver import check
from .plan import Array


def fill(array: Array, address: int, pattern: bytes, stream: int) -> None:
    """Set every element of *array* at *address* to *pattern*, on *stream*."""
    count = math.prod(array.shape)
    if not count:
        return
    unit = next((n for n in (1, 2, 4) if pattern == pattern[:n] * (len(pattern) // n)), 0)
    if unit:
        value, length = int.from_bytes(pattern[:unit], "little"), count * len(pattern) // unit
        function = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[unit]
        check(function(address, value, length, stream))
        return
    # Each wide element is a row of 4-byte words: fill the columns one after the other.
    for offset in range(0, len(pattern), 4):
        word = int.from_bytes(pattern[offset : offset + 4], "little")
        check(driver.cuMemsetD2D32Async(address + offset, len(pattern), word, 1, count, stream))
