"""Access to the structs of the XLA FFI in LLVM IR, by the field names of `ffi.abi`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ...ffi import abi

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = I8.as_pointer()
VOID = ir.VoidType()
NULL = ir.Constant(POINTER, None)


def i64(value: int) -> ir.Constant:
    """Return a 64-bit constant."""
    return ir.Constant(I64, value)


def field(builder: ir.IRBuilder, pointer: Any, struct: abi.Struct, name: str) -> Any:
    """Return the address of a field, or of a struct that is embedded there."""
    return builder.gep(pointer, [i64(struct[name])])


def load(builder: ir.IRBuilder, pointer: Any, struct: abi.Struct, name: str, kind: Any = POINTER) -> Any:
    """Load a field of type *kind*."""
    return builder.load(builder.bitcast(field(builder, pointer, struct, name), kind.as_pointer()))


def store(builder: ir.IRBuilder, pointer: Any, struct: abi.Struct, name: str, value: Any) -> None:
    """Store *value* into a field."""
    builder.store(value, builder.bitcast(field(builder, pointer, struct, name), value.type.as_pointer()))


def element(builder: ir.IRBuilder, array: Any, index: int, kind: Any = POINTER) -> Any:
    """Load element *index* of a C array of *kind*."""
    typed = builder.bitcast(array, kind.as_pointer())
    return builder.load(builder.gep(typed, [i64(index)]))


def address_of_word(builder: ir.IRBuilder, pointer: Any, struct: abi.Struct, name: str) -> Any:
    """Return the address of a 64-bit field, for atomic operations."""
    return builder.bitcast(field(builder, pointer, struct, name), I64.as_pointer())


def call_symbol(builder: ir.IRBuilder, name: str, returns: ir.Type, *arguments: Any) -> Any:
    """Call a C function of the process, such as one of libc or of Python's C API."""
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


class _ErrorCreateArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("errc", ctypes.c_int),
    ]


class Buffer:
    """An ``XLA_FFI_Buffer``: one input or output of a call."""

    def __init__(self, builder: ir.IRBuilder, pointer: Any) -> None:
        self.dtype = load(builder, pointer, abi.BUFFER, "dtype", I32)
        self.rank = load(builder, pointer, abi.BUFFER, "rank", I64)
        self.data = load(builder, pointer, abi.BUFFER, "data")
        self.dims = load(builder, pointer, abi.BUFFER, "dims", I64.as_pointer())


class ArrayAttribute:
    """The first attribute of a call, read as an ``XLA_FFI_Array``; *kind* is XLA's code for the actual kind."""

    def __init__(self, builder: ir.IRBuilder, attributes: Any) -> None:
        self.kind = element(builder, load(builder, attributes, abi.ATTRS, "types"), 0, I32)
        array = element(builder, load(builder, attributes, abi.ATTRS, "attrs"), 0)
        self.dtype = load(builder, array, abi.ARRAY, "dtype", I32)
        self.size = load(builder, array, abi.ARRAY, "size", I64)
        self.data = load(builder, array, abi.ARRAY, "data")


class Frame:
    """An ``XLA_FFI_CallFrame``: the argument of a handler."""

    def __init__(self, builder: ir.IRBuilder, pointer: Any) -> None:
        self.builder = builder
        self.pointer = pointer
        self.api = load(builder, pointer, abi.CALL_FRAME, "api")

    def counts(self) -> tuple[Any, Any, Any]:
        """Return the numbers of inputs, outputs and attributes."""
        parts = (("args", abi.ARGS), ("rets", abi.RETS), ("attrs", abi.ATTRS))
        inputs, outputs, attributes = (
            load(self.builder, self._part(part), struct, "size", I64) for part, struct in parts
        )
        return inputs, outputs, attributes

    def input(self, index: int) -> Buffer:
        """Return input buffer *index*."""
        return self._buffer("args", abi.ARGS, index)

    def output(self, index: int) -> Buffer:
        """Return output buffer *index*."""
        return self._buffer("rets", abi.RETS, index)

    def attribute(self) -> ArrayAttribute:
        """Return the first attribute."""
        return ArrayAttribute(self.builder, self._part("attrs"))

    def _part(self, part: str) -> Any:
        return field(self.builder, self.pointer, abi.CALL_FRAME, part)

    def _buffer(self, part: str, struct: abi.Struct, index: int) -> Buffer:
        pointers = load(self.builder, self._part(part), struct, part)
        return Buffer(self.builder, element(self.builder, pointers, index))


