"""`Snapshot`: the references of functions, each read once."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .names import globals_in
from .user_classes import own_attributes
from .versioned import attributes_of


class References(NamedTuple):
    """The references of a function: globals by name, copies of closure cells, and default values."""

    globals: dict[str, Any]
    cells: tuple[types.CellType, ...]
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None


class Snapshot:
    """The references of functions, the attributes of modules and the elements of arrays and containers, each read once.

    Another thread may change them at any time. The fingerprint and the compiled code are made from one snapshot, so
    that the fingerprint describes the code.
    """

    def __init__(self) -> None:
        # Keys are identities. Each value contains the object, so that no other object gets its identity.
        self._references: dict[int, tuple[types.FunctionType, References]] = {}
        self._attributes: dict[int, tuple[types.ModuleType, dict[str, Any], set[str]]] = {}
        self._arrays: dict[int, tuple[Any, np.ndarray[Any, Any]]] = {}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._frozen: dict[int, tuple[Any, Any]] = {}

    def references(self, function: types.FunctionType) -> References:
        """Return the references of a function."""
        if id(function) not in self._references:
            space, names = function.__globals__, globals_in(function.__code__)
            found: dict[str, Any] = {}
            for name in names:
                with contextlib.suppress(KeyError):  # a builtin, or removed by another thread
                    found[name] = space[name]
            cells = tuple(_copy_of_cell(cell) for cell in function.__closure__ or ())
            keywords = function.__kwdefaults__ and dict(function.__kwdefaults__)
            self._references[id(function)] = function, References(found, cells, function.__defaults__, keywords)
        return self._references[id(function)][1]

    def attributes(self, module: types.ModuleType, names: Iterable[str]) -> dict[str, Any]:
        """Return the attributes of a module that have one of the *names*."""
        _, found, asked = self._attributes.setdefault(id(module), (module, {}, set()))
        names = set(names)
        if new := names - asked:
            found.update(attributes_of(module, new))
            asked |= new
        return {name: found[name] for name in names & found.keys()}

    def array(self, array: np.ndarray[Any, Any] | np.void) -> np.ndarray[Any, Any]:
        """Return a read-only copy of an array or a record: contiguous, in the same memory order."""
        if id(array) not in self._arrays:
            own = array.copy() if isinstance(array, np.void) else array  # np.array(record) is a view of its array
            found = np.array(own)
            found.flags.writeable = False
            self._arrays[id(array)] = array, found
        return self._arrays[id(array)][1]

    def container(self, value: Any) -> Any:
        """Return a plain copy of a list, dictionary or set, made without the methods of a subclass."""
        if id(value) not in self._containers:
            base = next(kind for kind in (list, dict, set) if isinstance(value, kind))
            items: Any = dict.items(value) if base is dict else base.__iter__(value)
            self._containers[id(value)] = value, base(items)
        return self._containers[id(value)][1]

    def frozen(self, value: Any) -> Any:
        """Return a copy of an array, a record, or a container with its elements; any other value unchanged.

        An object of a subclass is not copied, since a copy would run methods of the user. Exceptions are record arrays
        and named tuples.
        """
        if type(value) in (np.ndarray, np.recarray):
            return self.array(value).view(type(value))
        if isinstance(value, np.void):
            return self.array(value)[()]
        if id(value) in self._frozen:
            return self._frozen[id(value)][1]
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            items = [self.frozen(item) for item in tuple.__iter__(value)]
            self._frozen[id(value)] = value, with_items(value, items)
            return self._frozen[id(value)][1]
        if type(value) not in (list, dict, set):
            return value
        elements = self.container(value)
        self._frozen[id(value)] = value, (own := elements.copy())  # a container may contain itself
        if isinstance(own, list):
            own[:] = map(self.frozen, elements)
        elif isinstance(own, dict):
            own.update({key: self.frozen(item) for key, item in elements.items()})
        return own


def with_items(value: tuple[Any, ...], items: Sequence[Any]) -> tuple[Any, ...]:
    """Return *value* with other items, made without the methods of a subclass; *value* itself if they are the same."""
    if all(new is old for new, old in zip(items, tuple.__iter__(value), strict=True)):
        return value
    made = tuple.__new__(type(value), items)
    if attributes := own_attributes(value):
        vars(made).update(attributes)
    return made


def _copy_of_cell(cell: types.CellType) -> types.CellType:
    try:
        return types.CellType(cell.cell_contents)
    except ValueError:  # not bound yet
        return types.CellType()
