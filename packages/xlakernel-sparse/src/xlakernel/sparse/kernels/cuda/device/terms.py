"""The term that one entry of a matrix adds to a result, for each kind of operand.

With a *dense* operand every product is added. With *binary* and *weighted* events, entries at inactive events add
nothing, even if their weight is infinite or NaN.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from .memory import load


def term(operand: str, kind: type) -> Any:
    """Return a device function ``f(weight, value)`` that returns the term of an entry."""
    zero = kind(0)

    @cuda.jit(device=True, forceinline=True)
    def dense(weight: Any, value: Any) -> Any:
        return kind(weight * value)

    @cuda.jit(device=True, forceinline=True)
    def weighted(weight: Any, value: Any) -> Any:
        return kind(weight * value) if value != 0 else zero

    @cuda.jit(device=True, forceinline=True)
    def binary(weight: Any, value: Any) -> Any:
        return kind(weight) if value else zero

    return {"dense": dense, "weighted": weighted, "binary": binary}[operand]


def counts(operand: str) -> Any:
    """Return a device function ``f(value)`` that returns True if a value of the operand is active."""

    @cuda.jit(device=True, forceinline=True)
    def always(value: Any) -> Any:
        return True

    @cuda.jit(device=True, forceinline=True)
    def where_not_zero(value: Any) -> Any:
        return value != 0

    return always if operand == "dense" else where_not_zero


def value_at(operand: str) -> Any:
    """Return a device function ``f(x, row)`` that returns the value of an active row; True for binary events."""

    @cuda.jit(device=True, forceinline=True)
    def active(x: Any, row: Any) -> Any:
        return True

    @cuda.jit(device=True, forceinline=True)
    def own(x: Any, row: Any) -> Any:
        return load(x, row)

    return active if operand == "binary" else own


def weight_at(*, homogeneous: bool) -> Any:
    """Return a device function ``f(data, entry)`` that returns the weight of an entry."""

    @cuda.jit(device=True, forceinline=True)
    def first(data: Any, entry: Any) -> Any:
        return load(data, 0)

    @cuda.jit(device=True, forceinline=True)
    def own(data: Any, entry: Any) -> Any:
        return load(data, entry)

    return first if homogeneous else own
