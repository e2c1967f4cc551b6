"""Locks that Warp's own functions hold in every thread, and attributes of Warp that a thread has its own values of.

Warp expects one thread. XLA calls functions that launch kernels from several, while others compile. These functions are
the user's and may wait for anything, so that no lock is held around them. What they do with Warp holds one instead, for
as long as Warp works at it:

* `_inside.lock`, where Warp changes what it knows of kernels and modules;
* another one, where Warp runs a kernel on the CPU whose module keeps its tiles in static memory. Machine code that runs
  such a kernel holds the same lock, which needs no interpreter.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import warp

from xlakernel.core.backend.native import new_lock

from . import _inside
from ._code_hash import complete

_own = threading.local()


@functools.cache
def lock() -> int:
    """Return the address of the lock that machine code holds."""
    guard()
    return new_lock()


@functools.cache
def guard() -> bool:
    """Have Warp's functions hold the locks from now on, in every thread; return whether they could be found."""
    with _inside.lock:
        try:
            _inside.wrap(_changing, _running, complete)
        except _inside.Unrecognised:
            return False
        return True


@contextmanager
def launching() -> Iterator[None]:
    """Let this thread launch on the CPU unless told otherwise, and record on no tape but its own."""
    if guard():
        with _inside.own_values(default_device=warp.get_device("cpu"), tape=None):
            yield
        return
    # A Warp that is not known: nothing else may launch or compile meanwhile, also where the function waits for that.
    with _inside.lock, _held(), warp.ScopedDevice("cpu"):
        yield


def _changing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(*args: Any, **options: Any) -> Any:
        with _inside.lock:
            return function(*args, **options)

    return locked


def _running(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(kernel: Any, *args: Any, **options: Any) -> Any:
        with _held() if _inside.may_share_memory(kernel) else nullcontext():
            return function(kernel, *args, **options)

    return locked


@contextmanager
def _held() -> Iterator[None]:
    """Hold the lock of machine code in this thread, which may hold it already."""
    depth = getattr(_own, "depth", 0)
    if not depth:
        _python("PyThread_acquire_lock", ctypes.c_int, ctypes.c_int)(lock(), 1)
    _own.depth = depth + 1
    try:
        yield
    finally:
        _own.depth = depth
        if not depth:
            _python("PyThread_release_lock", None)(lock())


@functools.cache
def _python(function: str, returns: Any, *arguments: Any) -> Callable[..., Any]:
    # Not by `ctypes.pythonapi`, which keeps the GIL: the thread that holds the lock may be waiting for that.
    where = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value
    assert where is not None
    return ctypes.CFUNCTYPE(returns, ctypes.c_void_p, *arguments)(where)
