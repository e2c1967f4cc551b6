"""The gate between machine code and the interpreter, which is closed when the process ends.

A thread of XLA's that waits for the GIL while the main thread destroys XLA's clients waits for ever, and so does the
main thread, which waits for the other. So machine code takes the GIL only inside the gate. At exit, before JAX's own
clean-up, the programs that are still running are waited for with the GIL released. Then the gate is closed: calls that
come later, as those of programs whose results were dropped, return an error without asking the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import time
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ..._compat import live_arrays
from ...ffi import abi
from .frame import I32, I64, POINTER, create_error, i64
from .machine_code import pointer_to

# How many calls are inside, and whether the gate is closed.
_inside, _closed = ctypes.c_int64(0), ctypes.c_int64(0)

_MESSAGE = b"xlakernel: the process is ending, and the call needs the interpreter\0"


def enter(builder: ir.IRBuilder, *, fixed: bool = False) -> Any:
    """Emit the way in; return whether the gate was open. Each entry that succeeds needs a `leave`.

    Args:
      builder: where to emit.
      fixed: whether the code is never stored, so that addresses may be constants of it.
    """
    _close_at_exit()
    inside, closed = _words(builder, fixed=fixed)
    builder.atomic_rmw("add", inside, i64(1), "seq_cst")  # before the gate is looked at, as `_close` does the reverse
    is_open = builder.icmp_signed("==", builder.load_atomic(closed, "seq_cst", 8), i64(0))
    with builder.if_then(builder.not_(is_open), likely=False):
        leave(builder, fixed=fixed)
    return is_open


def leave(builder: ir.IRBuilder, *, fixed: bool = False) -> None:
    """Emit the way out."""
    inside, _ = _words(builder, fixed=fixed)
    builder.atomic_rmw("sub", inside, i64(1), "seq_cst")


@contextlib.contextmanager
def entered(builder: ir.IRBuilder, api: Any, *, fixed: bool = False) -> Iterator[None]:
    """Emit code around what is emitted inside: it runs inside the gate, or the function returns an ``XLA_FFI_Error``.

    Args:
      builder: where to emit; nothing that is emitted inside may leave the function.
      api: the table of XLA's functions.
      fixed: see `enter`.
    """
    is_open = enter(builder, fixed=fixed)
    with builder.if_then(builder.not_(is_open), likely=False):
        text = cgutils.global_constant(builder, "xlakernel_ending", cgutils.make_bytearray(_MESSAGE))
        code = ir.Constant(I32, abi.ERROR_CODES["CANCELLED"])
        builder.ret(create_error(builder, api, builder.bitcast(text, POINTER), code))
    yield
    leave(builder, fixed=fixed)


def _words(builder: ir.IRBuilder, *, fixed: bool) -> tuple[Any, Any]:
    addresses = (ctypes.addressof(word) for word in (_inside, _closed))
    if fixed:
        inside, closed = (builder.inttoptr(i64(address), I64.as_pointer()) for address in addresses)
    else:
        inside, closed = (pointer_to(builder, address, I64.as_pointer()) for address in addresses)
    return inside, closed


@functools.cache
def _close_at_exit() -> None:
    # Callbacks run in reverse order: `_close` after those that are registered once this package is imported, which may
    # call kernels, and before JAX's own, since JAX has been imported.
    atexit.register(_close)


def _close() -> None:
    """Wait for the programs that are running, and close the gate."""
    try:
        for array in live_arrays():
            with contextlib.suppress(Exception):  # of a program that failed: its error belongs to who reads the array
                array.block_until_ready()
    finally:
        _closed.value = 1
        _wait_until_empty()


def _wait_until_empty() -> None:
    while True:
        try:
            time.sleep(0.001)  # also before the first look: an entry that did not see the gate closed is counted then
            if not _inside.value:
                return
        except KeyboardInterrupt:
            # The kernels inside end by themselves, as those that are outside do, which JAX waits for. Leaving now
            # would let them meet an interpreter that is gone.
            continue


def _forget_parent() -> None:
    """Let a forked child end: it has none of the threads that are inside, or that compute the arrays of its parent."""
    _inside.value = 0
    atexit.unregister(_close)
    _close_at_exit.cache_clear()  # the child may build kernels of its own


_close_at_exit()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_parent)
