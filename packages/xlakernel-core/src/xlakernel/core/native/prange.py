"""Exceptions raised inside ``prange``, which Numba drops (numba/numba issue 2811).

A worker that fails leaves its exception behind as a stray error of the thread, and the loop goes on. While a kernel of
ours is compiled, the wrapper around its loop bodies is made to report to `_record` instead: it counts the failures of
each kernel, and the handler compares the count before and after a call. It is for the kernel's own loops; those of
parallel helpers stay as Numba compiles them.

The reporting function is known to LLVM under a symbol, and code on disk refers to it: such code must not get into
Numba's own cache files, where a process without this module would load it and crash.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, event
from numba.core.compiler_lock import global_compiler_lock
from numba.np.ufunc import wrappers

from .frame import POINTER
from .lock import new_lock

_SYMBOL = "xlakernel_record_prange_error"

_counters: dict[bytes, ctypes.c_int64] = {}  # never freed: machine code reads them
_last: dict[bytes, Any] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
def _record(unpacked: int | None, key: bytes) -> None:
    """Remember the exception at address *unpacked*, in Numba's form, as the last one of *key*."""
    _last[key] = ctypes.cast(unpacked, ctypes.py_object).value if unpacked else RuntimeError("unknown error")
    counter(key.decode()).value += 1  # with the GIL held


llvm.add_symbol(_SYMBOL, ctypes.cast(_record, ctypes.c_void_p).value)


def counter(key: str) -> ctypes.c_int64:
    """Return the number of failures recorded for *key*."""
    return _counters.setdefault(key.encode(), ctypes.c_int64(0))


@functools.cache
def lock_of(key: str) -> int:
    """Return the lock under which the code that records for *key* runs: a new failure is then its caller's."""
    return new_lock()


def last_failure(key: bytes) -> Any:
    """Return what was recorded last for *key*."""
    return _last.get(key, RuntimeError("an exception inside prange"))


@contextmanager
def recording(dispatchers: Sequence[Any], key: str) -> Iterator[None]:
    """Let the loops of *dispatchers*, compiled inside this context, report their exceptions under *key*."""
    active: list[Any] = []  # the dispatchers being compiled, innermost last
    original = wrappers._GufuncWrapper.gen_loop_body

    class Compilations(event.Listener):  # type: ignore[misc]  # Numba has no stubs
        def on_start(self, event: Any) -> None:
            active.append(event.data["dispatcher"])

        def on_end(self, event: Any) -> None:
            active.pop()

    def gen_loop_body(self: Any, builder: ir.IRBuilder, python: Any, function: Any, args: Any) -> Any:
        if active and not any(active[-1] is dispatcher for dispatcher in dispatchers):
            return original(self, builder, python, function, args)
        return _gen_recording_body(self, builder, python, function, args, key)

    with global_compiler_lock, event.install_listener("numba:compile", Compilations()):
        wrappers._GufuncWrapper.gen_loop_body = gen_loop_body
        try:
            yield
        finally:
            wrappers._GufuncWrapper.gen_loop_body = original


def _gen_recording_body(wrapper: Any, builder: ir.IRBuilder, python: Any, function: Any, args: Any, key: str) -> Any:
    signature, convention = wrapper.signature, wrapper.context.call_conv
    status, _ = convention.call_function(builder, function, signature.return_type, signature.args, args)
    with builder.if_then(status.is_error, likely=False):
        gil = python.gil_ensure()
        found = cgutils.alloca_once_value(builder, ir.Constant(python.pyobj, None))
        with builder.if_then(status.is_user_exc):
            builder.store(convention.unpack_exception(builder, python, status), found)
        python.err_clear()
        record = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [python.pyobj, POINTER]), _SYMBOL
        )
        exception = builder.load(found)
        builder.call(record, [exception, wrapper.context.insert_const_string(builder.module, key)])
        python.decref(exception)  # Py_DecRef, which takes NULL
        python.gil_release(gil)
    return status.code, status.is_error
