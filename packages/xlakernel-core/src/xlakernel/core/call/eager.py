"""Programs of calls outside of ``jax.jit``, which are dropped when something that they may use is defined anew."""

from __future__ import annotations

import threading
import weakref
from typing import Any, TypeVar

_Program = TypeVar("_Program")

_lock = threading.RLock()
_programs: weakref.WeakSet[Any] = weakref.WeakSet()


def droppable(program: _Program) -> _Program:
    """Return *program*, a jitted function that runs calls outside of ``jax.jit``, and let `drop_programs` clear it."""
    with _lock:
        _programs.add(program)
    return program


def drop_programs() -> None:
    """Make JAX trace all calls outside of ``jax.jit`` again.

    If one operator gets another kernel, rule or backend, the calls of any operator or kernel may change: kernels and
    derivatives may call operators. What JAX has traced by itself stays: a function that the user jitted, and the body
    of a loop or a branch that is not made anew in each call.
    """
    with _lock:
        programs = list(_programs)
    # Twice: another thread may trace a program again, or store it, before the last one is cleared.
    for program in programs * 2:
        program.clear_cache()
