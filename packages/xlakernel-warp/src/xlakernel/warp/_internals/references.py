"""Values of the names in Warp's functions, read once for the hash of a module and for its code.

Warp reads globals, variables of enclosing functions and attributes twice: when it hashes a module and when it generates
the code. If one is assigned in between, by another thread or between the definition of a kernel with
``module="unique"`` and its first launch, the code is stored in memory and on disk under the hash of other values, and a
kernel that has these values runs it. Here the code is generated from the values that were hashed.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import warp

from .lock import lock

_Method = Callable[..., Any]
_ABSENT = object()

_thread = threading.local()


class _Reading:
    """The values that a module's functions refer to, each read when it is first asked for.

    Attributes:
      hashers: the module's dict of hashes, which Warp replaces when a kernel or function is added.
    """

    def __init__(self, hashers: Any) -> None:
        self.hashers = hashers
        self._names: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._namespaces: dict[int, _Namespace] = {}

    def name(self, adjoint: Any, name: str, read: _Method) -> Any:
        """Return the object that a name in a function is bound to outside of it."""
        known = self._names.setdefault(adjoint, {})
        if name not in known:
            known[name] = self.kept(read(adjoint, name))
        return known[name]

    def kept(self, value: Any) -> Any:
        """Return a value that no assignment changes: a copy of a vector or matrix, a `_Namespace` for a module."""
        if hasattr(value, "_wp_scalar_type_") and not isinstance(value, type):
            return copy.copy(value)
        if not _is_namespace(value):
            return value
        if id(value) not in self._namespaces:
            self._namespaces[id(value)] = _Namespace(self, value)
        return self._namespaces[id(value)]


class _Namespace(types.ModuleType):
    """A module or class, each attribute of which is read once. Warp accepts modules and classes alike."""

    def __init__(self, reading: _Reading, origin: Any) -> None:
        super().__init__(origin.__name__)
        vars(self)["_xlakernel"] = reading, origin, {}

    def __getattr__(self, name: str) -> Any:
        reading, origin, known = vars(self)["_xlakernel"]
        if name not in known:
            known[name] = reading.kept(getattr(origin, name, _ABSENT))
        if known[name] is _ABSENT:
            raise AttributeError(f"{origin.__name__} has no attribute {name!r}")
        return known[name]


def _is_namespace(value: Any) -> bool:
    """Return True for modules and classes of users, whose attributes a kernel can name."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] != "warp"
    if not isinstance(value, type) or value.__module__.partition(".")[0] in ("builtins", "numpy", "warp"):
        return False
    return not (warp.types.type_is_value(value) or hasattr(value, "_wp_scalar_type_"))


_readings: weakref.WeakKeyDictionary[Any, _Reading] = weakref.WeakKeyDictionary()
# Hashes of the kernels of modules that were not among Warp's when they were first hashed: those of ``"unique"``
# kernels, which Warp then names by the hash.
_named: weakref.WeakKeyDictionary[Any, frozenset[bytes]] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


@contextmanager
def _reading(module: Any) -> Iterator[None]:
    """Have this thread read the references of a module's functions once, until Warp hashes the module again."""
    known = _readings.get(module)
    if known is None or known.hashers is not module.hashers:
        known = _readings[module] = _Reading(module.hashers)
    before = getattr(_thread, "reading", None)
    _thread.reading = known
    try:
        yield
    finally:
        _thread.reading = before


def reading(method: _Method) -> _Method:
    """Return a method of Warp's ``Module`` that reads references once."""

    @functools.wraps(method)
    def read(module: Any, *args: Any, **options: Any) -> Any:
        with lock, _reading(module):
            return method(module, *args, **options)

    return read


def resolving(resolve: _Method) -> _Method:
    """Return Warp's ``Adjoint.resolve_external_reference`` with the values that are read once."""

    @functools.wraps(resolve)
    def resolved(adjoint: Any, name: str) -> Any:
        known: _Reading | None = getattr(_thread, "reading", None)
        return resolve(adjoint, name) if known is None else known.name(adjoint, name, resolve)

    return resolved


def hashing(get_module_hash: _Method) -> _Method:
    """Return Warp's ``Module.get_module_hash``; a ``"unique"`` kernel whose values changed is not returned again."""
    get = reading(get_module_hash)

    @functools.wraps(get_module_hash)
    def hashed(module: Any, block_dim: int | None = None) -> Any:
        with lock:
            digest = get(module, block_dim)
            hasher = module.hashers[module.options["block_dim"] if block_dim is None else block_dim]
            _name_anew(module, frozenset(hasher.unique_kernels))
            return digest

    return hashed


def loading(load: _Method) -> _Method:
    """Return Warp's ``Module.load``, which reads references anew if the module was never loaded."""
    load = reading(load)

    @functools.wraps(load)
    def loaded(module: Any, *args: Any, **options: Any) -> Any:
        with lock:
            if not module.execs and not module.failed_builds:
                _readings.pop(module, None)
                module.hashers.clear()
            return load(module, *args, **options)

    return loaded


def _name_anew(module: Any, kernels: frozenset[bytes]) -> None:
    """Rename a module whose kernels are no longer those that its name is a hash of."""
    from warp._src import context

    if context.user_modules.get(module.name) is not module:
        _named.setdefault(module, kernels)
        return
    named = _named.get(module)
    if named is not None and not (named and named <= kernels):
        del _named[module]
        _rename(module)


def rename_unique() -> None:
    """Rename the modules of ``"unique"`` kernels: it is not known what their names are a hash of."""
    from warp._src import context

    for name, module in list(context.user_modules.items()):
        if any(re.fullmatch(re.escape(f"{key}_") + "[0-9a-f]{8}", name) for key in module.kernels):
            _rename(module)


def _rename(module: Any) -> None:
    """Give a module a name that no other has: Warp returns the kernel of a module with the name of a new one."""
    from warp._src import context

    del context.user_modules[module.name]
    module.name = f"{module.name}_{next(_numbers)}"
    context.user_modules[module.name] = module
