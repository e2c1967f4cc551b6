"""Conversion of a kernel's exception to an XLA error with its type, its message and the line that raised it.

A handler enters the interpreter for this conversion only if its kernel has failed.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ...ffi import abi
from ...interrupts import is_raised_by_handler
from . import gate
from .frame import I32, NULL, POINTER, call_symbol, create_error, new_error
from .upcall import emit_exception_set, emit_upcall_inside

_CODES = (
    (NotImplementedError, "UNIMPLEMENTED"),
    (MemoryError, "RESOURCE_EXHAUSTED"),
    (KeyError, "NOT_FOUND"),
    ((IndexError, OverflowError), "OUT_OF_RANGE"),
    (AssertionError, "FAILED_PRECONDITION"),
    ((ValueError, TypeError, ArithmeticError), "INVALID_ARGUMENT"),
)
# The end of CPython's SystemError for a C function that returned a result while an exception was set. That exception is
# the cause of the SystemError.
_IGNORED = "returned a result with an exception set"


class CallError(Exception):
    """An error with a complete message and the name of an XLA error code. `describe` passes both on unchanged."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = abi.ERROR_CODES[code]


def describe(
    exception: BaseException, kernel: str, place: str, location: tuple[str, str, int] | None
) -> tuple[str, int]:
    """Return the message and the XLA error code for *exception*.

    Args:
      exception: what the kernel raised.
      kernel: the kernel's name.
      place: file and line of the kernel's definition.
      location: function, file and line that raised; None if Numba does not record them, as for an index out of bounds.
        The function may be one of Numba's own.
    """
    if isinstance(exception, CallError):
        return _without_nul(str(exception)), exception.code
    code = next((name for kinds, name in _CODES if isinstance(exception, kinds)), "INTERNAL")
    who = f"kernel {kernel!r}"
    if is_raised_by_handler(exception):
        code, who = "CANCELLED", f"a signal handler in {who}"
    if not location or location[1] != place.rpartition(":")[0]:
        who += f" of {place}"
    if location:
        who += f", {location[1]}:{location[2]} in {location[0]}"
    text = ": ".join(filter(None, [type(exception).__name__, _text_of(exception)]))
    return _without_nul(f"{text} (raised by {who})"), abi.ERROR_CODES[code]


def _text_of(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception as error:  # noqa: BLE001  # from a user's class
        return f"its text cannot be read, because str() raises {type(error).__name__}"


def _without_nul(message: str) -> str:
    return message.replace("\0", "\\0")  # XLA reads up to the first NUL


def report(api: int, unpacked: int, kernel: int, place: int) -> int | None:
    """Return a new ``XLA_FFI_Error`` for a kernel's exception.

    Args:
      api: the address of XLA's table of functions.
      unpacked: the address of an exception, or of a tuple (class, arguments, location) as Numba's calling convention
        makes it.
      kernel: the address of the kernel's name, which ends with NUL.
      place: the address of the name of its place in the source.

    Raises:
      BaseException: the exception, if it is not an `Exception`: KeyboardInterrupt, for example, because of Ctrl-C while
        the kernel ran Python.
    """
    exception = ctypes.cast(unpacked, ctypes.py_object).value
    while isinstance(exception, SystemError) and _text_of(exception).endswith(_IGNORED) and exception.__cause__:
        exception = exception.__cause__
    location = None
    who, where = (ctypes.string_at(text).decode() for text in (kernel, place))
    try:
        if not isinstance(exception, BaseException):
            kind, arguments, location = exception
            exception = kind(*(arguments or ()))
        if not isinstance(exception, Exception):
            raise exception
        message, code = describe(exception, who, where, location)
    except Exception as error:  # noqa: BLE001  # becomes the error of XLA's program
        message = f"kernel {who} failed, and so did reading its exception: {error!r}"
        code = abi.ERROR_CODES["INTERNAL"]
    return new_error(api, message, code)


def emit_error(context: Any, builder: ir.IRBuilder, status: Any, api: Any, kernel: str, place: str) -> Any:
    """Emit the path after a failed kernel; return the ``XLA_FFI_Error``."""
    with gate.entered(builder, api):
        return _emit_error_inside(context, builder, status, api, kernel, place)


def emit_exception_is_set(context: Any, builder: ir.IRBuilder) -> Any:
    """Emit a test, inside the gate, for a pending Python exception: ``print`` in a kernel does not report its own.

    A thread without a Python state has no exception.
    """
    python = context.get_python_api(builder)
    found = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(1), 0))
    state = call_symbol(builder, "PyGILState_GetThisThreadState", POINTER)
    with builder.if_then(cgutils.is_not_null(builder, state)):
        gil = python.gil_ensure()
        builder.store(cgutils.is_not_null(builder, python.err_occurred()), found)
        python.gil_release(gil)
    return builder.load(found)


def emit_exception(context: Any, builder: ir.IRBuilder, python: Any, status: Any) -> Any:
    """Emit the unpacking of a failed kernel's exception, with the GIL held; return a new reference, or null."""
    null = ir.Constant(python.pyobj, None)
    exception = cgutils.alloca_once_value(builder, null)
    raised = builder.and_(status.is_user_exc, cgutils.is_null(builder, python.err_occurred()))
    with builder.if_then(raised):
        builder.store(context.call_conv.unpack_exception(builder, python, status), exception)
    # Otherwise the exception was raised in Python: in an objmode block, by Ctrl-C in ``print``, or by the unpacking.
    with builder.if_then(cgutils.is_null(builder, builder.load(exception))):
        builder.store(emit_exception_set(builder), exception)
    return builder.load(exception)


def _emit_error_inside(context: Any, builder: ir.IRBuilder, status: Any, api: Any, kernel: str, place: str) -> Any:
    python = context.get_python_api(builder)
    gil = python.gil_ensure()
    error = cgutils.alloca_once_value(builder, NULL)
    found = emit_exception(context, builder, python, status)
    with builder.if_then(cgutils.is_not_null(builder, found)):
        texts = [context.insert_const_string(builder.module, text) for text in (kernel, place)]
        args = [api, builder.bitcast(found, POINTER), *texts]
        builder.store(emit_upcall_inside(builder, report, args, api), error)
        python.decref(found)
    with builder.if_then(cgutils.is_null(builder, builder.load(error)), likely=False):
        python.err_clear()
        text = context.insert_const_string(builder.module, f"kernel {kernel!r} of {place} failed without an exception")
        builder.store(create_error(builder, api, text, ir.Constant(I32, abi.ERROR_CODES["INTERNAL"])), error)
    python.gil_release(gil)
    return builder.load(error)
