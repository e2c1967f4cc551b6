"""How a stream fills memory with a value."""

from __future__ import annotations

import math
from typing import Any

from cuda.bindings import driver

from ..errors import DeviceError
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
        _check(array, function(address, value, length, stream))
        return
    for offset in range(0, len(pattern), 4):  # one column of words after the other
        word = int.from_bytes(pattern[offset : offset + 4], "little")
        _check(array, driver.cuMemsetD2D32Async(address + offset, len(pattern), word, 1, count, stream))


def _check(array: Array, result: tuple[Any, ...]) -> None:
    if int(result[0]) != 0:
        raise DeviceError(f"{array}: the driver does not fill it with output_init: {result[0]!r}.")
