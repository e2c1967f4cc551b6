"""Snapshots of the values that names in Warp's functions are bound to.

A snapshot belongs to one hash of a module: while Warp hashes the module and generates its code, each name is read once.
"""

from __future__ import annotations

import copy
import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import warp

from .lock import lock

_Method = Callable[..., Any]
_ABSENT = object()

_thread = threading.local()


class Snapshot:
    """The values that a module's functions refer to, each read at its first use.

    Attributes:
      hashers: the module's dict of hashes, which Warp replaces when a kernel or function is added.
      is_final: True once a program was lowered, or code loaded, with these values.
      deferred: the functions with ``wp.static`` expressions that Warp evaluates when it generates code.
      block_dim: the size of blocks that the module is hashed for.
      unreached: functions, each with a size of blocks, with expressions only in code that Warp does not generate.
      is_evaluating: True while Warp generates code in order to evaluate the expressions.
    """

    def __init__(self, hashers: Any) -> None:
        self.hashers = hashers
        self.is_final = self.is_evaluating = False
        self.deferred: set[Any] = set()
        self.block_dim: int | None = None
        self.unreached: set[tuple[Any, int | None]] = set()
        self._names: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._statics: dict[tuple[Any, int | None], dict[str, tuple[Any, str]]] = {}
        self._namespaces: dict[int, _Namespace] = {}

    def name(self, function: Any, name: str, read: Callable[[], Any]) -> Any:
        """Return the object that a name in a function is bound to outside of it."""
        free = function.__code__.co_freevars
        owner = function.__closure__[free.index(name)] if name in free else function.__globals__
        if (id(owner), name) not in self._names:
            self._names[id(owner), name] = owner, self.frozen(read())
        return self._names[id(owner), name][1]

    def static(self, adjoint: Any, key: str, evaluate: Callable[[], tuple[Any, str]]) -> tuple[Any, str]:
        """Return value and text of an expression that Warp evaluates when it generates code."""
        evaluated = self._statics.setdefault((adjoint.func, adjoint.builder_options.get("block_dim")), {})
        if key not in evaluated:
            value, text = evaluate()
            evaluated[key] = self.frozen(value), text
        return evaluated[key]

    def statics(self, function: Any) -> list[tuple[str, Any]]:
        """Return key and value of the expressions that were evaluated in the code of a function."""
        evaluated = self._statics.get((function, self.block_dim), {})
        return [(key, value) for key, (value, _) in sorted(evaluated.items())]

    def unevaluated(self) -> set[tuple[Any, int | None]]:
        """Return the functions whose expressions have not been evaluated, each with the size of blocks."""
        return {(function, self.block_dim) for function in self.deferred} - self._statics.keys() - self.unreached

    def frozen(self, value: Any) -> Any:
        """Return a value that no assignment changes: a copy of a vector or matrix, a `_Namespace` for a module."""
        if hasattr(value, "_wp_scalar_type_") and not isinstance(value, type):
            return copy.copy(value)
        if not _is_namespace(value):
            return value
        if id(value) not in self._namespaces:
            self._namespaces[id(value)] = _Namespace(self, value)
        return self._namespaces[id(value)]


class _Namespace(types.ModuleType):
    """A stand-in for a module or class that reads each attribute once. Warp accepts a module in place of a class."""

    def __init__(self, snapshot: Snapshot, origin: Any) -> None:
        super().__init__(origin.__name__)
        vars(self)["_xlakernel"] = snapshot, origin, {}

    def __getattr__(self, name: str) -> Any:
        snapshot, origin, attributes = vars(self)["_xlakernel"]
        if name not in attributes:
            attributes[name] = snapshot.frozen(getattr(origin, name, _ABSENT))
        if attributes[name] is _ABSENT:
            raise AttributeError(f"{origin.__name__} has no attribute {name!r}")
        return attributes[name]


def _is_namespace(value: Any) -> bool:
    """Return True for modules and classes of users, whose attributes a kernel can name."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] != "warp"
    if not isinstance(value, type) or value.__module__.partition(".")[0] in ("builtins", "numpy", "warp"):
        return False
    return not (warp.types.type_is_value(value) or hasattr(value, "_wp_scalar_type_"))


def snapshot_of(module: Any) -> Snapshot | None:
    """Return the snapshot that a module's present hashes are made from, or None."""
    snapshot: Snapshot | None = getattr(module, "_xlakernel_snapshot", None)
    return snapshot if snapshot is not None and snapshot.hashers is module.hashers else None


@contextmanager
def snapshot_used(module: Any) -> Iterator[Snapshot]:
    """Make this thread use the module's snapshot in this context; a new snapshot if Warp must hash the module again."""
    snapshot = snapshot_of(module) or renew(module)
    with used(snapshot):
        yield snapshot


def renew(module: Any) -> Snapshot:
    """Return a new snapshot for a module's present dict of hashes."""
    snapshot = Snapshot(module.hashers)
    module._xlakernel_snapshot = snapshot
    return snapshot


def current() -> Snapshot | None:
    """Return the snapshot that this thread uses, or None."""
    return getattr(_thread, "snapshot", None)


@contextmanager
def used(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Make this thread take the values of names from a snapshot in this context."""
    before = current()
    _thread.snapshot = snapshot
    try:
        yield snapshot
    finally:
        _thread.snapshot = before


def with_snapshot(method: _Method) -> _Method:
    """Return a method of Warp's ``Module``, changed to take the values of names from the module's snapshot."""

    @functools.wraps(method)
    def wrapped(module: Any, *args: Any, **options: Any) -> Any:
        with lock, snapshot_used(module):
            return method(module, *args, **options)

    return wrapped


def resolving(resolve: _Method) -> _Method:
    """Return Warp's ``Adjoint.resolve_external_reference``, changed to take values from the thread's snapshot."""

    @functools.wraps(resolve)
    def resolved(adjoint: Any, name: str) -> Any:
        snapshot = current()
        read = functools.partial(resolve, adjoint, name)
        return read() if snapshot is None else snapshot.name(adjoint.func, name, read)

    return resolved
