"""The gate between machine code and the interpreter. The gate closes when the process ends.

At exit the main thread destroys XLA's clients, and so waits for XLA's threads. An XLA thread that waits for the GIL
at that moment would never get it, and both threads would hang. Machine code therefore takes the GIL only inside the
gate. At exit, before JAX's own clean-up, the main thread releases the GIL and waits for the running programs. Then it
closes the gate: later calls, such as those from programs whose results were deleted and therefore not waited for,
return an error without taking the GIL.
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
from ...interrupts import suppressed
from .frame import I32, I64, POINTER, create_error, i64
from .machine_code import pointer_to

# The number of calls inside the gate, and whether it is closed.
_inside, _closed = ctypes.c_int64(0), ctypes.c_int64(0)

_MESSAGE = b"xlakernel: the process is ending, and the call needs the interpreter\0"


def enter(builder: ir.IRBuilder) -> Any:
    """Emit the entry; return a flag that is true if the gate was open. Each successful entry needs a `leave`."""
    _close_at_exit()
    # seq_cst orders this count before the read of the flag, and `_close` sets the flag before it reads the count (see
    # `_wait_until_empty`). So `_close` waits for every entry that found the gate open.
    builder.atomic_rmw("add", _word(builder, _inside), i64(1), "seq_cst")
    is_open = builder.icmp_signed("==", builder.load_atomic(_word(builder, _closed), "seq_cst", 8), i64(0))
    with builder.if_then(builder.not_(is_open), likely=False):
        leave(builder)
    return is_open


def leave(builder: ir.IRBuilder) -> None:
    """Emit the exit."""
    builder.atomic_rmw("sub", _word(builder, _inside), i64(1), "seq_cst")


@contextlib.contextmanager
def entered(builder: ir.IRBuilder, api: Any) -> Iterator[None]:
    """Emit an entry and an exit around the code that is emitted in this context.

    The emitted function returns an ``XLA_FFI_Error`` if the gate is closed. The code inside must not contain a return.
    """
    is_open = enter(builder)
    with builder.if_then(builder.not_(is_open), likely=False):
        text = cgutils.global_constant(builder, "xlakernel_ending", cgutils.make_bytearray(_MESSAGE))
        code = ir.Constant(I32, abi.ERROR_CODES["CANCELLED"])
        builder.ret(create_error(builder, api, builder.bitcast(text, POINTER), code))
    yield
    leave(builder)


def _word(builder: ir.IRBuilder, word: ctypes.c_int64) -> Any:
    return pointer_to(builder, ctypes.addressof(word), I64.as_pointer())


@functools.cache
def _close_at_exit() -> None:
    # Exit callbacks run in the reverse order of registration. `_close` thus runs before JAX's callbacks (JAX is
    # imported earlier), and after callbacks registered later, which may call kernels.
    atexit.register(_close)


def _close() -> None:
    """Wait for running programs, and close the gate."""
    try:
        for array in live_arrays():
            with suppressed():  # a failed program raises where its result is read
                array.block_until_ready()
    finally:
        _closed.value = 1
        _wait_until_empty()


def _wait_until_empty() -> None:
    while True:
        try:
            # Sleep before the first read too: the store to `_closed` by ctypes is not seq_cst. Without the sleep, other
            # threads might see it only after the read, and an entry could find the gate open without being counted.
            time.sleep(0.001)
            if not _inside.value:
                return
        except KeyboardInterrupt:
            # The calls inside end by themselves. Without this wait they would use a finalized interpreter.
            continue


def _forget_parent() -> None:
    """Reset the gate in a forked child, which has none of its parent's threads to wait for."""
    _inside.value = 0
    atexit.unregister(_close)
    _close_at_exit.cache_clear()  # the child may build its own kernels


_close_at_exit()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_parent)
