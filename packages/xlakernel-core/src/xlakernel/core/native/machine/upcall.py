"""Calls of Python functions from machine code, and the signals that arrive during such a call.

Python runs signal handlers in the main thread, at the start of any function. A handler can therefore raise before the
first statement of the function that machine code calls, where no ``try`` catches the exception. A call that raises
fails with an error, which names the exception. But KeyboardInterrupt is raised again in the main thread, as soon as it
runs Python; and so are SystemExit, and others that are not an `Exception`, if the main thread called the function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ...ffi import abi
from ...interrupts import raised_in_calls
from . import gate
from .frame import I32, I64, NULL, POINTER, VOID, call_symbol, create_error, new_error
from .machine_code import pointer_to

#: A function for machine code to call. Arguments are integers of 64 bits, among them addresses. The result is the
#: address of an ``XLA_FFI_Error``, or None.
Upcall = Callable[..., "int | None"]

_INTERRUPTED = "xlakernel: the call was interrupted"
_FAILED = (
    "xlakernel: the call ended because a signal handler, or a call of Python, raised an exception; Python wrote the "
    "exception to stderr"
)


def emit_upcall(builder: ir.IRBuilder, function: Upcall | ir.Value, args: list[Any], api: Any) -> Any:
    """Emit a call of a Python function inside the `gate`; return the ``XLA_FFI_Error``, or null.

    Args:
      builder: where to emit. The emitted function returns an error if the gate is closed.
      function: an `Upcall`, which the caller keeps alive, or its address (its `id`) as an LLVM value.
      args: the function's arguments, as LLVM values: pointers, and integers of 64 bits.
      api: the table of XLA's functions.
    """
    with gate.entered(builder, api):
        return emit_upcall_inside(builder, function, args, api)


def emit_upcall_inside(builder: ir.IRBuilder, function: Upcall | ir.Value, args: list[Any], api: Any) -> Any:
    """Emit the call of `emit_upcall` in code that is inside the gate."""
    error = cgutils.alloca_once_value(builder, NULL)
    pointer = function if isinstance(function, ir.Value) else pointer_to(builder, id(function))
    numbers = [argument if argument.type == I64 else builder.ptrtoint(argument, I64) for argument in args]
    gil = call_symbol(builder, "PyGILState_Ensure", I32)
    result = _call(builder, pointer, "L" * len(numbers), *numbers)
    with builder.if_else(cgutils.is_null(builder, result), likely=False) as (raised, returned):
        with raised:
            builder.store(_emit_raised(builder, api), error)
        with returned:
            with builder.if_then(builder.icmp_unsigned("!=", result, pointer_to(builder, id(None)))):
                builder.store(call_symbol(builder, "PyLong_AsVoidPtr", POINTER, result), error)
            call_symbol(builder, "Py_DecRef", VOID, result)
    call_symbol(builder, "PyGILState_Release", VOID, gil)
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
            builder.store(_emit_raised(builder, api), error)
        call_symbol(builder, "PyGILState_Release", VOID, gil)
    return builder.load(error)


def emit_exception_set(builder: ir.IRBuilder) -> Any:
    """Emit the end of a Python exception that is set; return the exception, a new reference."""
    kind, value, traceback = (cgutils.alloca_once(builder, POINTER) for _ in range(3))
    call_symbol(builder, "PyErr_Fetch", VOID, kind, value, traceback)
    call_symbol(builder, "PyErr_NormalizeException", VOID, kind, value, traceback)
    exception, frames = builder.load(value), builder.load(traceback)
    with builder.if_then(cgutils.is_not_null(builder, frames)):
        call_symbol(builder, "PyException_SetTraceback", I32, exception, frames)
        call_symbol(builder, "Py_DecRef", VOID, frames)
    call_symbol(builder, "Py_DecRef", VOID, builder.load(kind))
    return exception


def _emit_raised(builder: ir.IRBuilder, api: Any) -> Any:
    """Emit the handling of the exception that is set; return the call's ``XLA_FFI_Error``."""
    error = cgutils.alloca_once_value(builder, NULL)
    exception = emit_exception_set(builder)
    named = _call(builder, pointer_to(builder, id(_name)), "LO", builder.ptrtoint(api, I64), exception)
    call_symbol(builder, "Py_DecRef", VOID, exception)
    with builder.if_else(cgutils.is_null(builder, named)) as (raised, returned):
        with raised:
            matches = call_symbol(builder, "PyErr_ExceptionMatches", I32, pointer_to(builder, id(Exception)))
            with builder.if_else(cgutils.is_null(builder, matches)) as (interrupted, failed):
                with interrupted:
                    _emit_raise_in_main_thread(builder)
                    builder.store(_error(builder, api, _INTERRUPTED), error)
                with failed:
                    call_symbol(builder, "PyErr_WriteUnraisable", VOID, NULL)
                    builder.store(_error(builder, api, _FAILED), error)
        with returned:
            builder.store(call_symbol(builder, "PyLong_AsVoidPtr", POINTER, named), error)
            call_symbol(builder, "Py_DecRef", VOID, named)
    return builder.load(error)


def _name(api: int, exception: BaseException) -> int | None:
    """Return a new ``XLA_FFI_Error`` that names an exception of a signal handler, or of a call of Python.

    Raises:
      BaseException: *exception*, if the main thread is to raise it. In another thread, only KeyboardInterrupt is: as in
        Python, SystemExit does not end the process there.
    """
    is_main = threading.get_ident() == threading.main_thread().ident
    if isinstance(exception, KeyboardInterrupt) or (is_main and not isinstance(exception, Exception)):
        raise exception
    message = f"{type(exception).__name__}: {exception} (raised by a signal handler, or by a call of Python)"
    return new_error(api, message.replace("\0", "\\0"), abi.ERROR_CODES["CANCELLED"])


def _call(builder: ir.IRBuilder, function: Any, kinds: str, *args: Any) -> Any:
    """Emit a call of a Python function; *kinds* are the formats of its arguments for ``PyObject_CallFunction``."""
    kind = ir.FunctionType(POINTER, [POINTER, POINTER], var_arg=True)
    call = cgutils.get_or_insert_function(builder.module, kind, "PyObject_CallFunction")
    return builder.call(call, [function, _text(builder, kinds), *args])


def _emit_raise_in_main_thread(builder: ir.IRBuilder) -> None:
    """Emit the end of the exception that is set; the main thread raises it again."""
    exception, raised = emit_exception_set(builder), pointer_to(builder, id(raised_in_calls))
    call_symbol(builder, "PyList_Append", I32, raised, exception)
    call_symbol(builder, "Py_DecRef", VOID, exception)
    truth = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, [POINTER]), "PyObject_IsTrue")
    call_symbol(builder, "Py_AddPendingCall", I32, truth, raised)


def _error(builder: ir.IRBuilder, api: Any, message: str) -> Any:
    return create_error(builder, api, _text(builder, message), ir.Constant(I32, abi.ERROR_CODES["CANCELLED"]))


def _text(builder: ir.IRBuilder, text: str) -> Any:
    constant = cgutils.global_constant(builder, "xlakernel_upcall", cgutils.make_bytearray(f"{text}\0".encode()))
    return builder.bitcast(constant, POINTER)
