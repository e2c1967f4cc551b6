"""Which calls are alike, and share what ``backend="auto"`` measured."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .operator.dispatch import Static

_SMALLEST_SIZE = 16  # a static integer up to here may be a mode or an axis, and is not rounded

_Types = tuple[tuple[tuple[Any, ...], Any], ...]  # shapes and dtypes


@functools.lru_cache(maxsize=4096)
def describe_call(inputs: _Types, outs: _Types, static: Static) -> str:
    """Return the same text for calls that share a choice.

    What a sparse operator costs depends on values too, on how many events there are: nothing of that is in here.
    """
    types = [" ".join(f"{dtype}[{','.join(map(_bucket, shape))}]" for shape, dtype in row) for row in (inputs, outs)]
    keywords = "".join(f"; {name}={_describe_static(value)}" for name, value in static.items)
    return " -> ".join(types) + keywords


def _bucket(extent: Any) -> str:
    if not isinstance(extent, (int, np.integer)):
        return str(extent)  # symbolic, under jax.export
    return str(1 << (int(extent) - 1).bit_length() if extent > 0 else 0)


def _describe_static(value: Any) -> str:
    """Return a static value as text; an integer that can only be a size is rounded as sizes are."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe_static, value))})"
    if type(value) is int and value > _SMALLEST_SIZE:
        return _bucket(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # where a function lies is another place in each process
