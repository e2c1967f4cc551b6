"""DLPack capsules of arrays on the device.

The structs are those of dlpack.h for capsules named ``dltensor`` (ABI 0.x), which every consumer reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

#: DLPack's device type for CUDA.
CUDA = 2
# DLPack's type codes, by NumPy's kind of a dtype.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# The prototypes are our own, because the whole process shares those of `ctypes.pythonapi`.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("PyMem_RawMalloc", ctypes.pythonapi))
# The deleter of the struct is a C function, because it may be called without the GIL, or during an exception; a Python
# function would crash there.
_free = ctypes.cast(ctypes.pythonapi.PyMem_RawFree, ctypes.c_void_p).value
_NAME = b"dltensor"  # a capsule keeps this pointer


def capsule(address: int, shape: Sequence[int], dtype: np.dtype[Any], device: int) -> Any:
    """Return a capsule for the C-contiguous array at *address*.

    The consumer of the capsule frees its struct. Without a consumer, these few bytes are not freed.

    Raises:
      BufferError: if DLPack has no such dtype.
    """
    code = _BFLOAT if dtype.name == "bfloat16" else _CODES.get(dtype.kind) if dtype.isbuiltin == 1 else None
    if code is None:
        raise BufferError(f"DLPack has no dtype {dtype.name}; use the pointer, ptr.")
    ndim = len(shape)
    strides = [1] * ndim
    for axis in reversed(range(ndim - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    extents = (ctypes.c_int64 * (2 * ndim))(*shape, *strides)
    begin = ctypes.sizeof(_DLManagedTensor)
    at = _allocate(begin + ctypes.sizeof(extents))
    if not at:
        raise MemoryError
    pointers = (at + begin, at + begin + ctypes.sizeof(extents) // 2)
    tensor = _DLTensor(address, CUDA, device, ndim, code, dtype.itemsize * 8, 1, *pointers, 0)
    managed = _DLManagedTensor(tensor, None, _free)
    ctypes.memmove(at, ctypes.byref(managed), begin)
    ctypes.memmove(at + begin, extents, ctypes.sizeof(extents))
    return _new_capsule(at, _NAME, None)