def call_api(
    builder: ir.IRBuilder, api: Any, function: str, struct: abi.Struct, returns: Any = POINTER, **fields: Any
) -> Any:
    """Call a function of XLA's API with a struct of arguments. Most functions of the API return an error, or null."""
    return _call_api(builder, api, function, _arguments(builder, struct, fields), returns)


def _arguments(builder: ir.IRBuilder, struct: abi.Struct, fields: Mapping[str, Any]) -> Any:
    assert struct.nbytes is not None
    with builder.goto_entry_block():
        arguments = builder.bitcast(builder.alloca(ir.ArrayType(I64, -(-struct.nbytes // 8))), POINTER)
    store(builder, arguments, struct, "struct_size", i64(struct.nbytes))
    store(builder, arguments, struct, "extension_start", NULL)
    for name, value in fields.items():
        store(builder, arguments, struct, name, value)
    return arguments


def _call_api(builder: ir.IRBuilder, api: Any, function: str, arguments: Any, returns: Any) -> Any:
    kind = ir.FunctionType(returns, [POINTER]).as_pointer()
    return builder.call(load(builder, api, abi.API, f"XLA_FFI_{function}", kind), [arguments])


def get_stream(builder: ir.IRBuilder, api: Any, context: Any) -> tuple[Any, Any]:
    """Return an ``XLA_FFI_Error`` or null, and the CUDA stream of the call."""
    arguments = _arguments(builder, abi.STREAM_GET_ARGS, {"ctx": context})
    error = _call_api(builder, api, "Stream_Get", arguments, POINTER)
    return error, load(builder, arguments, abi.STREAM_GET_ARGS, "stream")


def answer_handshake(builder: ir.IRBuilder, pointer: Any, extension: Any, traits: Any) -> None:
    """Emit the answer to XLA's query of the API version: the major version of `abi`, the minor one of the runtime.

    A runtime that does not pass its API table with the query (jaxlib before 0.8) gets the oldest minor version, which
    every runtime accepts.
    """
    metadata = load(builder, extension, abi.METADATA_EXTENSION, "metadata")
    version = builder.gep(metadata, [i64(abi.METADATA["api_version"])])
    minor = cgutils.alloca_once_value(builder, ir.Constant(I32, abi.OLDEST_API_MINOR))
    api = load(builder, pointer, abi.CALL_FRAME, "api")
    with builder.if_then(cgutils.is_not_null(builder, api)):
        runtime = builder.gep(api, [i64(abi.API["api_version"])])
        builder.store(load(builder, runtime, abi.API_VERSION, "minor_version", I32), minor)
    store(builder, version, abi.API_VERSION, "major_version", ir.Constant(I32, abi.API_MAJOR))
    store(builder, version, abi.API_VERSION, "minor_version", builder.load(minor))
    store(builder, metadata, abi.METADATA, "traits", traits)
    builder.ret(NULL)


def create_error(builder: ir.IRBuilder, api: Any, message: Any, code: Any) -> Any:
    """Return a new ``XLA_FFI_Error``; XLA copies *message* and owns the result."""
    return call_api(builder, api, "Error_Create", abi.ERROR_CREATE_ARGS, message=message, errc=code)


def new_error(api: int, message: str, code: int) -> int | None:
    """Create an ``XLA_FFI_Error`` with XLA's table of functions at address *api*; return its address. XLA owns it."""
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorCreateArgs))
    address = ctypes.c_void_p.from_address(api + abi.API["XLA_FFI_Error_Create"]).value
    assert address is not None
    arguments = _ErrorCreateArgs(abi.ERROR_CREATE_ARGS.nbytes, None, message.encode("utf-8", "replace"), code)
    return create(address)(ctypes.byref(arguments))  # type: ignore[no-any-return]


def destroy_error(builder: ir.IRBuilder, api: Any, error: Any) -> None:
    """Free an ``XLA_FFI_Error`` that is not returned to XLA."""
    call_api(builder, api, "Error_Destroy", abi.ERROR_DESTROY_ARGS, VOID, error=error)
