"""Arguments for the constructors of libraries: the memory of an array, and XLA's stream."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from . import dlpack


@dataclasses.dataclass(frozen=True)
class DeviceBuffer:
    """One argument of a call: a C-contiguous array in the memory of a CUDA device.

    Most libraries accept the buffer itself, by ``__cuda_array_interface__`` (version 3) or ``__dlpack__``. It is valid
    while the function runs.

    Attributes:
      ptr: the address of the first element.
      shape: the array's extents.
      dtype: NumPy's dtype, or that of ml_dtypes for bfloat16 and the like.
      device: the CUDA device's ordinal.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.isbuiltin != 1:  # libraries would read raw bytes
            raise AttributeError(f"__cuda_array_interface__ has no dtype {self.dtype.name}; use DLPack, or ptr.")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr if self.nbytes else 0, False),
            "strides": None,
            "stream": None,  # nothing to wait for: the function's work goes on the stream that wrote the data
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"This memory stays on CUDA device {self.device} and is not copied; copy it yourself.")
        return dlpack.capsule(self.ptr, self.shape, self.dtype, self.device)


@dataclasses.dataclass(frozen=True)
class StreamHandle:
    """XLA's stream, for any library: ``__cuda_stream__`` and ``int()`` return its handle.

    Attributes:
      handle: the driver's ``CUstream``.
    """

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __int__(self) -> int:
        return self.handle

    __index__ = __int__
