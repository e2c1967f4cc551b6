"""Copies of a call's arrays for debug mode, between guard bytes and with poisoned outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .call_frame import ArrayView
from .memory import Memory

# Each array has a different guard byte, to detect a kernel that copies bytes beyond one array to bytes beyond another.
_GUARD_BYTES = tuple(0xA5 ^ number for number in range(64))

# The bits of the poisons. The low bytes are distinct, and neither 0 nor 1. The last six bits are distinct too, because
# a bfloat16 NaN keeps only these.
_WORDS = tuple(0x9E3779B97F4A7C15 * k % 2**64 for k in range(1, 9))

#: The number of different poisons.
POISONS = len(_WORDS)


def part_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return *dtype*, or the dtype of the real and the imaginary part if *dtype* is complex."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def poison(dtype: np.dtype[Any], number: int) -> Any:
    """Return the bits of poison *number*, for each part of an element (a complex element has two parts).

    The bits are an invalid bool, an arbitrary integer, a NaN, or a large float. Poisons of floats alternate between the
    last two, because a maximum ignores NaN, and because the product of a large number and 0 is 0.

    Args:
      dtype: the dtype of the element.
      number: an index below `POISONS`. Each poison of a dtype has different bits.
    """
    part = part_of(dtype)
    unsigned = np.dtype(f"u{part.itemsize}")
    bits = _WORDS[number] % 2 ** (8 * part.itemsize)
    if part.kind not in "biu":
        nan, infinite = (int(np.array(value, part).view(unsigned)) for value in (np.nan, np.inf))
        bits |= nan
        if number % 2:  # without the last bit of the exponent, and without the sign
            bits &= ~(infinite & -infinite) & ~(1 << 8 * part.itemsize - 1)
    return np.full(dtype.itemsize // part.itemsize, bits, unsigned)


class Copies:
    """Copies of a call's arrays in host memory, for one run of its kernel.

    An input and an output that share memory in the call share one copy.

    Args:
      inputs: the call's inputs.
      outputs: the call's outputs.
      number: the poison of the outputs.
      memory: the memory of the call's arrays.
    """

    def __init__(self, inputs: Sequence[ArrayView], outputs: Sequence[ArrayView], number: int, memory: Memory) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.number = number
        self.memory = memory
        read, written = ({view.address for view in views if view.nbytes} for views in (inputs, outputs))
        #: Inputs that share no memory with an output: the kernel must not change them.
        self.constant = [view for view in inputs if not (view.nbytes and view.address in written)]
        #: Outputs that are poisoned before the run.
        self.fresh = [view for view in outputs if view.nbytes and view.address not in read]
        self._blocks: dict[ArrayView, Any] = {}
        self._guard_bytes: dict[int, int] = {}
        shared: dict[int, Any] = {}  # copies that an input and an output share, by address
        for view in (*inputs, *outputs):
            if view.nbytes and view.address in read & written:
                if view.address not in shared:
                    shared[view.address] = self._guarded(view.nbytes)
                self._blocks[view] = shared[view.address]
            else:
                self._blocks[view] = self._guarded(view.nbytes)
        for view in inputs:
            self.bytes_of(view)[:] = memory.read(view)
        for view in self.fresh:
            self._parts(view)[:] = poison(view.dtype, number)

    def again(self) -> Copies:
        """Return new copies of the same arrays, with the same poison."""
        return Copies(self.inputs, self.outputs, self.number, self.memory)

    @contextlib.contextmanager
    def placed(self) -> Iterator[Mapping[ArrayView, int]]:
        """Place the copies in the call's memory, yield their addresses, and read them back on exit."""
        blocks = list({id(block): block for block in self._blocks.values()}.values())
        with self.memory.placed(blocks) as addresses:
            starts = {id(block): address + self.memory.guard for block, address in zip(blocks, addresses, strict=True)}
            yield {view: starts[id(block)] for view, block in self._blocks.items()}

    def bytes_of(self, view: ArrayView) -> Any:
        """Return the copy of *view*, as bytes."""
        block, guard = self._blocks[view], self.memory.guard
        return block[guard : block.size - guard]

    def damaged(self) -> Iterator[ArrayView]:
        """Yield the arrays with changed guard bytes."""
        guard = self.memory.guard
        for view, block in self._blocks.items():
            byte = self._guard_bytes[id(block)]
            if (block[:guard] != byte).any() or (block[block.size - guard :] != byte).any():
                yield view

    def changed(self, view: ArrayView) -> Any:
        """Return a mask of the elements of *view* whose copy has different bits."""
        differs = self.bytes_of(view) != self.memory.read(view)
        return differs.reshape(-1, view.dtype.itemsize).any(axis=1)

    def poisoned(self, view: ArrayView) -> Any:
        """Return a mask of the elements of *view* with a poisoned part."""
        return (self._parts(view) == poison(view.dtype, self.number)).any(axis=1)

    def hand_out(self, outputs: Sequence[ArrayView]) -> None:
        """Copy the results to the call's outputs."""
        for view in outputs:
            self.memory.write(view, self.bytes_of(view))

    def _parts(self, view: ArrayView) -> Any:
        """Return the copy as an array of shape (elements, parts)."""
        parts = poison(view.dtype, self.number)
        return self.bytes_of(view).view(parts.dtype).reshape(-1, parts.size)

    def _guarded(self, nbytes: int) -> Any:
        """Return an aligned array of *nbytes* bytes between two guards."""
        guard, byte = self.memory.guard, _GUARD_BYTES[len(self._guard_bytes) % len(_GUARD_BYTES)]
        memory = np.full(nbytes + 3 * guard, byte, np.uint8)
        start = -memory.ctypes.data % guard
        block = memory[start : start + nbytes + 2 * guard]
        self._guard_bytes[id(block)] = byte
        return block
