"""The part of the CUDA driver's binary interface that launches use, as data.

The structs are those of ``cuda.h`` since CUDA 11.8; a test compares them with an installed header. Machine code finds
their fields by `layout`.
"""

from __future__ import annotations

import ctypes

from ...ffi.abi import Struct


class CUlaunchConfig(ctypes.Structure):  # noqa: D101
    _fields_ = [
        ("gridDimX", ctypes.c_uint32),
        ("gridDimY", ctypes.c_uint32),
        ("gridDimZ", ctypes.c_uint32),
        ("blockDimX", ctypes.c_uint32),
        ("blockDimY", ctypes.c_uint32),
        ("blockDimZ", ctypes.c_uint32),
        ("sharedMemBytes", ctypes.c_uint32),
        ("hStream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint32),
    ]


class CUlaunchAttribute(ctypes.Structure):  # noqa: D101
    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint8 * 4), ("value", ctypes.c_uint64 * 8)]


class CUDA_MEMCPY3D(ctypes.Structure):  # noqa: D101
    _fields_ = [
        ("srcXInBytes", ctypes.c_size_t),
        ("srcY", ctypes.c_size_t),
        ("srcZ", ctypes.c_size_t),
        ("srcLOD", ctypes.c_size_t),
        ("srcMemoryType", ctypes.c_uint32),
        ("srcHost", ctypes.c_void_p),
        ("srcDevice", ctypes.c_uint64),
        ("srcArray", ctypes.c_void_p),
        ("reserved0", ctypes.c_void_p),
        ("srcPitch", ctypes.c_size_t),
        ("srcHeight", ctypes.c_size_t),
        ("dstXInBytes", ctypes.c_size_t),
        ("dstY", ctypes.c_size_t),
        ("dstZ", ctypes.c_size_t),
        ("dstLOD", ctypes.c_size_t),
        ("dstMemoryType", ctypes.c_uint32),
        ("dstHost", ctypes.c_void_p),
        ("dstDevice", ctypes.c_uint64),
        ("dstArray", ctypes.c_void_p),
        ("reserved1", ctypes.c_void_p),
        ("dstPitch", ctypes.c_size_t),
        ("dstHeight", ctypes.c_size_t),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
        ("Depth", ctypes.c_size_t),
    ]


STRUCTS = (CUlaunchConfig, CUlaunchAttribute, CUDA_MEMCPY3D)

#: ``CU_MEMORYTYPE_DEVICE``.
MEMORY_TYPE_DEVICE = 2

#: Names of the driver's functions in libcuda.so.1; the functions of fills by the bytes of an element.
LAUNCH = "cuLaunchKernelEx"
FILL_ROW = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
FILL_ROWS = {1: "cuMemsetD2D8Async", 2: "cuMemsetD2D16Async", 4: "cuMemsetD2D32Async"}
COPY_ROW = "cuMemcpyDtoDAsync_v2"
COPY_ROWS = "cuMemcpy3DAsync_v2"
CURRENT_DEVICE = "cuCtxGetDevice"
ERROR_NAME = "cuGetErrorName"
FUNCTIONS = (LAUNCH, *FILL_ROW.values(), *FILL_ROWS.values(), COPY_ROW, COPY_ROWS, CURRENT_DEVICE, ERROR_NAME)

#: ``CUresult``s of exhausted resources: ``CUDA_ERROR_OUT_OF_MEMORY``, ``…LAUNCH_OUT_OF_RESOURCES``.
EXHAUSTED = (2, 701)
#: ``CUresult``s of failed work that every later call in the process returns too: an error of ECC or of a link, an
#: illegal address, a timeout, an assertion, and other failures of a running kernel.
STICKY = (214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719)


def layout(struct: type[ctypes.Structure]) -> Struct:
    """Return the offsets of the fields of *struct*, for machine code."""
    fields = {field[0]: getattr(struct, field[0]).offset for field in struct._fields_}
    return Struct(struct.__name__, fields, ctypes.sizeof(struct))
