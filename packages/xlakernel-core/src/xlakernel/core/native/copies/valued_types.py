"""Numba's types that contain a value, such as that of a function or a string that is known at compile time."""

from __future__ import annotations

import functools
from typing import Any

# Names of types in Numba and Numba CUDA, which have classes of their own.
_PLAIN = frozenset(
    {
        *("Boolean", "NPDatetime", "NPTimedelta", "NoneType", "Number", "Omitted", "UnicodeType"),
        *("FunctionType", "RangeType", "Record", "SliceType"),
    }
)
# Types that contain others, and the attributes with these.
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
        count: they refer to nothing.
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
