"""Bytes of numbers, strings and other literals. They are read by methods of the base type, not of a subclass."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any

# Type → its value as bytes.
_parts_of: Any = complex.__getnewargs__  # type: ignore[attr-defined]  # real and imaginary part
_LITERALS: Mapping[type, Callable[[Any], bytes]] = {
    int: lambda value: int.__format__(value, "x").encode(),
    float: lambda value: struct.pack("<d", value),  # distinguishes NaNs, and zeros, of either sign
    complex: lambda value: struct.pack("<2d", *_parts_of(value)),
    str: lambda value: str.encode(value, "utf-8", "surrogatepass"),
    bytes: lambda value: bytes(memoryview(value)),
    type(None): lambda _: b"",
    type(Ellipsis): lambda _: b"",
    range: lambda value: repr(value).encode(),
}


def base_items(value: Any, *bases: Any) -> list[Any]:
    """Return the items of *value* by the iterator of its base type; that of a subclass may yield others."""
    return next(list(base.__iter__(value)) for base in bases if isinstance(value, base))


@functools.lru_cache(maxsize=256)
def literal_writer(kind: Any) -> Callable[[Any], bytes] | None:
    """Return the function that writes values of *kind*; None if it is not a subclass of a literal's type."""
    return next((write for base, write in _LITERALS.items() if issubclass(kind, base)), None)
