"""Numba's types that contain a value, such as the type of a certain function or of a string known at compile time."""

from __future__ import annotations

import functools
from typing import Any

# Types without a value, by name, because Numba and Numba CUDA have different classes.
_PLAIN = frozenset(
    {
        *("Boolean", "NPDatetime", "NPTimedelta", "NoneType", "Number", "Omitted", "UnicodeType"),
        *("FunctionType", "RangeType", "Record", "SliceType"),
    }
)
# Types that contain other types, and the attributes that hold the contained types.
_CONTAINERS = {
    "Array": ("dtype",),
    "BaseTuple": ("types",),
    "DictType": ("key_type", "value_type"),
    "List": ("dtype",),
    "ListType": ("item_type",),
    "Optional": ("type",),
    "Set": ("dtype",),
}


def has_value(key: Any) -> bool:
    """Return True if a type in *key*, the key of compiled code, may contain a value.

    Args:
      key: a type, a tuple of keys, or another object, which contains no type. Numbers known at compile time do not
        count as values, because they refer to nothing.
    """
    if isinstance(key, tuple):
        return any(map(has_value, key))
    kind: Any = type(key)
    return "Type" in _bases(kind) and _type_has_value(key)


@functools.lru_cache(maxsize=4096)
def _type_has_value(given: Any) -> bool:
    kind: Any = type(given)
    if not _is_of_numba(kind):  # a type of the user
        return True
    bases = _bases(kind)
    for name in bases & _CONTAINERS.keys():
        return has_value(tuple(getattr(given, attribute) for attribute in _CONTAINERS[name]))
    return not bases & _PLAIN


@functools.cache
def _bases(kind: type) -> frozenset[str]:
    return frozenset(base.__name__ for base in kind.__mro__ if _is_of_numba(base))


def _is_of_numba(kind: type) -> bool:
    return kind.__module__.startswith(("numba.", "numba_cuda."))
