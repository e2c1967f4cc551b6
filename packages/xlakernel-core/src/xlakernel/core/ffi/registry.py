"""Names of handlers, each registered once, with one address, for the life of the process.

XLA keeps the address that a name was first registered with and may use it at any time later, also from a cache of
compiled programs: registering a name again with another address breaks the CPU backend, and freeing a handler crashes
it. So nothing is ever replaced or released here, and a name must say everything that its machine code depends on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from .abi import check_api_version


class Handler(NamedTuple):
    """The machine code of one handler."""

    address: int
    keep_alive: Any  # whatever owns the code at that address, and what it refers to


_handlers: dict[tuple[str, str], Handler] = {}
# Building a handler may build another one: a kernel's compilation can run Python.
_lock = threading.RLock()


def ensure_registered(name: str, platform: str, build: Callable[[], Handler]) -> str:
    """Register the handler that *build* makes under *name*, unless the name is known.

    Args:
      name: the target's name, which must identify the machine code.
      platform: XLA's name of the platform, ``"cpu"`` or ``"CUDA"``.
      build: makes the handler; called at most once per name, by one thread.

    Returns:
      The name.
    """
    if (platform, name) not in _handlers:
        with _lock:
            if (platform, name) not in _handlers:
                check_api_version()
                handler = build()
                jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.address), platform=platform)
                _handlers[platform, name] = handler
    return name


def registered_targets() -> list[str]:
    """Return the names registered so far, in order."""
    return [name for _, name in _handlers]
