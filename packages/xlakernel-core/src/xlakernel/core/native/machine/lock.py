"""Locks for code that must not run twice at once: CPython's raw locks, which need no GIL and no thread state."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from .frame import I32, POINTER, VOID, call_symbol
from .machine_code import pointer_to


def new_lock() -> int:
    """Return the address of a new lock, which lives as long as the process."""
    allocate = ctypes.pythonapi.PyThread_allocate_lock
    allocate.restype, allocate.argtypes = ctypes.c_void_p, []
    return int(allocate())


@contextmanager
def held(builder: ir.IRBuilder, address: int) -> Iterator[None]:
    """Hold the lock around the code that is emitted in this context."""
    lock = pointer_to(builder, address)
    acquire(builder, lock)
    yield
    release(builder, lock)


def allocate(builder: ir.IRBuilder) -> Any:
    """Emit the allocation of a lock; return the lock, or null."""
    return call_symbol(builder, "PyThread_allocate_lock", POINTER)


def acquire(builder: ir.IRBuilder, lock: Any) -> None:
    """Emit a blocking wait for the lock."""
    call_symbol(builder, "PyThread_acquire_lock", I32, lock, ir.Constant(I32, 1))


def release(builder: ir.IRBuilder, lock: Any) -> None:
    """Emit the release of the lock. Any thread may release it."""
    call_symbol(builder, "PyThread_release_lock", VOID, lock)


def free(builder: ir.IRBuilder, lock: Any) -> None:
    """Emit the deallocation of a lock that no thread holds."""
    call_symbol(builder, "PyThread_free_lock", VOID, lock)
