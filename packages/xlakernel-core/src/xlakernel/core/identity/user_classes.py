"""Users' subclasses of enums, numbers, tuples and other types whose instances a compiler freezes: methods, attributes.

A compiler reads a value by methods that a subclass may replace, such as ``__float__``. An ``objmode`` block, and a
function that defines an implementation for a compiler, may call any method and read any attribute.
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
_IMMUTABLE = (bool, int, float, complex, str, bytes, tuple, frozenset, np.generic, enum.Enum)
_FROZEN = (*_IMMUTABLE, list, dict, set, np.ndarray)


class _Empty(enum.Flag): ...


# Attributes that Python itself gives to classes. The defaults of a named tuple's fields are the user's.
_GENERATED = (vars(_Empty).keys() | vars(typing.NamedTuple("_Tuple", [])).keys()) - {"_field_defaults"}
_GENERATED |= {"__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__classdictcell__"}
_GENERATED |= {"__dict__", "__orig_bases__", "__parameters__", "__slotnames__", "__static_attributes__", "__weakref__"}
_GENERATED |= {"__type_params__", "_abc_impl"}
_MAKERS = {"collections", "enum", "typing"}  # the modules of functions that Python gives to classes
_OF_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def is_class_of_user(kind: Any) -> bool:
    """Return True for a user's subclass of an enum, a literal's type, a container or an array."""
    is_of_user = kind not in _FROZEN and issubclass(kind, _FROZEN) and not hasattr(kind, "n_sequence_fields")
    return is_of_user and not is_versioned(kind)  # `sys.float_info` and the like are structure sequences


def is_constant(value: Any) -> bool:
    """Return True for an instance of a user's class that has no state besides its value, and for that of a literal."""
    return isinstance(value, _IMMUTABLE) and not own_attributes(value)


def own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that were set on a function, or on an instance of a user's class, by name."""
    if isinstance(value, types.FunctionType):
        return {name: item for name, item in list(vars(value).items()) if name[:2] != "__"}
    state: Any = object.__getstate__(value) if is_class_of_user(type(value)) else None  # type: ignore[attr-defined]
    in_dictionary, in_slots = state if isinstance(state, tuple) else (state, None)
    found = {**(in_dictionary or {}), **(in_slots or {})}
    if isinstance(value, enum.Enum):  # others of its attributes are Python's, such as `_inverted_` after ``~value``
        return {name: item for name, item in found.items() if not (name[0] == name[-1] == "_")}
    return found


def bases_of_user(kind: type) -> list[type]:
    """Return the classes of the user whose attributes *kind* or one of its instances has, also its metaclasses."""
    metaclass: type = type(kind)
    return [base for base in (*kind.__mro__, *metaclass.__mro__) if not is_versioned(base)]


def class_body(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that the user's code gives to *kind*; in place of a descriptor, its functions."""
    body = dict(list(vars(kind).items()))
    known = {*_GENERATED, *body.get("_fields", ()), *body.get("_member_map_", ())}
    makers = {*_MAKERS, f"namedtuple_{kind.__name__}"}
    for name, item in body.items():
        functions = _functions(item)
        is_generated = name in known and all(getattr(one, "__module__", None) in makers for one in functions)
        if not is_generated and not isinstance(item, _OF_SLOTS):
            yield name, functions or item


def _functions(item: Any) -> tuple[Any, ...]:
    if isinstance(item, (staticmethod, classmethod)):
        return (item.__func__,)
    if isinstance(item, (property, types.DynamicClassAttribute)):
        return tuple(one for one in (item.fget, item.fset, item.fdel) if one is not None)
    if isinstance(item, functools.cached_property):
        return (item.func,)
    return (item,) if callable(item) else ()
