"""What a kernel does with one element: the weight of an entry, and which elements of an operand count.

A matrix whose entries are all equal gives its weight as an array of shape (1, 1), any other as a vector. Numba drops
the branches on ``ndim`` that an array cannot take before it looks at types, so one function serves both. (An array
without dimensions would say it better, but inside ``prange`` Numba hands those on as scalars.)
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
    """Return an index, which is not negative, as an unsigned number of the same width."""
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
def equal_weight(data, like):
    """Return the weight of all entries in the dtype of *like*, if they have the same, and otherwise 0.

    It is read before a loop. In one, the LLVM of Numba 0.61 makes a gather of it that it then takes to be broken.
    """
    if data.ndim == 2:
        return cast(data[0, 0], like)
    return cast(0, like)


@njit
def weight(data, k, equal, like):
    """Return the weight of entry *k* in the dtype of *like*; *equal* is what `equal_weight` returns."""
    if data.ndim == 2:
        return equal
    return cast(data[k], like)


# Where a row is scattered, an equal weight is multiplied in once, before the row, and not at each entry.


@njit(fastmath={"contract"})
def scale_once(data, value, like):
    """Return *value* times the weight, if all entries have the same."""
    if data.ndim == 2:
        return cast(cast(data[0, 0], like) * value, like)
    return value


@njit(fastmath={"contract"})
def scale_each(data, k, value, like):
    """Return *value* times the weight of entry *k*, if each has its own."""
    if data.ndim == 2:
        return value
    return cast(cast(data[k], like) * value, like)


def term(weight, value, active):
    """Return *weight* times *value*, where True counts as 1.

    If *active* is not None, the result is 0 where *value* is 0, whatever the weight; for a bool it always is.
    """
    raise NotImplementedError


@overload(term, jit_options={"fastmath": {"contract", "reassoc", "nsz"}})
def _term(weight, value, active):
    if isinstance(value, types.Boolean):
        return lambda weight, value, active: weight if value else type(weight)(0)
    if isinstance(active, types.NoneType):
        return lambda weight, value, active: weight * value
    return lambda weight, value, active: weight * value if value != 0 else type(weight)(0)
