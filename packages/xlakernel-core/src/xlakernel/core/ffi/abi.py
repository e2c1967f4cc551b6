"""The binary interface of the XLA FFI C API, as data.

The offsets and sizes, in bytes on 64-bit platforms, are those of ``xla/ffi/api/c_api.h``. They are the same from jaxlib
0.7 to 0.12, and a test compares them with the header of the installed jaxlib (``jax.ffi.include_dir()``). All offsets
in the project come from this file.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import jax

from ..errors import AbiError

#: A new major version may change any layout; a new minor version only adds fields and functions.
API_MAJOR = 0
OLDEST_API_MINOR = 1


@dataclasses.dataclass(frozen=True)
class Struct:
    """A C struct: the offsets of its fields, and its size if a handler allocates such a struct."""

    name: str
    fields: Mapping[str, int]
    nbytes: int | None = None

    def __getitem__(self, field: str) -> int:
        return self.fields[field]


def _struct(name: str, nbytes: int | None = None, **fields: int) -> Struct:
    return Struct(f"XLA_FFI_{name}", fields, nbytes)


CALL_FRAME = _struct(
    "CallFrame", struct_size=0, extension_start=8, api=16, ctx=24, stage=32, args=40, rets=80, attrs=120
)
ARGS = _struct("Args", size=16, types=24, args=32)
RETS = _struct("Rets", size=16, types=24, rets=32)
ATTRS = _struct("Attrs", size=16, types=24, names=32, attrs=40)
BUFFER = _struct("Buffer", struct_size=0, dtype=16, data=24, rank=32, dims=40)
ARRAY = _struct("Array", dtype=0, size=8, data=16)
METADATA_EXTENSION = _struct("Metadata_Extension", metadata=24)
METADATA = _struct("Metadata", api_version=8, traits=32)
API_VERSION = _struct("Api_Version", major_version=16, minor_version=20)
API = _struct(
    "Api",
    api_version=16,
    XLA_FFI_Error_Create=48,
    XLA_FFI_Error_Destroy=64,
    XLA_FFI_Stream_Get=80,
    XLA_FFI_ThreadPool_Schedule=136,
    XLA_FFI_ThreadPool_NumThreads=144,
)
ERROR_CREATE_ARGS = _struct("Error_Create_Args", nbytes=28, struct_size=0, extension_start=8, message=16, errc=24)
ERROR_DESTROY_ARGS = _struct("Error_Destroy_Args", nbytes=24, struct_size=0, extension_start=8, error=16)
SCHEDULE_ARGS = _struct(
    "ThreadPool_Schedule_Args", nbytes=40, struct_size=0, extension_start=8, ctx=16, task=24, data=32
)
NUM_THREADS_ARGS = _struct(
    "ThreadPool_NumThreads_Args", nbytes=32, struct_size=0, extension_start=8, ctx=16, num_threads=24
)
STREAM_GET_ARGS = _struct("Stream_Get_Args", nbytes=32, struct_size=0, extension_start=8, ctx=16, stream=24)

STRUCTS = (
    *(CALL_FRAME, ARGS, RETS, ATTRS, BUFFER, ARRAY),
    *(METADATA_EXTENSION, METADATA, API_VERSION, API),
    *(ERROR_CREATE_ARGS, ERROR_DESTROY_ARGS, SCHEDULE_ARGS, NUM_THREADS_ARGS, STREAM_GET_ARGS),
)

#: ``XLA_FFI_DataType_*`` by the name of the NumPy (or ml_dtypes) dtype.
DATA_TYPES = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 15,
    "bfloat16": 16,
    "complex128": 18,
}

#: The ``XLA_FFI_Error_Code_*`` that handlers return.
ERROR_CODES = {
    "CANCELLED": 1,
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
}

#: ``XLA_FFI_AttrType``.
ATTR_TYPES = {"array": 1}

#: ``XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE``: XLA may capture the handler's GPU work in a CUDA graph.
COMMAND_BUFFER_COMPATIBLE = 1


@functools.cache
def check_api_version() -> None:
    """Raise `AbiError` if the installed jaxlib has another major version of the FFI."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = re.search(r"#define XLA_FFI_API_MAJOR (\d+)", header.read_text("utf-8")) if header.exists() else None
    # Without headers, XLA compares the versions when a handler is registered.
    if found and int(found[1]) != API_MAJOR:
        raise AbiError(
            f"jaxlib {jax.lib.__version__} has version {found[1]} of the XLA FFI; this xlakernel-core supports "
            f"version {API_MAJOR}. Upgrade xlakernel-core, or install an older jax."
        )
