"""Python functions that machine code calls, and the signals that arrive during such a call.

Python handles a signal in the main thread wherever it begins to run bytecode: Ctrl-C raises there even before the first
statement of such a function, where nothing can catch it. So the function's result is not what it returns but what it
stores at its end. Where nothing is stored the call fails, and the signal is sent again, for the program that made it.
An unexpected exception leaves no result either.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ...ffi import abi
from . import gate
from .frame import I32, I64, POINTER, create_error, i64
from .machine_code import pointer_to

_VOID = ir.VoidType()

# Stored where there is no error, and where there is one that could not be made.
_DONE, _FAILED = 1, 2

_INTERRUPTED = "xlakernel: the call was interrupted"
_HANDLER = "xlakernel: a signal's handler raised an exception before the call, which Python wrote to stderr"
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
            except BaseException as error:
                if not (isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()):
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
        return emit_upcall_inside(builder, function, args, api, fixed=fixed)


def emit_upcall_inside(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any, *, fixed: bool = False) -> Any:
    """Do what `emit_upcall` does, where the gate has been entered."""
    with builder.goto_entry_block():
        result = builder.alloca(I64)
    error = cgutils.alloca_once_value(builder, emit_signals(builder, api, fixed=fixed))
    with builder.if_then(cgutils.is_null(builder, builder.load(error)), likely=True):
        builder.store(_emit_call(builder, function, args, api, result), error)
    return builder.load(error)


def emit_signals(builder: ir.IRBuilder, api: Any, *, fixed: bool = False) -> Any:
    """Emit the handling of pending signals, inside the gate; return the XLA_FFI_Error of what raised, or null.

    Only the main thread handles signals; a thread without a Python state, one of XLA's, does not take the GIL for it.
    """
    error = cgutils.alloca_once_value(builder, ir.Constant(POINTER, None))
    state = _python(builder, "PyGILState_GetThisThreadState", POINTER)
    with builder.if_then(cgutils.is_not_null(builder, state)):
        gil = _python(builder, "PyGILState_Ensure", I32)
        raised = builder.icmp_signed("!=", _python(builder, "PyErr_CheckSignals", I32), ir.Constant(I32, 0))
        with builder.if_then(raised, likely=False):
            address = id(KeyboardInterrupt)
            kind = builder.inttoptr(i64(address), POINTER) if fixed else pointer_to(builder, address)
            matches = _python(builder, "PyErr_ExceptionMatches", I32, kind)
            with builder.if_else(builder.icmp_signed("!=", matches, ir.Constant(I32, 0))) as (interrupt, other):
                with interrupt:
                    _python(builder, "PyErr_Clear", _VOID)
                    builder.store(_emit_interrupt(builder, api), error)
                with other:
                    _python(builder, "PyErr_WriteUnraisable", _VOID, ir.Constant(POINTER, None))
                    builder.store(_error(builder, api, _HANDLER, "CANCELLED"), error)
        _python(builder, "PyGILState_Release", _VOID, gil)
    return builder.load(error)


def _python(builder: ir.IRBuilder, name: str, returns: Any, *args: Any) -> Any:
    kind = ir.FunctionType(returns, [argument.type for argument in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _emit_call(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any, result: Any) -> Any:
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
        builder.store(_emit_interrupt(builder, api), error)
    return builder.load(error)


def _emit_interrupt(builder: ir.IRBuilder, api: Any) -> Any:
    """Emit what sends Ctrl-C again, to the main thread, once that runs Python; return the call's XLA_FFI_Error."""
    _python(builder, "PyErr_SetInterrupt", _VOID)
    return _error(builder, api, _INTERRUPTED, "CANCELLED")


def _error(builder: ir.IRBuilder, api: Any, message: str, code: str) -> Any:
    text = cgutils.global_constant(builder, "xlakernel_upcall", cgutils.make_bytearray(f"{message}\0".encode()))
    return create_error(builder, api, builder.bitcast(text, POINTER), ir.Constant(I32, abi.ERROR_CODES[code]))
