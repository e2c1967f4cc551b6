"""The operators of this process, by name and by tag."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..errors import ArgumentError, DuplicateNameError, KernelTypeError

_FORBIDDEN = "/\\*?"  # what means something in a path or in a pattern of names

_operators: dict[str, Any] = {}
_lock = threading.Lock()


def register(op: Any, name: str, *, replace: bool) -> None:
    """Give *op* its name; `XLACustomKernel` says what it may be."""
    _check_name(name)
    with _lock:
        if name in _operators and not replace:
            raise DuplicateNameError(
                f"XLACustomKernel: an operator named {name!r} exists. Use that one, xlakernel.core.operators()"
                f"[{name!r}], choose another name, or pass replace=True to take the name over."
            )
        _operators[name] = op


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise KernelTypeError(f"XLACustomKernel: the name is {name!r}; expected a non-empty string.")
    # XLA and JAX take any name. It is also a column of tables, a part of the names of charts, and an argument of the
    # command `xlakernel`, where * and ? stand for other characters and - begins an option.
    wrong = "".join(char for char in dict.fromkeys(name) if char in _FORBIDDEN or not char.isprintable())
    if wrong:
        why = f"in which {', '.join(map(repr, wrong))} cannot be"
    elif name[0] == "-":
        why = "which begins with '-'"
    elif name != name.strip():
        why = "which begins or ends with a space"
    else:
        return
    raise ArgumentError(
        f"XLACustomKernel: the name is {name!r}, {why}. Allowed is all that can be printed, but none of "
        f"{' '.join(_FORBIDDEN)}, no - at the start, and no space at either end."
    )


def operators(*tags: str) -> Mapping[str, Any]:
    """Return the operators of this process, each an `XLACustomKernel`, by name.

    Args:
      *tags: only operators that have all of these (`XLACustomKernel.def_tags`).

    Raises:
      ArgumentError: if no operator at all has one of the tags.

    Example:
      >>> from xlakernel.core import XLACustomKernel, operators
      >>> XLACustomKernel("tagged", replace=True).def_tags("of this example")
      >>> list(operators("of this example"))
      ['tagged']
    """
    found = dict(_operators)
    for tag in tags:
        _check_tag(tag, found)
    return MappingProxyType({name: op for name, op in found.items() if op.tags.issuperset(tags)})


def _check_tag(tag: str, found: Mapping[str, Any]) -> None:
    if not isinstance(tag, str):
        raise ArgumentError(f'operators: a tag is {tag!r}; expected words, as in operators("sparse", "csr").')
    known = {known for op in found.values() for known in op.tags}
    if tag not in known:
        if tag in found:
            advice = f"It is the name of one: operators()[{tag!r}]."
        else:
            advice = did_you_mean(tag, known) or f"There are the tags {sorted(known)}."
        raise ArgumentError(
            f"operators: no operator of this process has the tag {tag!r}. {advice} Operators of a package are there "
            "when it is imported."
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask for those of the names that are known which are like *name*; nothing if none is."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
