"""Addresses to record on: reserved ranges of the address space, backed by next to no memory.

Each array of a recording lies in a range of its own, with room on both sides. So an address in a launch identifies the
array and the offset that it points to, even before the array's beginning. The same small piece of memory is mapped
throughout all arrays, so that libraries can query the properties of a pointer. If a function launches work outside of
the capture by mistake, the work is executed at once on this memory, and does no harm.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

from cuda.bindings import driver as cuda

from ..driver import check

_BACKED = 1 << 30  # the most bytes of an array that are backed by memory; mapping more takes milliseconds
_KEPT = 64  # ranges of the smallest size that are kept for later recordings, for each device
_REST = 10.0  # seconds before a larger range is freed, as work launched outside the capture may still use it

_state = threading.local()


@dataclasses.dataclass(frozen=True)
class _Range:
    begin: int
    end: int
    start: int  # address of the array
    nbytes: int  # size of the array
    backed: int  # bytes that are backed by memory, after the room before the array


class Ranges:
    """The address ranges of one recording, on the device of the current context.

    Args:
      device: the driver's ordinal of that device.
    """

    def __init__(self, device: int) -> None:
        self._ranges: list[_Range] = []
        self._backing = _backing(device)

    def reserve(self, nbytes: int, shift: int = 0) -> int:
        """Return the address of a new array of *nbytes* bytes, *shift* bytes away from the strictest alignment."""
        found = self._backing.take(nbytes + shift)
        start = found.begin + self._backing.granule + shift
        self._ranges.append(dataclasses.replace(found, start=start, nbytes=nbytes))
        return start

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the number of the array that *address* points into and the offset in it, or None."""
        for number, found in enumerate(self._ranges):
            if found.begin <= address < found.end:
                return number, address - found.start
        return None

    def size(self, number: int) -> int:
        """Return the size of array *number* in bytes."""
        return self._ranges[number].nbytes

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """In this context, `temporary` reserves addresses from this object, in this thread."""
        before = getattr(_state, "ranges", None)  # recordings nest: a recorded function may trace another one
        _state.ranges = self
        try:
            yield
        finally:
            _state.ranges = before

    def free(self) -> None:
        """Give the ranges back, for use by other recordings."""
        while self._ranges:
            self._backing.give_back(self._ranges.pop())


@dataclasses.dataclass
class _Backing:
    """The memory that backs the ranges of a device, and the unused ranges of the device.

    Attributes:
      granule: the unit of the driver's mappings, in bytes.
      memory: one granule of memory.
      access: the driver's description of the devices that may access the memory.
      kept: unused ranges of the smallest size.
      resting: larger unused ranges, and the times at which to free them.
    """

    granule: int
    memory: Any
    access: Any
    kept: list[_Range] = dataclasses.field(default_factory=list)
    resting: collections.deque[tuple[float, _Range]] = dataclasses.field(default_factory=collections.deque)

    def take(self, nbytes: int) -> _Range:
        """Return a range for an array of this size, a kept one if that is large enough."""
        return self.kept.pop() if self.kept and nbytes <= self.granule else self._make(nbytes)

    def _make(self, nbytes: int) -> _Range:
        """Reserve and back a range for an array of this size, with a granule of room before and after the array."""
        granules = max(1, -(-nbytes // self.granule))
        size = (granules + 2) * self.granule
        begin = int(check(cuda.cuMemAddressReserve(size, self.granule, 0, 0)))
        backed = 0
        try:
            while backed < min(granules * self.granule, max(_BACKED, self.granule)):
                check(cuda.cuMemMap(begin + self.granule + backed, self.granule, 0, self.memory, 0))
                backed += self.granule
            check(cuda.cuMemSetAccess(begin + self.granule, backed, [self.access], 1))
        except BaseException:
            self._release(_Range(begin, begin + size, begin, nbytes, backed))
            raise
        return _Range(begin, begin + size, begin, nbytes, backed)

    def give_back(self, found: _Range) -> None:
        """Keep a range of the smallest size, and free a larger one after `_REST` seconds."""
        now = time.monotonic()
        if found.end - found.begin == 3 * self.granule and len(self.kept) < _KEPT:
            self.kept.append(found)
        else:
            self.resting.append((now + _REST, found))
        while self.resting and self.resting[0][0] <= now:
            self._release(self.resting.popleft()[1])

    def _release(self, found: _Range) -> None:
        if found.backed:
            check(cuda.cuMemUnmap(found.begin + self.granule, found.backed))
        check(cuda.cuMemAddressFree(found.begin, found.end - found.begin))


@functools.cache  # takes a few MiB for the life of the process, and saves a millisecond for each recording
def _backing(device: int) -> _Backing:
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    access = cuda.CUmemAccessDesc()
    access.location = properties.location
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    granule = int(check(cuda.cuMemGetAllocationGranularity(properties, minimum)))
    return _Backing(granule, check(cuda.cuMemCreate(granule, properties, 0)), access)


def temporary(nbytes: int) -> int | None:
    """Return the address of temporary memory, for the allocators of libraries; None outside a recording.

    XLA provides the memory when the recorded work is replayed.
    """
    ranges: Ranges | None = getattr(_state, "ranges", None)
    return None if ranges is None else ranges.reserve(nbytes)
