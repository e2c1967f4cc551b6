"""Call frames of the XLA FFI, read and copied in Python; `machine.frame` reads them in machine code."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ffi import abi

_POINTER = 8
_PARTS = {"input": ("args", abi.ARGS), "output": ("rets", abi.RETS)}


@dataclasses.dataclass(frozen=True)
class ArrayView:
    """An input or output of a call, in XLA's memory.

    Attributes:
      argument: the description of the array, a `native.Argument` or `gpu.plan.Array`.
      address: the address of the data.
      shape: the extents, including batch dimensions.
      struct: the address of the ``XLA_FFI_Buffer``.
    """

    argument: Any
    address: int
    shape: tuple[int, ...]
    struct: int

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return np.dtype(str(self.argument.dtype))

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of its data."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        """Name the array with its shape in the kernel, without batch dimensions."""
        own = self.shape[len(self.shape) - self.argument.ndim :]
        return f"{self.argument.source} {self.argument.index} ({self.dtype.name}[{','.join(map(str, own))}])"

    def name_element(self, position: int) -> str:
        """Name the element at *position* of the flattened array."""
        index = tuple(int(i) for i in np.unravel_index(position, self.shape))
        batch = len(self.shape) - self.argument.ndim
        where = f", in slice {index[:batch]} of a batch of {self.shape[:batch]}" if batch else ""
        return f"element {index[batch:]} of {self}{where}"


def counts_of(frame: int) -> tuple[int, int, int]:
    """Return the numbers of inputs, outputs and attributes of the call at address *frame*."""
    parts = (("args", abi.ARGS), ("rets", abi.RETS), ("attrs", abi.ATTRS))
    inputs, outputs, attributes = (_word(frame + abi.CALL_FRAME[part] + struct["size"]) for part, struct in parts)
    return inputs, outputs, attributes


def arrays_of(frame: int, arguments: Sequence[Any]) -> tuple[list[ArrayView], list[ArrayView]]:
    """Return the inputs and the outputs of the call at address *frame*. The caller has checked their numbers."""
    found: dict[str, list[ArrayView]] = {"input": [], "output": []}
    for argument in sorted(arguments, key=lambda a: a.index):
        part, struct = _PARTS[argument.source]
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
    """A copy of a call frame, with other memory for its arrays.

    Args:
      frame: address of the original. The copy and the original share their attributes and context.
      inputs: each input, and the address of its data for the copy.
      outputs: likewise for the outputs.
    """

    def __init__(
        self, frame: int, inputs: Sequence[tuple[ArrayView, int]], outputs: Sequence[tuple[ArrayView, int]]
    ) -> None:
        self._owned: list[Any] = []  # the memory of the copy
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
        """Copy a struct in the size that the runtime declares; newer versions of XLA have larger structs."""
        size = _word(address + struct["struct_size"])
        words = (ctypes.c_int64 * -(-size // 8))()
        ctypes.memmove(words, address, size)
        self._owned.append(words)
        return ctypes.addressof(words)


def dtype_of(view: ArrayView) -> int:
    """Return XLA's code for the dtype of *view*. `abi.DATA_TYPES` may lack the code."""
    return ctypes.c_int32.from_address(view.struct + abi.BUFFER["dtype"]).value


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _set_word(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value
