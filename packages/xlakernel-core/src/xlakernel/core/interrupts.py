"""Signals that arrive in a compiler: protection from their handlers, and recognition of their exceptions."""

from __future__ import annotations

# The functions of `signal` without its conversions, which suppress a handler's ValueError. Typeshed has no stub of it.
import _signal  # type: ignore[import-not-found]
import ctypes
import functools
import inspect
import itertools
import signal
import threading
import traceback
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# More than the size of C's `struct sigaction`, which this module copies as bytes.
_ACTION = ctypes.c_char * 1024


class _Section:
    """A running `uninterrupted`. The weak set drops the section at the latest when the frame is freed."""


class _Raised(list[BaseException]):
    """Exceptions of other calls, which the main thread raises when C asks for the truth value of this list."""

    def __bool__(self) -> bool:
        if not _sections:
            self.raise_last()
        return False

    def raise_last(self) -> None:
        """Raise the last exception, if there is one, in place of all others."""
        if len(self):
            exception = self.pop()
            self.clear()
            raise exception


#: Exceptions that calls of Python from machine code ended with, for the main thread.
raised_in_calls = _Raised()
_sections: weakref.WeakSet[_Section] = weakref.WeakSet()
# Number of a signal → its Python handler, and its action in C, while `_delay` is installed in their place.
_handlers: dict[int, Any] = {}
_actions: dict[int, Any] = {}
_caught: list[tuple[int, Any]] = []


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Python's signal handlers until the exit from this context, which must be short.

    For example, Numba registers each new declaration once. If a signal handler (for Ctrl-C, or a time limit by SIGALRM)
    raised an exception in between, the remaining declarations would be missing, and no kernel would compile any more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    section = _Section()
    try:
        _sections.add(section)
        for number in range(1, signal.NSIG):
            _install(number)
        yield
    finally:
        try:
            if len(_sections) == 1:  # not inside another section
                _deliver()
        finally:
            _sections.discard(section)
            if not _sections:
                try:
                    _deliver()  # signals that arrived since
                finally:
                    _restore(list(_handlers))


def _install(number: int) -> None:
    handler = _signal.getsignal(number)
    if callable(handler) and handler is not _delay:
        _handlers[number], _actions[number] = handler, _action_of(number)
        _signal.signal(number, _delay)


def _delay(number: int, frame: Any) -> None:
    _caught.append((number, frame))
    if not _sections:
        _deliver()


def _deliver() -> None:
    """Call the handlers of all signals that were caught, even if one of the handlers raises an exception.

    The last exception is raised, with the earlier exceptions as its context.
    """
    failure: BaseException | None = None
    try:
        while _caught:
            number, frame = _caught.pop(0)
            try:
                _handlers[number](number, frame)
            except BaseException as error:  # noqa: BLE001  # raised below
                error.__context__ = error.__context__ or failure
                failure = error
        try:
            raised_in_calls.raise_last()
        except BaseException as error:  # noqa: BLE001  # raised below
            error.__context__ = error.__context__ or failure
            failure = error
    finally:  # also if the handler of a new signal raises between two steps
        if failure is not None:
            raise failure


def _restore(numbers: list[int]) -> None:
    """Restore all handlers that are still replaced, even if one of them is called now and raises an exception.

    An exception between two steps may leave `_delay` installed until the next section; `_delay` then calls the handler.
    """
    if numbers:
        number = numbers.pop()
        try:
            if _signal.getsignal(number) is _delay:
                try:
                    _signal.signal(number, _handlers[number])
                finally:  # also if the restored handler is called and raises
                    _set_action(number, _actions[number])
        finally:
            _restore(numbers)


def is_raised_by_handler(error: BaseException) -> bool:
    """Return True if a signal handler raised *error*, for example the handler of a time limit by SIGALRM.

    A handler is installed now, or is called with the number of a signal and the frame that it interrupts: a handler may
    remove itself before it raises.
    """
    codes = {code for number in range(1, signal.NSIG) if (code := _code_of(_signal.getsignal(number))) is not None}
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code in codes or _takes_signal(frame) for frame in frames)


def is_cancelled(error: BaseException) -> bool:
    """Return True if *error* is the error of a program of XLA in which a signal handler raised an exception."""
    return isinstance(error, RuntimeError | ValueError) and str(error).startswith("CANCELLED: ")


def _takes_signal(frame: types.FrameType) -> bool:
    """Return True if consecutive arguments of a function are the number of a signal and a frame."""
    code, found = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = [found.get(name) for name in names]
    given = found.get(code.co_varnames[len(names)]) if code.co_flags & inspect.CO_VARARGS else None
    values += given if isinstance(given, tuple) else ()  # the function may assign another value to the name
    return any(isinstance(k, int) and isinstance(at, types.FrameType) for k, at in itertools.pairwise(values))


@contextmanager
def suppressed() -> Iterator[None]:
    """Suppress exceptions except those of signal handlers, and those that are not an `Exception`."""
    try:
        yield
    except Exception as error:
        if is_raised_by_handler(error):
            raise


def _code_of(handler: Any) -> types.CodeType | None:
    """Return the code of a handler without its decorators; None for a handler that is not written in Python.

    The code of a decorator's wrapper does not identify the handler: wrappers of other functions have the same code.
    """
    for _ in range(100):  # attributes that are made on access may have no end
        inner = handler.func if isinstance(handler, functools.partial) else getattr(handler, "__wrapped__", handler)
        if inner is handler:
            break
        handler = inner
    called = type(handler).__call__ if callable(handler) and not hasattr(handler, "__code__") else handler
    return getattr(called, "__code__", None)


def _action_of(number: int) -> Any:
    """Return C's action for a signal. Unlike a result of `signal.getsignal`, an action has flags and C handlers."""
    action = _ACTION()
    ctypes.CDLL(None).sigaction(number, None, action)
    return action


def _set_action(number: int, action: Any) -> None:
    ctypes.CDLL(None).sigaction(number, action, None)
