"""Launches on the CPU that must run one at a time, whoever launches: machine code of ours, or Warp from Python.

A module of Warp's has one place for its tiles. Machine code that uses it holds a lock that needs no interpreter, and
Python holds the same one, as it does not know which modules a function's launches are from.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from xlakernel.core.native import new_lock

from . import _inside

_held = [0]  # by Python, under `_inside.lock`: how many times


@functools.cache
def lock() -> int:
    """Return the address of the lock that machine code holds."""
    return new_lock()


@contextmanager
def alone() -> Iterator[None]:
    """Hold it in Python, together with the one under which Warp compiles."""
    with _inside.lock:
        if not _held[0]:
            _call("PyThread_acquire_lock", lock(), 1)
        _held[0] += 1
        try:
            yield
        finally:
            _held[0] -= 1
            if not _held[0]:
                _call("PyThread_release_lock", lock())


def _call(function: str, address: int, *arguments: int) -> None:
    # Not by `ctypes.pythonapi`, which keeps the GIL: whoever holds the lock may be waiting for that.
    kinds = [ctypes.c_int] * len(arguments)
    where = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value
    assert where is not None
    ctypes.CFUNCTYPE(ctypes.c_int if arguments else None, ctypes.c_void_p, *kinds)(where)(address, *arguments)
