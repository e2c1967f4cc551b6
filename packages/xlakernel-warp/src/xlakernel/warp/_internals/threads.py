"""Locks and per-thread settings for the use of Warp from several threads, which it does not support itself.

XLA calls functions that launch kernels from several threads, while others compile. No lock is held around these
functions, which are the user's and may wait for anything. Instead, Warp's own functions are wrapped to hold a lock:

* `lock`, in functions that change Warp's state about kernels and modules;
* another lock, where Warp runs a CPU kernel whose module has its tiles in static memory. Machine code that runs such a
  kernel takes the same lock, without the interpreter.

Some of Warp's global settings can have a different value in each thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import warp

from xlakernel.core.backend.native import new_lock

from . import references
from .hash_additions import complete
from .launches import may_use_shared_memory
from .lock import lock
from .recognition import Unrecognised, recognising
from .snapshot import resolving, with_snapshot
from .static_expressions import evaluating
from .unique_modules import rename_all

# Functions that change kernels and modules, by class; each Warp has some of them.
_CHANGING = {
    "Module": ("register_kernel", "register_function", "register_struct"),
    "Kernel": ("add_overload", "_add_normalized_overload"),
    "ModuleExec": ("get_kernel_hooks",),
}
# Functions that run a kernel on the CPU; the kernel is their first argument.
_RUNNING = ("invoke", "invoke_cpu_blocks")
# Functions that hash a module, generate its code and load it.
_COMPILING = {
    "get_module_hash": references.hashing,
    "load": references.loading,
    "_compile": with_snapshot,
    "compile": with_snapshot,
    "_get_kernel_tid_extent_limit": with_snapshot,
}
# The function that hashes the code of a function or kernel, the one that returns what a name in it is bound to, and
# the one that evaluates a ``wp.static`` expression.
_HASHING, _RESOLVING, _EVALUATING = "hash_adjoint", "resolve_external_reference", "evaluate_static_expression"
# The functions above that every supported version of Warp has.
_REQUIRED = {"load", "get_module_hash", "get_kernel_hooks", "invoke", _HASHING, _RESOLVING, _EVALUATING}
# Attributes of Warp's runtime that may have a different value in each thread.
_PER_THREAD = ("default_device", "tape")

_own = threading.local()


@functools.cache
def machine_lock() -> int:
    """Return the address of the lock that machine code takes."""
    guard()
    return new_lock()


@functools.cache
def guard() -> bool:
    """Wrap Warp's functions, once for all threads; return True if they are as expected."""
    with lock:
        try:
            _wrap()
        except Unrecognised:
            return False
        return True


@recognising("what runs kernels")
def _wrap() -> None:
    """Wrap the functions and attributes above; raise `Unrecognised`, with nothing changed, if one is missing."""
    from warp._src import codegen, context

    warp.init()
    runtime = context.runtime
    if isinstance(vars(type(runtime)).get(_PER_THREAD[0]), _PerThread):
        return
    places: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (getattr(context, owner), name, _changing) for owner, names in _CHANGING.items() for name in names
    ]
    places += [(context, name, _running) for name in _RUNNING]
    places += [(context.Module, name, wrapper) for name, wrapper in _COMPILING.items()]
    places += [(context.ModuleHasher, _HASHING, complete)]
    places += [
        (codegen.Adjoint, _RESOLVING, resolving),
        (codegen.Adjoint, _EVALUATING, evaluating),
    ]
    found = [(owner, name, wrapper) for owner, name, wrapper in places if hasattr(owner, name)]
    missing = _REQUIRED - {name for _, name, _ in found} | set(_PER_THREAD) - vars(runtime).keys()
    if missing:
        raise Unrecognised(f"what runs kernels: there is no {', '.join(sorted(missing))}")
    for owner, name, wrapper in found:
        setattr(owner, name, wrapper(getattr(owner, name)))
    for module in list(context.user_modules.values()):
        module.mark_modified()  # have it hashed again; a module whose hash stays the same is not loaded again
    rename_all()
    for name in _PER_THREAD:
        setattr(type(runtime), name, _PerThread(name))
    # Otherwise a child process might wait forever for a lock held by a thread that it does not have.
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _changing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(*args: Any, **options: Any) -> Any:
        with lock:
            return function(*args, **options)

    return locked


def _running(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(kernel: Any, *args: Any, **options: Any) -> Any:
        with _machine_lock_held() if may_use_shared_memory(kernel) else nullcontext():
            return function(kernel, *args, **options)

    return locked


@contextmanager
def launching() -> Iterator[None]:
    """Make this thread launch on the CPU by default, and record on no tape of another thread."""
    if guard():
        with _own_values(default_device=warp.get_device("cpu"), tape=None):
            yield
        return
    # In an unknown version of Warp nothing is wrapped: launches and compilations of other threads must wait, even if
    # the user's function waits for one of these threads.
    with lock, _machine_lock_held(), warp.ScopedDevice("cpu"):
        yield


@contextmanager
def compiling() -> Iterator[None]:
    """Record nothing on a tape: Warp's timers would open and close scopes on that of another thread."""
    with _own_values(default_device=warp.get_device(), tape=None) if guard() else nullcontext():
        yield


@contextmanager
def _own_values(**values: Any) -> Iterator[None]:
    """Give this thread its own values of attributes of Warp's runtime in this context; the thread may change them."""
    before = getattr(_own, "values", None)
    _own.values = values
    try:
        yield
    finally:
        _own.values = before


class _PerThread:
    """A descriptor for an attribute of Warp's runtime: this thread's own value, or else the common one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, runtime: Any, kind: Any = None) -> Any:
        if runtime is None:
            return self
        return self._values(runtime)[self.name]

    def __set__(self, runtime: Any, value: Any) -> None:
        self._values(runtime)[self.name] = value

    def _values(self, runtime: Any) -> dict[str, Any]:
        values: dict[str, Any] = getattr(_own, "values", None) or vars(runtime)
        return values


@contextmanager
def _machine_lock_held() -> Iterator[None]:
    """Hold the lock of machine code in this thread, which may hold it already."""
    depth = getattr(_own, "depth", 0)
    if not depth:
        _python_function("PyThread_acquire_lock", ctypes.c_int, ctypes.c_int)(machine_lock(), 1)
    _own.depth = depth + 1
    try:
        yield
    finally:
        _own.depth = depth
        if not depth:
            _python_function("PyThread_release_lock", None)(machine_lock())


@functools.cache
def _python_function(name: str, returns: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of Python's C API that is called without the GIL, unlike those of `ctypes.pythonapi`.

    A thread must wait for the lock without the GIL, because the thread that holds the lock may be waiting for the GIL.
    """
    address = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    assert address is not None
    return ctypes.CFUNCTYPE(returns, ctypes.c_void_p, *arguments)(address)
