"""Extents of a launch, such as its grid: an integer, a tuple of integers, or a function that returns either."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import LaunchError
from .structs import Struct, of_structs


def resolve(
    kernel: str,
    what: str,
    given: Callable[..., Any],
    inputs: Sequence[Struct],
    *,
    most: int = 3,
    scalars: Mapping[str, Any] | None = None,
) -> tuple[int, ...]:
    """Call the user's function for *what* with the inputs and the scalars that it names; return the extents."""
    found = of_structs(kernel, what, given, inputs, scalars=scalars, kind=LaunchError)
    return extents(kernel, what, found, most=most, returned=True)


def extents(kernel: str, what: str, value: Any, *, most: int = 3, returned: bool = False) -> tuple[int, ...]:
    """Return the user's value for *what*, 1 to *most* integers, as a tuple; raise `LaunchError` for other values."""
    subject = f"{what} {'returned' if returned else 'is'} {value!r}"
    allowed = "a non-negative integer" if most == 1 else f"a non-negative integer, or a tuple of 1 to {most}"
    several = most > 1 and isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))
    items = list(value) if several else [value]
    if not 1 <= len(items) <= most:
        hint = "" if items else " That is the shape of a 0-d array: give 1 for it."
        raise LaunchError(f"{kernel}: {subject}, of {len(items)} dimensions; expected {allowed}.{hint}")
    found = []
    for item in items:
        if isinstance(item, (bool, np.bool_)) or not isinstance(item, (int, np.integer)):
            hint = " Write // in place of /." if isinstance(item, (float, np.floating)) else ""
            raise LaunchError(f"{kernel}: {subject}; expected {allowed}.{hint}")
        if item < 0:
            raise LaunchError(f"{kernel}: {subject}; expected {allowed}.")
        found.append(operator.index(item))
    return tuple(found)
