"""Names of handlers, each registered once, with one address, for the life of the process.

XLA keeps the address that a name was first registered with and may use it at any time later, also from a cache of
compiled programs: registering a name again with another address breaks the CPU backend, and freeing a handler crashes
it. So nothing is ever replaced or released here, and a name must say everything that its machine code depends on.
"""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from ..errors import ExportError, KernelTypeError
from .abi import check_api_version


class Handler(NamedTuple):
    """The machine code of one handler."""

    address: int
    keep_alive: Any  # whatever owns the code at that address, and what it refers to


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a backend makes a target again in another process, under the same name.

    Attributes:
      module: the backend's module, ``xlakernel.<backend>._export`` or one whose name ends in ``_export``; a loaded
        program imports no other. Its ``prepare(name, data)`` compares what is here with what was exported, and returns
        a function that registers the target.
      data: what that function needs, made of what JSON has.
    """

    module: str
    data: Mapping[str, Any]


_handlers: dict[tuple[str, str], Handler] = {}
_recipes: dict[tuple[str, str], Callable[[], Recipe]] = {}
# The targets that loaded programs brought, whose names say what the programs claim.
_loaded: dict[tuple[str, str], Recipe] = {}
# The one that this thread registers now.
_loading: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("_loading", default=None)
# Building a handler may build another one: a kernel's compilation can run Python.
_lock = threading.RLock()


def free_name(name: str, platform: str) -> str:
    """Return *name*, or where a loaded program has a target of this name, another one."""
    while (platform, name) in _loaded and _loading.get() != (platform, name):
        name += "+"
    return name


def ensure_registered(
    name: str, platform: str, build: Callable[[], Handler], recipe: Callable[[], Recipe] | None = None
) -> str:
    """Register the handler that *build* makes under *name*, unless the name is known.

    Args:
      name: the target's name, which must identify the machine code. Where a loaded program has a target of this name,
        another one is taken.
      platform: XLA's name of the platform, ``"cpu"`` or ``"CUDA"``.
      build: makes the handler; called at most once per name, by one thread.
      recipe: says how to make the target in another process, or raises `ExportError`; called when a program that uses
        it is exported, which few are. Without it none can be.

    Returns:
      The name.

    Raises:
      KernelTypeError: if the name cannot be printed.
    """
    name = free_name(name, platform)
    if (platform, name) not in _handlers:
        with _lock:
            name = free_name(name, platform)
            if (platform, name) not in _handlers:
                check_api_version()
                if not name.isprintable():  # LLVM and XLA end it at the first zero, and the process with it
                    raise KernelTypeError(
                        f"{name!r}: the name of a kernel has characters that cannot be printed. Give its function "
                        "another __qualname__."
                    )
                handler = build()
                jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.address), platform=platform)
                if recipe is not None:
                    _recipes[platform, name] = recipe
                _handlers[platform, name] = handler
    return name


def register_loaded(name: str, platform: str, recipe: Recipe, register: Callable[[], None]) -> None:
    """Register a target of a loaded program, for which no kernel of this process is ever taken.

    Args:
      name: the target's name.
      platform: see `ensure_registered`.
      recipe: what the program says of it.
      register: registers it.
    """
    key = platform, name
    with _lock:
        if key in _handlers:
            return
        _loaded.setdefault(key, recipe)
    check_loaded(name, platform, recipe)
    token = _loading.set(key)
    try:
        register()
    finally:
        _loading.reset(token)
        with _lock:
            if key not in _handlers:
                _loaded.pop(key, None)


def check_loaded(name: str, platform: str, recipe: Recipe) -> None:
    """Raise `ExportError` if a program that was loaded has another kernel under a target's name."""
    before = _loaded.get((platform, name))
    if before is not None and _identity(before) != _identity(recipe):
        raise ExportError(
            f"deserialize: {name!r} is the name of another kernel in a program that was loaded before, so that one of "
            "them was changed after its export. Load this one in a process of its own, if you trust it."
        )


def _identity(recipe: Recipe) -> tuple[str, list[Any]]:
    """Return what determines a target's code: a pickle may differ, and the shapes of the call that was recorded."""
    return recipe.module, [recipe.data.get(key) for key in ("checks", "arguments", "mode", "debug", "ordered")]


def registered_targets() -> list[str]:
    """Return the names registered so far, in order."""
    return [name for _, name in list(_handlers)]


def is_registered(name: str, platform: str) -> bool:
    """Whether the target exists in this process."""
    return (platform, name) in _handlers


def recipes_of(name: str) -> dict[str, Callable[[], Recipe] | None]:
    """Return how the target can be made in another process, by the platforms that it is registered for."""
    return {platform: _recipes.get((platform, found)) for platform, found in list(_handlers) if found == name}
