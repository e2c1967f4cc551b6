"""Python functions that machine code calls, and the signals that arrive during such a call.

Python runs signal handlers in the main thread at the start of any bytecode. Ctrl-C can therefore raise before the first
statement of an upcall, where no ``try`` catches it. For this reason an upcall stores its result in memory at its end
instead of returning it. If nothing is stored, the call fails with an error, and the signal is raised again for the
program that made the call. Python prints any other exception, and the call fails with an error that says so.
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
from .frame import I32, I64, NULL, POINTER, VOID, call_symbol, create_error, i64
from .machine_code import pointer_to

# Results besides the address of an error: no error, and an error that could not be created.
_DONE, _FAILED = 1, 2

_INTERRUPTED = "xlakernel: the call was interrupted"
_HANDLER = "xlakernel: a signal handler raised an exception before the call; Python wrote the exception to stderr"
_UNKNOWN = "xlakernel: the call failed, and so did the description of its error, which Python wrote to stderr"


class Upcall:
    """A Python function for machine code to call.

    Args:
      function: returns the address of an ``XLA_FFI_Error``, or None.
      parameters: the ctypes types of the function's arguments: integers and pointers of 64 bits.

    Attributes:
      address: the address of the C function, valid as long as this object lives.
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


def emit_upcall(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any) -> Any:
    """Emit a call of a Python function inside the `gate`; return the ``XLA_FFI_Error``, or null.

    Args:
      builder: where to emit. The emitted function returns an error if the gate is closed.
      function: the address of an `Upcall`, as a number or an LLVM value.
      args: the function's arguments, as LLVM values.
      api: the table of XLA's functions.
    """
    with gate.entered(builder, api):
        return emit_upcall_inside(builder, function, args, api)


def emit_upcall_inside(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any) -> Any:
    """Emit the call of `emit_upcall` in code that is inside the gate."""
    with builder.goto_entry_block():
        result = builder.alloca(I64)
    error = cgutils.alloca_once_value(builder, emit_signals(builder, api))
    with builder.if_then(cgutils.is_null(builder, builder.load(error)), likely=True):
        builder.store(_emit_call(builder, function, args, api, result), error)
    return builder.load(error)


def emit_signals(builder: ir.IRBuilder, api: Any) -> Any:
    """Emit the handling of pending signals, inside the gate; return an ``XLA_FFI_Error`` if a handler raised, or null.

    Only the main thread handles signals. A thread without a Python state, such as XLA's, does not take the GIL here.
    """
    error = cgutils.alloca_once_value(builder, NULL)
    state = call_symbol(builder, "PyGILState_GetThisThreadState", POINTER)
    with builder.if_then(cgutils.is_not_null(builder, state)):
        gil = call_symbol(builder, "PyGILState_Ensure", I32)
        raised = cgutils.is_not_null(builder, call_symbol(builder, "PyErr_CheckSignals", I32))
        with builder.if_then(raised, likely=False):
            interrupt = pointer_to(builder, id(KeyboardInterrupt))
            matches = call_symbol(builder, "PyErr_ExceptionMatches", I32, interrupt)
            with builder.if_else(cgutils.is_not_null(builder, matches)) as (interrupted, other):
                with interrupted:
                    call_symbol(builder, "PyErr_Clear", VOID)
                    builder.store(_emit_interrupt(builder, api), error)
                with other:
                    call_symbol(builder, "PyErr_WriteUnraisable", VOID, NULL)
                    builder.store(_error(builder, api, _HANDLER, "CANCELLED"), error)
        call_symbol(builder, "PyGILState_Release", VOID, gil)
    return builder.load(error)


def _emit_call(builder: ir.IRBuilder, function: Any, args: list[Any], api: Any, result: Any) -> Any:
    builder.store(i64(0), result)
    pointer = pointer_to(builder, function) if isinstance(function, int) else function
    kind = ir.FunctionType(VOID, [POINTER, *(argument.type for argument in args)]).as_pointer()
    builder.call(builder.bitcast(pointer, kind), [builder.bitcast(result, POINTER), *args])
    found = builder.load(result)
    error = cgutils.alloca_once_value(builder, builder.inttoptr(found, POINTER))
    with builder.if_then(builder.icmp_signed("==", found, i64(_DONE))):
        builder.store(NULL, error)
    with builder.if_then(builder.icmp_signed("==", found, i64(_FAILED)), likely=False):
        builder.store(_error(builder, api, _UNKNOWN, "INTERNAL"), error)
    with builder.if_then(builder.icmp_signed("==", found, i64(0)), likely=False):
        builder.store(_emit_interrupt(builder, api), error)
    return builder.load(error)


def _emit_interrupt(builder: ir.IRBuilder, api: Any) -> Any:
    """Emit a new Ctrl-C, which the main thread raises once it runs Python; return the call's ``XLA_FFI_Error``."""
    call_symbol(builder, "PyErr_SetInterrupt", VOID)
    return _error(builder, api, _INTERRUPTED, "CANCELLED")


def _error(builder: ir.IRBuilder, api: Any, message: str, code: str) -> Any:
    text = cgutils.global_constant(builder, "xlakernel_upcall", cgutils.make_bytearray(f"{message}\0".encode()))
    return create_error(builder, api, builder.bitcast(text, POINTER), ir.Constant(I32, abi.ERROR_CODES[code]))
