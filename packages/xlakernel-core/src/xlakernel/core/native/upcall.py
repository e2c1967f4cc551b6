"""Python functions that machine code calls, and what becomes of a signal that comes meanwhile.

Python handles a signal in the main thread wherever it begins to run bytecode: Ctrl-C raises there even before the first
statement of such a function, where nothing can catch it. So the function's result is not what it returns but what it
stores at its end. Where nothing is stored the call fails, and the signal is sent again, for the program that made it.
Nor does an exception that the function does not expect leave a result behind.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ..ffi import abi
from . import gate
from .frame import I32, I64, POINTER, create_error, i64
from .machine_code import pointer_to

# Stored where there is no error, and where there is one that could not be made.
_DONE, _FAILED = 1, 2

_INTERRUPTED = "xlakernel: the call was interrupted"
_UNKNOWN = "xlakernel: the call failed, and so did the description of its error, which Python wrote to stderr"


class Upcall:
    """A Python function for machine code to call.

    Args:
      function: returns the address of an ``XLA_FFI_Error``, or None.
      parameters: the ctypes types of its arguments, integers and pointers of 64 bits.

    Attributes:
      address: where machine code finds it, for as long as this object lives.
    """

    def __init__(self, function: Callable[..., int | None], *parameters: Any) -> None:
        def call(result: int, *args: Any) -> None:
            outcome = ctypes.c_int64.from_address(result)
            try:
                outcome.value = function(*args) or _DONE
            except KeyboardInterrupt:
                pass
            except BaseException:
                outcome.value = _FAILED
                raise

        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *parameters)(call)
        self.address: int = ctypes.cast(self._call, ctypes.c_void_p).value or 0


def emit_upcall(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any, *, fixed: bool = False) -> Any:
    """Emit a call inside the gate; return the XLA_FFI_Error, or null.

    Args:
      builder: where to emit. If the gate is closed, the function that is emitted returns an error.
      function: the address of an `Upcall`, as a number or as an LLVM value.
      args: its arguments, as LLVM values.
      api: the table of XLA's functions.
      fixed: see `gate.enter`.
    """
    with gate.entered(builder, api, fixed=fixed):
        return emit_upcall_inside(builder, function, args, api)


def emit_upcall_inside(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any) -> Any:
    """Do what `emit_upcall` does, where the gate has been entered."""
    with builder.goto_entry_block():
        result = builder.alloca(I64)
    builder.store(i64(0), result)
    pointer = pointer_to(builder, function) if isinstance(function, int) else function
    kind = ir.FunctionType(ir.VoidType(), [POINTER, *(argument.type for argument in args)]).as_pointer()
    builder.call(builder.bitcast(pointer, kind), [builder.bitcast(result, POINTER), *args])
    found = builder.load(result)
    error = cgutils.alloca_once_value(builder, builder.inttoptr(found, POINTER))
    with builder.if_then(builder.icmp_signed("==", found, i64(_DONE))):
        builder.store(ir.Constant(POINTER, None), error)
    with builder.if_then(builder.icmp_signed("==", found, i64(_FAILED)), likely=False):
        builder.store(_error(builder, api, _UNKNOWN, "INTERNAL"), error)
    with builder.if_then(builder.icmp_signed("==", found, i64(0)), likely=False):
        # Ctrl-C comes again in the main thread, once that runs Python; this needs no interpreter.
        send = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "PyErr_SetInterrupt")
        builder.call(send, [])
        builder.store(_error(builder, api, _INTERRUPTED, "CANCELLED"), error)
    return builder.load(error)


def _error(builder: ir.IRBuilder, api: Any, message: str, code: str) -> Any:
    text = cgutils.global_constant(builder, "xlakernel_upcall", cgutils.make_bytearray(f"{message}\0".encode()))
    return create_error(builder, api, builder.bitcast(text, POINTER), ir.Constant(I32, abi.ERROR_CODES[code]))
