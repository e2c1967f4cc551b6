"""Registry of handlers, the native functions that XLA calls by the name of a target.

XLA keeps the address of a registered name, and a cached program may call it at any later time. A second registration
with another address breaks the CPU backend, and a call of a freed handler crashes. Each name is therefore registered
once, with one address, for the life of the process, and must identify everything that its machine code depends on.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from ..errors import ExportError, KernelTypeError
from ..interrupts import uninterrupted
from .abi import check_api_version


class Handler(NamedTuple):
    """The machine code of one handler."""

    address: int
    keep_alive: Any  # the owners of the code and of the data that it refers to


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The description from which a backend builds a target in another process, under the same name.

    Attributes:
      module: the backend's module, ``xlakernel.<backend>._export`` or another name that ends in ``_export``; other
        modules are refused when a program is loaded. The module's ``prepare(name, data)`` compares the kernel in this
        process with the exported one, and returns a function that registers the target.
      data: the argument ``data`` of ``prepare``, in JSON types.
    """

    module: str
    data: Mapping[str, Any]


_handlers: dict[tuple[str, str], Handler] = {}
# Writers of the recipes of a target's first and latest kernel: objects that the first refers to may have changed.
_recipes: dict[tuple[str, str], tuple[Callable[[], Recipe], ...]] = {}
# The targets of loaded programs, by platform and name. A kernel of this process never uses one of them (`free_name`).
_loaded: dict[tuple[str, str], Recipe] = {}
# The target of a loaded program that this thread is registering.
_loading: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("_loading", default=None)
# Reentrant, because the compilation of a kernel can run Python that builds another handler.
_lock = threading.RLock()


def free_name(name: str, platform: str) -> str:
    """Return *name*, or another name if a loaded program has a target of this name."""
    while (platform, name) in _loaded and _loading.get() != (platform, name):
        name += "+"
    return name


def ensure_registered(
    name: str, platform: str, build: Callable[[], Handler], recipe: Callable[[], Recipe] | None = None
) -> str:
    """Register a handler under *name*, unless the name is registered.

    Args:
      name: the target's name, which must identify the machine code.
      platform: XLA's name of the platform, ``"cpu"`` or ``"CUDA"``.
      build: returns the handler; called at most once for each name, by one thread.
      recipe: returns the target's recipe or raises `ExportError`; called when a program that uses the target is
        exported. None: such a program cannot be exported.

    Returns:
      The name, or another name if a loaded program has a target of this name.

    Raises:
      KernelTypeError: if the name cannot be printed.
    """
    name = free_name(name, platform)
    if (platform, name) not in _handlers:
        with _lock:
            name = free_name(name, platform)
            if (platform, name) not in _handlers:
                check_api_version()
                if not name.isprintable():  # LLVM and XLA cut a name at a NUL, and crash
                    raise KernelTypeError(
                        f"{name!r}: the name of a kernel has characters that cannot be printed. Give its function "
                        "another __qualname__."
                    )
                handler = build()
                with uninterrupted():  # XLA refuses a second registration
                    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.address), platform=platform)
                    _handlers[platform, name] = handler
    if recipe is not None:
        _recipes[platform, name] = (*_recipes.get((platform, name), ())[:1], recipe)
    return name


def register_loaded(name: str, platform: str, recipe: Recipe, register: Callable[[], None]) -> None:
    """Register a target of a loaded program. Kernels of this process get other names, and never use this target.

    Args:
      name: the target's name in the program.
      platform: see `ensure_registered`.
      recipe: the target's recipe in the program.
      register: registers the target.
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
    """Raise `ExportError` if a loaded program has another kernel under this name."""
    before = _loaded.get((platform, name))
    if before is not None and _identity(before) != _identity(recipe):
        raise ExportError(
            f"deserialize: {name!r} is the name of another kernel in a program that was loaded before; one of the "
            "programs was changed after its export. Load this program in a process of its own, if you trust it."
        )


def _identity(recipe: Recipe) -> tuple[str, list[Any]]:
    """Return the parts of a recipe that determine the target's code, without pickles and recorded shapes."""
    return recipe.module, [recipe.data.get(key) for key in ("checks", "arguments", "mode", "debug", "ordered")]


def registered_targets() -> list[str]:
    """Return the names registered so far, in order."""
    return [name for _, name in list(_handlers)]


def is_registered(name: str, platform: str) -> bool:
    """Return True if the target exists in this process."""
    return (platform, name) in _handlers


def recipes_of(name: str) -> dict[str, Callable[[], Recipe] | None]:
    """Return {platform: function that writes the recipe, or None} for the platforms of the target *name*."""
    targets = [target for target in list(_handlers) if target[1] == name]
    return {target[0]: _first_valid(*_recipes.get(target, (None,))) for target in targets}


def _first_valid(
    first: Callable[[], Recipe] | None, latest: Callable[[], Recipe] | None = None
) -> Callable[[], Recipe] | None:
    """Return a function that writes the latest recipe, or the first recipe if the latest raises `ExportError`."""
    if first is None or latest is None:
        return first

    def write() -> Recipe:
        try:
            return latest()
        except ExportError:
            with contextlib.suppress(ExportError):
                return first()
            raise

    return write
