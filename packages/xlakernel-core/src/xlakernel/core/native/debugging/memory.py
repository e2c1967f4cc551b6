"""The memory of a call's arrays in debug mode: host memory, or device memory that the host accesses by copies."""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .call_frame import ArrayView


class Memory(abc.ABC):
    """The memory of a call's arrays."""

    #: Guard bytes on each side of a copy; a multiple of every alignment that a kernel may assume.
    guard: int

    @abc.abstractmethod
    def read(self, view: ArrayView) -> Any:
        """Return the data of *view* as a NumPy array of bytes, not to be written to."""

    @abc.abstractmethod
    def write(self, view: ArrayView, data: Any) -> None:
        """Replace the data of *view* by an array of bytes."""

    @abc.abstractmethod
    def placed(self, blocks: Sequence[Any]) -> AbstractContextManager[list[int]]:
        """Place *blocks*, host arrays of bytes, in this memory, and yield their addresses.

        On exit, *blocks* have the bytes that a kernel wrote at these addresses.
        """


class HostMemory(Memory):
    """The memory of a call on the CPU."""

    guard = 64

    def read(self, view: ArrayView) -> Any:
        """Return the data itself."""
        if not view.nbytes:  # XLA may give no address
            return np.empty(0, np.uint8)
        buffer: Any = (ctypes.c_uint8 * view.nbytes).from_address(view.address)
        return np.frombuffer(buffer, np.uint8)

    def write(self, view: ArrayView, data: Any) -> None:
        """Replace the data of *view*."""
        self.read(view)[:] = data

    def placed(self, blocks: Sequence[Any]) -> AbstractContextManager[list[int]]:
        """Yield the addresses of the arrays themselves."""
        return nullcontext([int(block.ctypes.data) for block in blocks])
