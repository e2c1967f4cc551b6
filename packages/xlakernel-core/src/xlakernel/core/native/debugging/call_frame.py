"""A call frame of the XLA FFI, read and copied in Python; `frame` reads it in machine code."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ...ffi import abi

_POINTER = 8
_PARTS = {"input": ("args", abi.ARGS), "output": ("rets", abi.RETS)}


class Parameter(Protocol):
    """What a kernel knows of an array that it takes: `native.Argument`, `gpu.plan.Array`."""

    @property
    def source(self) -> str:
        """``"input"`` or ``"output"``; anything else is no array."""

    @property
    def index(self) -> int:
        """Its number among the inputs, or among the outputs."""

    @property
    def dtype(self) -> str:
        """NumPy name of the element's dtype."""

    @property
    def ndim(self) -> int:
        """Its rank without batch dimensions."""


@dataclasses.dataclass(frozen=True)
class ArrayView:
    """An input or output of a call, where XLA has it.

    Attributes:
      argument: which one it is.
      address: of its data.
      shape: batch dimensions among it.
      struct: address of XLA's description of it.
    """

    argument: Parameter
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


def counts_of(frame: int) -> tuple[int, int, int]:
    """Return how many inputs, outputs and attributes the call at address *frame* has."""
    parts = (("args", abi.ARGS), ("rets", abi.RETS), ("attrs", abi.ATTRS))
    inputs, outputs, attributes = (_word(frame + abi.CALL_FRAME[part] + struct["size"]) for part, struct in parts)
    return inputs, outputs, attributes


def arrays_of(frame: int, arguments: Sequence[Parameter]) -> tuple[list[ArrayView], list[ArrayView]]:
    """Return the inputs and the outputs of the call at address *frame*, whose counts have been checked."""
    found: dict[str, list[ArrayView]] = {"input": [], "output": []}
    for argument in sorted((a for a in arguments if a.source in _PARTS), key=lambda a: a.index):
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


def dtype_of(view: ArrayView) -> int:
    """Return the code of the dtype that XLA says *view* has, of `abi.DATA_TYPES` or one that is not there."""
    return _half_word(view.struct + abi.BUFFER["dtype"]).value


def stream_of(frame: int) -> tuple[int, int | None]:
    """Return XLA's CUDA stream for the call at address *frame*, or 0 and an XLA_FFI_Error that the caller owns."""
    words = (ctypes.c_int64 * 4)()
    arguments, struct = ctypes.addressof(words), abi.STREAM_GET_ARGS
    assert struct.nbytes == ctypes.sizeof(words)
    _set_word(arguments + struct["struct_size"], struct.nbytes)
    _set_word(arguments + struct["ctx"], _word(frame + abi.CALL_FRAME["ctx"]))
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_word(api_of(frame) + abi.API["XLA_FFI_Stream_Get"]))
    error = get(arguments)
    return (0, error) if error else (_word(arguments + struct["stream"]), None)


def answer_handshake(frame: int) -> bool:
    """Answer XLA's question for the API version, if the frame is that and no call; `handler` does so in machine code.

    Returns:
      Whether it was.
    """
    extension = _word(frame + abi.CALL_FRAME["extension_start"])
    if not extension:
        return False
    metadata = _word(extension + abi.METADATA_EXTENSION["metadata"])
    api, minor = api_of(frame), abi.OLDEST_API_MINOR
    if api:
        minor = _half_word(api + abi.API["api_version"] + abi.API_VERSION["minor_version"]).value
    version = metadata + abi.METADATA["api_version"]
    _half_word(version + abi.API_VERSION["major_version"]).value = abi.API_MAJOR
    _half_word(version + abi.API_VERSION["minor_version"]).value = minor
    _half_word(metadata + abi.METADATA["traits"]).value = 0
    return True


def _half_word(address: int) -> ctypes.c_int32:
    return ctypes.c_int32.from_address(address)


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _set_word(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value
