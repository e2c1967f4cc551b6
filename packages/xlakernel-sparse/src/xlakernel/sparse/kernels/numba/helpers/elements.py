"""Arithmetic of one element: the weight of an entry, and its product with an element of the operand.

Weights are a vector, or an array of shape (1, 1) if all entries are equal. Numba prunes branches on ``ndim`` before it
infers types, so that one function compiles for both. (An array without dimensions would be converted to a scalar inside
``prange``.)
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import intrinsic, overload


@intrinsic
def cast(typing: Any, value: Any, array: Any) -> Any:
    """Return *value* in the dtype of *array*; 16-bit floats widen exactly."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], signature.return_type)

    return array.dtype(value, array), generate


def unsigned(index):
    """Return a nonnegative index as an unsigned number of the same width."""
    raise NotImplementedError


@overload(unsigned)
def _unsigned(index):
    wide = types.uint32 if index.bitwidth == 32 else types.uint64
    return lambda index: wide(index)


@njit
def zero(array):
    """Return 0 in the dtype of *array*."""
    return cast(0, array)


@njit
def shared_weight(data, like):
    """Return the weight that all entries share, in the dtype of *like*; 0 if each entry has its own weight.

    Call it before a loop: inside a loop, the LLVM of Numba 0.61 makes the load a gather, which it rejects as invalid.
    """
    if data.ndim == 2:
        return cast(data[0, 0], like)
    return cast(0, like)


@njit
def weight(data, k, shared, like):
    """Return the weight of entry *k* in the dtype of *like*; *shared* is the result of `shared_weight`."""
    if data.ndim == 2:
        return shared
    return cast(data[k], like)


# When a row is scattered, a weight that all entries share is applied once, before the row.


@njit(fastmath={"contract"})
def scale_once(data, value, like):
    """Return *value*, multiplied by the weight if all entries share one weight."""
    if data.ndim == 2:
        return cast(cast(data[0, 0], like) * value, like)
    return value


@njit(fastmath={"contract"})
def scale_each(data, k, value, like):
    """Return *value*, multiplied by the weight of entry *k* if each entry has its own weight."""
    if data.ndim == 2:
        return value
    return cast(cast(data[k], like) * value, like)


def term(weight, value, active):
    """Return *weight* times *value*, where True counts as 1.

    If *active* is not None or *value* is a bool, the result is 0 where *value* is 0 or False, for any weight.
    """
    raise NotImplementedError


@overload(term, jit_options={"fastmath": {"contract", "reassoc", "nsz"}})
def _term(weight, value, active):
    if isinstance(value, types.Boolean):
        return lambda weight, value, active: weight if value else type(weight)(0)
    if isinstance(active, types.NoneType):
        return lambda weight, value, active: weight * value
    return lambda weight, value, active: weight * value if value != 0 else type(weight)(0)
