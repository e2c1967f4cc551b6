"""Protection from signals for steps that Numba cannot repeat."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Python's signal handlers until the exit from this context, which must be short.

    For example, Numba registers new declarations once. After an exception of a handler there (Ctrl-C, a time limit by
    SIGALRM), the rest of them would be missing, and no kernel would compile in the process any more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    present: dict[int, Any] = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {number: handler for number, handler in present.items() if callable(handler)}
    caught: list[tuple[Any, ...]] = []
    inside = True

    def delay(number: int, frame: Any) -> None:
        if inside:
            caught.append((number, frame))
        else:  # before its own handler is back
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, delay)
        yield
    finally:
        with ExitStack() as exits:  # an exception of one does not prevent the others
            for number, frame in reversed(caught):
                exits.callback(handlers[number], number, frame)
            inside = False
            for number, handler in handlers.items():
                exits.callback(signal.signal, number, handler)
