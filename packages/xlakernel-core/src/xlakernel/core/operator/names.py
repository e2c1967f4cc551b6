"""The operators of this process, by name and by tag."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..errors import ArgumentError, DuplicateNameError, KernelTypeError

_FORBIDDEN = "/\\*?"  # special in a path or in a pattern of names

_operators: dict[str, Any] = {}
_lock = threading.Lock()


def holder(name: str, *, replace: bool) -> Any:
    """Return the operator of this name, or None; raise `DuplicateNameError` if there is one, unless *replace*."""
    if name in _operators and not replace:
        raise DuplicateNameError(
            f"XLACustomKernel: an operator named {name!r} exists. Use that one, xlakernel.core.operators()"
            f"[{name!r}], choose another name, or pass replace=True to take the name over."
        )
    return _operators.get(name)


def register(op: Any, name: str, *, replace: bool) -> Any:
    """Give *op* its name; return the operator that had it, or None. `XLACustomKernel` documents the arguments."""
    with _lock:
        earlier = holder(name, replace=replace)
        _operators[name] = op
    return earlier


def same_named(kind: type, name: Any) -> Any:
    """Return the operator of this name as one of the class *kind*, if its class has the same name; else None.

    The class itself may have been defined again, as when a notebook's cell runs again.
    """
    found = _operators.get(name) if isinstance(name, str) else None
    if (type(found).__module__, type(found).__qualname__) != (kind.__module__, kind.__qualname__):
        return None
    found.__class__ = kind
    return found


def check_name(name: str) -> None:
    """Raise unless *name* can be a column of a table, a part of a file name, and an argument of a command."""
    if not isinstance(name, str) or not name:
        raise KernelTypeError(f"XLACustomKernel: the name is {name!r}; expected a non-empty string.")
    if name[0] == "-" or name != name.strip() or not name.isprintable() or not set(name).isdisjoint(_FORBIDDEN):
        raise ArgumentError(
            f"XLACustomKernel: the name is {name!r}; allowed are printable characters, but none of "
            f"{' '.join(_FORBIDDEN)}, no - at the start, and no space at either end."
        )


def operators(*tags: str) -> Mapping[str, Any]:
    """Return the operators of this process, each an `XLACustomKernel`, by name.

    Args:
      *tags: only operators that have all of these (`XLACustomKernel.def_tags`).

    Raises:
      ArgumentError: if no operator has one of the tags.

    Example:
      >>> from xlakernel.core import XLACustomKernel, operators
      >>> XLACustomKernel("tagged", replace=True).def_tags("of this example")
      >>> list(operators("of this example"))
      ['tagged']
    """
    found = dict(_operators)
    known = {tag for op in found.values() for tag in op.tags}
    for tag in tags:
        if not isinstance(tag, str):
            raise ArgumentError(f'operators: a tag is {tag!r}; expected words, as in operators("sparse", "csr").')
        if tag not in known:
            is_name = f"It is the name of an operator: operators()[{tag!r}]." if tag in found else ""
            raise ArgumentError(
                f"operators: no operator of this process has the tag {tag!r}. "
                f"{is_name or did_you_mean(tag, known) or f'There are the tags {sorted(known)}.'} A package registers "
                "its operators when it is imported."
            )
    return MappingProxyType({name: op for name, op in found.items() if op.tags.issuperset(tags)})


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with those of the *known* names that are similar to *name*; an empty text if none is."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
