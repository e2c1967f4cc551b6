"""Locks for code that must not run twice at once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .frame import I32, POINTER
from .machine_code import pointer_to


def new_lock() -> int:
    """Return the address of a new lock; it lives as long as the process, like the code that holds it."""
    allocate = ctypes.pythonapi.PyThread_allocate_lock
    allocate.restype, allocate.argtypes = ctypes.c_void_p, []
    return int(allocate())


@contextmanager
def held(builder: ir.IRBuilder, address: int) -> Iterator[None]:
    """Emit code that holds a lock around what is emitted inside.

    It is CPython's raw lock: it needs neither the GIL nor a thread state, and waits in the operating system.
    """
    lock = pointer_to(builder, address)
    acquire(builder, lock)
    yield
    release(builder, lock)


def allocate(builder: ir.IRBuilder) -> Any:
    """Return a new lock, or null."""
    return _call(builder, "allocate_lock", POINTER)


def acquire(builder: ir.IRBuilder, lock: Any) -> None:
    """Wait until the lock is free, and take it."""
    _call(builder, "acquire_lock", I32, lock, ir.Constant(I32, 1))


def release(builder: ir.IRBuilder, lock: Any) -> None:
    """Release the lock, in whatever thread."""
    _call(builder, "release_lock", ir.VoidType(), lock)


def free(builder: ir.IRBuilder, lock: Any) -> None:
    """Free a lock that nobody holds."""
    _call(builder, "free_lock", ir.VoidType(), lock)


def _call(builder: ir.IRBuilder, name: str, returns: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"PyThread_{name}"), arguments)
