"""What Python sees of a value and a compiler does not: methods of its class, and attributes of its own.

A compiler freezes an enum's member, a named tuple or an instance of a subclass of `float` by its value alone. An
``objmode`` block, and a function that defines an implementation for a compiler, may call their methods.
"""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np

from .versioned import is_versioned

# Types whose instances a compiler freezes by their values.
_FROZEN = (bool, int, float, complex, str, bytes, list, dict, tuple, set, frozenset, np.ndarray, np.generic, enum.Enum)


class _Empty(enum.Flag): ...


# Names that Python itself gives to classes; a user may use one of them for a function.
_GENERATED = (vars(_Empty).keys() | vars(typing.NamedTuple("_Tuple", [])).keys()) - {"_field_defaults"}
_GENERATED |= {"__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__classdictcell__"}
_GENERATED |= {"__dict__", "__orig_bases__", "__parameters__", "__static_attributes__", "__weakref__"}


def has_class_of_user(value: Any) -> bool:
    """Return True for an instance of a user's subclass of an enum, a literal's type, a container or an array."""
    kind = type(value)
    return kind not in _FROZEN and isinstance(value, _FROZEN) and not is_versioned(kind)


def has_attributes(value: Any) -> bool:
    """Return True for a function, or an instance of a user's class, with attributes that were set."""
    if isinstance(value, types.FunctionType):
        return any(name[:2] != "__" for name in vars(value))
    state: Any = object.__getstate__(value) if has_class_of_user(value) else None  # type: ignore[attr-defined]
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    names = list(attributes or ())
    if isinstance(value, enum.Enum):  # others of its attributes are Python's, such as `_inverted_` after ``~value``
        names = [name for name in names if not (name[0] == name[-1] == "_")]
    return bool(slots or names)


def class_body(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that the user's code defines in *kind* and its bases; functions for descriptors."""
    for base in kind.__mro__:
        if is_versioned(base):
            continue
        yield "class", base.__qualname__
        known = {*_GENERATED, *getattr(base, "_fields", ()), *getattr(base, "__members__", ())}
        for name, item in vars(base).items():
            functions = _functions(item)
            if name not in known or any(getattr(one, "__module__", None) == base.__module__ for one in functions):
                yield name, functions or item


def _functions(item: Any) -> tuple[Any, ...]:
    if isinstance(item, types.FunctionType):
        return (item,)
    if isinstance(item, (staticmethod, classmethod)):
        return (item.__func__,)
    if isinstance(item, (property, types.DynamicClassAttribute)):
        return item.fget, item.fset, item.fdel
    return (item.func,) if isinstance(item, functools.cached_property) else ()
