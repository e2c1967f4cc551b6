"""The arrays that a kernel is given in debug mode: copies between guards, outputs full of poison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .call_frame import ArrayView

_GUARD = 64  # bytes on each side of a copy; a multiple of every alignment that a kernel may count on
_GUARD_BYTE = 0xA5

# Their low bytes differ, in the last six bits the first four, and none is 0 or 1.
_WORDS = tuple(0x9E3779B97F4A7C15 * k % 2**64 for k in range(1, 9))

#: How many kinds of poison there are.
POISONS = len(_WORDS)


def part_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return what is poisoned by itself: the dtype, or that of a complex number's real and imaginary part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def poison(dtype: np.dtype[Any], number: int) -> Any:
    """Return an element's parts that are poison *number*: a NaN if they can be, no valid bool, for integers any value.

    Args:
      dtype: of the element.
      number: below `POISONS`, each with other bits; those of 16-bit floats repeat after four.
    """
    part = part_of(dtype)
    unsigned = np.dtype(f"u{part.itemsize}")
    bits = _WORDS[number] % 2 ** (8 * part.itemsize)
    if part.kind not in "biu":
        bits |= int(np.array(np.nan, part).view(unsigned))
    return np.full(dtype.itemsize // part.itemsize, bits, unsigned)


class Copies:
    """Fresh copies of a call's arrays for one run of its kernel.

    Arrays that share memory in the call share their copy.

    Args:
      inputs: the call's inputs.
      outputs: its outputs.
      number: the poison to use.
    """

    def __init__(self, inputs: Sequence[ArrayView], outputs: Sequence[ArrayView], number: int) -> None:
        self.number = number
        shared = {view.address for view in outputs if view.nbytes}
        #: Inputs whose memory is no output's: the kernel may not change them.
        self.constant = [view for view in inputs if not (view.nbytes and view.address in shared)]
        shared &= {view.address for view in inputs if view.nbytes}
        #: Outputs that begin as poison.
        self.fresh = [view for view in outputs if view.nbytes and view.address not in shared]
        by_address: dict[int, Any] = {}
        self._memory: dict[ArrayView, Any] = {}
        for view in (*inputs, *outputs):
            memory = by_address.get(view.address) if view.nbytes and view.address in shared else None
            if memory is None:
                memory = by_address[view.address] = _guarded(view.nbytes)
                _inside(memory)[:] = view.bytes
            self._memory[view] = memory
        for view in self.fresh:
            self._parts(view)[:] = poison(view.dtype, number)

    def address_of(self, view: ArrayView) -> int:
        """Return where the copy of *view* is."""
        return int(self.bytes_of(view).ctypes.data)

    def bytes_of(self, view: ArrayView) -> Any:
        """Return the copy of *view*, as bytes."""
        return _inside(self._memory[view])

    def damaged(self) -> Iterator[ArrayView]:
        """Yield the arrays around which something was written."""
        for view, memory in self._memory.items():
            if (memory[:_GUARD] != _GUARD_BYTE).any() or (memory[memory.size - _GUARD :] != _GUARD_BYTE).any():
                yield view

    def changed(self, view: ArrayView) -> Any:
        """Return for each element of *view* whether the copy has other bits."""
        differs = self.bytes_of(view) != view.bytes
        return differs.reshape(-1, view.dtype.itemsize).any(axis=1)

    def poisoned(self, view: ArrayView) -> Any:
        """Return for each element of *view* whether it still is poison, in part at least."""
        return (self._parts(view) == poison(view.dtype, self.number)).any(axis=1)

    def hand_out(self, outputs: Sequence[ArrayView]) -> None:
        """Copy the results to where XLA wants them."""
        for view in outputs:
            view.bytes[:] = self.bytes_of(view)

    def _parts(self, view: ArrayView) -> Any:
        """Return the copy as an array of elements by parts."""
        parts = poison(view.dtype, self.number)
        return self.bytes_of(view).view(parts.dtype).reshape(-1, parts.size)


def _guarded(nbytes: int) -> Any:
    """Return an aligned array of *nbytes* bytes between two guards."""
    memory = np.full(nbytes + 3 * _GUARD, _GUARD_BYTE, np.uint8)
    start = -memory.ctypes.data % _GUARD
    return memory[start : start + nbytes + 2 * _GUARD]


def _inside(memory: Any) -> Any:
    return memory[_GUARD : memory.size - _GUARD]
