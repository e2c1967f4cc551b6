"""Locks for code that must not run twice at once."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils

from .frame import I32, POINTER, i64


def new_lock() -> int:
    """Return the address of a new lock; it lives as long as the process, like the code that holds it."""
    allocate = ctypes.pythonapi.PyThread_allocate_lock
    allocate.restype, allocate.argtypes = ctypes.c_void_p, []
    return int(allocate())


process_lock = functools.cache(new_lock)  # the one for code that must run alone in the process


@contextmanager
def held(builder: ir.IRBuilder, address: int) -> Iterator[None]:
    """Emit code that holds a lock around what is emitted inside.

    It is CPython's raw lock: it needs neither the GIL nor a thread state, and waits in the operating system.
    """
    lock = builder.inttoptr(i64(address), POINTER)
    acquire = ir.FunctionType(I32, [POINTER, I32])
    release = ir.FunctionType(ir.VoidType(), [POINTER])
    wait = ir.Constant(I32, 1)
    builder.call(cgutils.get_or_insert_function(builder.module, acquire, "PyThread_acquire_lock"), [lock, wait])
    yield
    builder.call(cgutils.get_or_insert_function(builder.module, release, "PyThread_release_lock"), [lock])
