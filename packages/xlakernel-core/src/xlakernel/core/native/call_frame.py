"""A call frame of the XLA FFI, read and copied in Python; `frame` reads it in machine code."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ffi import abi
from .arguments import Argument

_POINTER = 8


@dataclasses.dataclass(frozen=True)
class ArrayView:
    """An input or output of a call, where XLA has it.

    Attributes:
      argument: which one it is.
      address: of its data.
      shape: batch dimensions among it.
      struct: address of XLA's description of it.
    """

    argument: Argument
    address: int
    shape: tuple[int, ...]
    struct: int

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return np.dtype(self.argument.dtype)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of its data."""
        return self.size * self.dtype.itemsize

    @property
    def bytes(self) -> Any:
        """Its data, as a writable NumPy array of bytes."""
        if not self.nbytes:  # XLA may give no address
            return np.empty(0, np.uint8)
        buffer: Any = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        return np.frombuffer(buffer, np.uint8)

    def __str__(self) -> str:
        """Name it as the kernel knows it: without batch dimensions."""
        own = self.shape[len(self.shape) - self.argument.ndim :]
        return f"{self.argument.source} {self.argument.index} ({self.dtype.name}[{','.join(map(str, own))}])"

    def name_element(self, position: int) -> str:
        """Name the element at *position* of the flattened array."""
        index = tuple(int(i) for i in np.unravel_index(position, self.shape))
        batch = len(self.shape) - self.argument.ndim
        where = f", in slice {index[:batch]} of a batch of {self.shape[:batch]}" if batch else ""
        return f"element {index[batch:]} of {self}{where}"


def arrays_of(frame: int, arguments: Sequence[Argument]) -> tuple[list[ArrayView], list[ArrayView]]:
    """Return the inputs and the outputs of the call at address *frame*, which has been checked."""
    sources = {"input": ("args", abi.ARGS), "output": ("rets", abi.RETS)}
    found: dict[str, list[ArrayView]] = {"input": [], "output": []}
    for argument in sorted((a for a in arguments if a.is_buffer), key=lambda a: a.index):
        part, struct = sources[argument.source]
        buffers = _word(frame + abi.CALL_FRAME[part] + struct[part])
        buffer = _word(buffers + _POINTER * argument.index)
        dims = _word(buffer + abi.BUFFER["dims"])
        shape = tuple(_word(dims + 8 * axis) for axis in range(_word(buffer + abi.BUFFER["rank"])))
        found[argument.source].append(ArrayView(argument, _word(buffer + abi.BUFFER["data"]), shape, buffer))
    return found["input"], found["output"]


def api_of(frame: int) -> int:
    """Return the address of the table of XLA's functions."""
    return _word(frame + abi.CALL_FRAME["api"])


class FrameCopy:
    """A copy of the call frame at address *frame*, with other memory for its arrays.

    Args:
      frame: the original, whose attributes and context it shares.
      inputs: each input, and the address that is to be its data.
      outputs: the same of the outputs.
    """

    def __init__(
        self, frame: int, inputs: Sequence[tuple[ArrayView, int]], outputs: Sequence[tuple[ArrayView, int]]
    ) -> None:
        self._owned: list[Any] = []  # what the copy refers to
        self.address = self._copy_struct(frame, abi.CALL_FRAME)
        for part, struct, arrays in (("args", abi.ARGS, inputs), ("rets", abi.RETS, outputs)):
            buffers = (ctypes.c_void_p * len(arrays))(*(self._copy_buffer(view, data) for view, data in arrays))
            self._owned.append(buffers)
            _set_word(self.address + abi.CALL_FRAME[part] + struct[part], ctypes.addressof(buffers))

    def _copy_buffer(self, view: ArrayView, data: int) -> int:
        copy = self._copy_struct(view.struct, abi.BUFFER)
        _set_word(copy + abi.BUFFER["data"], data)
        return copy

    def _copy_struct(self, address: int, struct: abi.Struct) -> int:
        """Copy as many bytes as the runtime says that it has: more than we know of, where it is newer."""
        size = _word(address + struct["struct_size"])
        words = (ctypes.c_int64 * -(-size // 8))()
        ctypes.memmove(words, address, size)
        self._owned.append(words)
        return ctypes.addressof(words)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _set_word(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value
