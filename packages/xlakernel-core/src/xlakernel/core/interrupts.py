"""Signals that arrive in a compiler: protection from their handlers, and recognition of their exceptions."""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
import traceback
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# More than the size of C's `struct sigaction`, which this module copies as it is.
_ACTION = ctypes.c_char * 1024


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Python's signal handlers until the exit from this context, which must be short.

    For example, Numba registers new declarations once. After an exception of a handler there (Ctrl-C, a time limit by
    SIGALRM), the rest of them would be missing, and no kernel would compile in the process any more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    present: dict[int, Any] = {number: signal.getsignal(number) for number in range(1, signal.NSIG)}
    handlers = {number: handler for number, handler in present.items() if callable(handler)}
    actions = {number: _action_of(number) for number in handlers}
    caught: list[tuple[Any, ...]] = []
    is_inside = True

    def delay(number: int, frame: Any) -> None:
        if is_inside:
            caught.append((number, frame))
        else:
            handlers[number](number, frame)

    def restore(number: int) -> None:
        if signal.getsignal(number) is not delay:  # another handler was set inside
            return
        try:
            signal.signal(number, handlers[number])
        finally:
            _set_action(number, actions[number])

    def deliver() -> None:
        if caught:
            number, frame = caught.pop(0)
            try:
                handlers[number](number, frame)
            finally:
                deliver()

    try:
        for number in handlers:
            signal.signal(number, delay)
        yield
    finally:
        try:
            with ExitStack() as exits:  # an exception of a handler does not prevent the others
                exits.callback(deliver)
                for number in handlers:
                    exits.callback(restore, number)
        finally:
            is_inside = False


def is_raised_by_handler(error: BaseException) -> bool:
    """Return True if the handler of a signal raised *error*, for example of a time limit by SIGALRM."""
    codes = {_code_of(signal.getsignal(number)) for number in range(1, signal.NSIG)} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> types.CodeType | None:
    """Return the code that runs first when a handler is called; None for one that is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = type(handler).__call__ if callable(handler) and not hasattr(handler, "__code__") else handler
    return getattr(called, "__code__", None)


def _action_of(number: int) -> Any:
    """Return C's action for a signal: with its flags, and with handlers in C, which Python does not know."""
    action = _ACTION()
    ctypes.CDLL(None).sigaction(number, None, action)
    return action


def _set_action(number: int, action: Any) -> None:
    ctypes.CDLL(None).sigaction(number, action, None)
