"""Random structures and weights of matrices.

The entries are drawn without replacement from the bits of `jax.random`, by one rule on every device: draw numbers, keep
those that are new, and draw again for the others. This equals drawing one by one until enough are distinct, so all sets
are equally likely. If more than half of the places are entries, the places without entries are drawn instead.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, DtypeError, InputError

from ..operators.arguments import as_array, as_integer, strong
from ..operators.dtypes import SUPPORTED


def draw_structure(
    caller: str, key: Any, shape: tuple[int, int], density: float | None, per_row: int | None
) -> tuple[jax.Array, jax.Array]:
    """Return the row and the column of each entry, sorted by rows, int32.

    Args:
      caller: the function to name in messages.
      key: a key of `jax.random`.
      shape: the matrix's shape, (rows, columns).
      density: the fraction of all places that are entries; or None.
      per_row: the number of entries in each row; or None.
    """
    rows, columns = shape
    most = np.iinfo(np.int32).max
    if max(shape) > most:
        raise ArgumentError(f"{caller}: shape is {shape}; rows and columns are drawn in int32, up to {most} of each.")
    if (density is None) == (per_row is None):
        raise ArgumentError(f"{caller}: give either density or per_row; got {density!r} and {per_row!r}.")
    if per_row is not None:
        number = as_integer(per_row)
        if number is None or not 0 <= number <= columns:
            raise ArgumentError(f"{caller}: per_row is {per_row!r}; allowed: 0 to {columns}, the number of columns.")
        row, col = _distinct_in_rows(key, number, shape)
        return row, col
    if not 0 <= as_number(density) <= 1:
        raise ArgumentError(f"{caller}: density is {density!r}; allowed: numbers from 0 to 1.")
    row, col = _distinct(key, round(as_number(density) * rows * columns), shape)
    return row, col


def as_number(value: Any) -> float:
    """Return *value* as a Python number; NaN for a bool, a text or another type."""
    if isinstance(value, (bool, str, bytes)):
        return math.nan
    try:
        return float(value)
    except jax.errors.ConcretizationTypeError:  # a traced number; JAX's error has advice
        raise
    except (TypeError, ValueError, OverflowError):
        return math.nan


def draw_data(caller: str, key: Any, weights: Any, number: int, dtype: Any) -> jax.Array:
    """Return the weights of *number* entries: one for all of them, or weights that the function *weights* draws."""
    dtype = None if dtype is None else _checked_dtype(caller, dtype)
    if callable(weights):
        shape, drawn = (number,), dtype or jnp.dtype("float32")
        try:
            result = weights(key, shape, drawn)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{caller}: weights, {getattr(weights, '__name__', weights)}, drew nothing of shape {shape} and dtype "
                f"{drawn}: {error}. Expected a number, or a function of (key, shape, dtype) like those of jax.random."
            ) from error
        data = as_array(caller, "the result of weights", result)
        if data.shape not in ((number,), (1,)):
            raise ArgumentError(
                f"{caller}: weights returned an array of shape {data.shape}; expected ({number},), or (1,) for equal "
                "weights."
            )
        return strong(caller, "the result of weights", data)
    try:
        one = jnp.asarray(weights, dtype).reshape(1)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{caller}: weights is {weights!r}; expected a number{f' that {dtype} can hold' if dtype else ''}, or a "
            "function of (key, shape, dtype) like those of jax.random."
        ) from error
    return strong(caller, "weights", one)


def _checked_dtype(caller: str, dtype: Any) -> Any:
    try:
        found = jax.dtypes.canonicalize_dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if found is None or found.name not in SUPPORTED:
        raise DtypeError(f"{caller}: dtype is {dtype!r}; allowed: {', '.join(SUPPORTED)}.")
    return found


def two_keys(caller: str, key: Any) -> tuple[jax.Array, jax.Array]:
    """Return the two keys that a key of `jax.random` is split into."""
    try:
        first, second = _split(key)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{caller}: key is {key!r:.200} of type {type(key).__name__}; expected one key of jax.random, such as "
            "jax.random.key(0)."
        ) from error
    return first, second


@jax.jit
def _split(key: Any) -> Any:
    return jax.random.split(key)


@functools.partial(jax.jit, static_argnums=(1, 2))  # outside of jit each call would compile its while_loop anew
def _distinct(key: Any, number: int, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Draw *number* different places of an array of this shape, sorted."""
    places = math.prod(shape)
    if number > places // 2:
        kept = jnp.ones(shape, bool).at[_draw(key, places - number, shape)].set(False)
        return tuple(along.astype(jnp.int32) for along in jnp.nonzero(kept, size=number))
    return _draw(key, number, shape)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _distinct_in_rows(key: Any, number: int, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """Draw *number* different columns for each row, sorted."""
    rows, columns = shape
    places = jax.vmap(lambda key: _distinct(key, number, (columns,))[0])(jax.random.split(key, rows))
    return jnp.repeat(jnp.arange(rows, dtype=jnp.int32), number), places.reshape(-1)


def _draw(key: Any, number: int, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """Draw *number* different places, sorted; the expected number of rounds is small for up to half of all places."""
    if not number:
        return (jnp.zeros(0, jnp.int32),) * len(shape)

    def again(state: Any) -> Any:
        key, place, fresh = state
        key, *keys = jax.random.split(key, 1 + len(shape))
        drawn = [jax.random.randint(k, (number,), 0, n, jnp.int32) for k, n in zip(keys, shape, strict=True)]
        place = [jnp.where(fresh, new, old) for new, old in zip(drawn, place, strict=True)]
        place = tuple(jax.lax.sort(place, num_keys=len(shape)))
        same = jnp.stack([along[1:] == along[:-1] for along in place]).all(axis=0)
        return key, place, jnp.concatenate([jnp.zeros(1, bool), same])

    state = key, (jnp.zeros(number, jnp.int32),) * len(shape), jnp.ones(number, bool)
    place: tuple[jax.Array, ...] = jax.lax.while_loop(lambda state: state[2].any(), again, state)[1]
    return place
