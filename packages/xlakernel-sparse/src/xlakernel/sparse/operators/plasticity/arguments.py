"""Checks of the arguments of updates: weights, events, traces and limits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import DtypeError, ShapeError

from ..arguments import as_array, strong
from ..dtypes import check_convertible, check_dtype
from ..units import in_unit, split

#: The names of the events and of the trace in messages, for events of rows and of columns.
NAMES = ("pre_spike", "post_trace"), ("post_spike", "pre_trace")


def check_weights(caller: str, weight: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return *weight* as an array with a weight for each entry.

    Raises:
      ShapeError: if *weight* has another shape.
      DtypeError: if its dtype is not supported.
    """
    array = as_array(caller, "weight", weight)
    if array.shape != shape:
        single = " One weight for all entries cannot change for some of them: pass jnp.full(nnz, weight)."
        raise ShapeError(
            f"{caller}: weight has the shape {array.shape}; expected {shape}, one weight for each entry."
            f"{single * (array.size == 1)}"
        )
    return strong(caller, "weight", array)


def in_one_unit(caller: str, axis: int, weight: Any, trace: Any, w_min: Any, w_max: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the weights, the trace and the limits in the unit of the weights, without it; and the unit or None.

    Raises:
      DtypeError: if some have a unit and others have not, or if units are not compatible.
    """
    weight, unit = split(weight)
    trace = in_unit(caller, NAMES[axis][1], trace, unit)
    limits = (
        None if limit is None else in_unit(caller, what, limit, unit)
        for what, limit in (("w_min", w_min), ("w_max", w_max))
    )
    return (weight, trace, *limits), unit


def check_vector(caller: str, what: str, value: Any, length: int, shape: tuple[int, ...]) -> jax.Array:
    """Return *value* as an array with one dimension of this *length*; *shape* is the matrix's."""
    array = as_array(caller, what, value)
    if array.shape != (length,):
        raise ShapeError(
            f"{caller}: {what} has the shape {array.shape}; with a matrix of shape {shape} it must be ({length},)."
        )
    return array


def check_events(caller: str, what: str, value: Any, length: int, shape: tuple[int, ...]) -> jax.Array:
    """Return events as bools, True if active.

    Raises:
      ShapeError: if they have another length.
      DtypeError: if they are neither bools, integers nor real numbers.
    """
    array = check_vector(caller, what, value, length, shape)
    if array.dtype == bool:
        return array
    check_dtype(caller, what, array.dtype)
    if array.dtype.kind == "c":
        raise DtypeError(f"{caller}: {what} is of dtype {array.dtype}; expected bool, integers or real numbers.")
    return array != 0


def check_trace(caller: str, what: str, value: Any, length: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Return a trace that can be added to weights of *dtype*.

    Raises:
      ShapeError: if it has another length.
      DtypeError: if weights of *dtype* cannot hold its numbers.
    """
    array = check_vector(caller, what, value, length, shape)
    check_convertible(caller, what, array.dtype, dtype, "weights")
    return array


def check_limits(caller: str, w_min: Any, w_max: Any, weight: jax.Array) -> tuple[jax.Array, ...]:
    """Return both limits of the dtype of *weight* and of shape ``(1,)`` or that of *weight*; nothing if both are None.

    Raises:
      ShapeError: if a limit does not broadcast to the shape of *weight*.
      DtypeError: if weights have no order, or their dtype cannot hold the limits.
    """
    if w_min is None and w_max is None:
        return ()
    if jnp.issubdtype(weight.dtype, jnp.complexfloating):
        raise DtypeError(f"{caller}: weight is of dtype {weight.dtype}; complex weights have no limits.")
    found = []
    for what, value, none in (("w_min", w_min, -1), ("w_max", w_max, 1)):
        limit = _unlimited(weight.dtype, none) if value is None else as_array(caller, what, value)
        check_convertible(caller, what, limit.dtype, weight.dtype, "weights")
        found.append(_saturated(limit, weight.dtype))
    shape = (1,) if all(limit.ndim == 0 for limit in found) else weight.shape
    try:
        return tuple(jnp.broadcast_to(limit, shape) for limit in found)
    except ValueError:
        raise ShapeError(
            f"{caller}: w_min and w_max have the shapes {found[0].shape} and {found[1].shape}; expected numbers, or "
            f"arrays that broadcast to {weight.shape}, the shape of weight."
        ) from None


def _saturated(limit: jax.Array, dtype: Any) -> jax.Array:
    """Return *limit* in *dtype*; integers beyond its range become the nearest number in it."""
    if jnp.issubdtype(dtype, jnp.integer):
        own, other = np.iinfo(dtype), np.iinfo(limit.dtype)
        limit = jnp.clip(limit, max(own.min, other.min), min(own.max, other.max))
    return limit.astype(dtype)


def _unlimited(dtype: Any, sign: int) -> jax.Array:
    """Return a limit that no number of *dtype* exceeds: a lower one if *sign* is -1, an upper one if it is 1."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.array(sign * jnp.inf, dtype)
    limits = np.iinfo(dtype)
    return jnp.array(limits.min if sign < 0 else limits.max, dtype)
