"""Checks of the arguments of procedural matrices, and their entries as arrays."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError

from ..kernels.reference.procedural import draw_batch
from ..operators.arguments import as_array, as_integer, check_shape, is_known
from ..operators.connections import BATCH, LEAST, Rule, walk_of
from ..operators.dtypes import check_dtype
from .random import as_number

#: Rows, columns and entries of a row fit into 31 bits, and so do the ends of chunks that extend beyond a line.
_MOST = 2_000_000_000
#: Slots that are drawn at once while a matrix is stored.
_SLOTS = 1 << 22


def checked_shape(caller: str, shape: Any) -> tuple[int, int]:
    """Return *shape* as two Python integers that 31 bits can hold."""
    rows, columns = check_shape(caller, shape)
    if max(rows, columns) > _MOST:
        raise ShapeError(f"{caller}: shape is {(rows, columns)}; there may be up to {_MOST} rows and columns.")
    return rows, columns


def checked_rule(caller: str, distribution: str, probability: Any, per_row: Any) -> Rule:
    """Return the rule; raise `ArgumentError` unless one of *probability* and *per_row* is given and in range."""
    if (probability is None) == (per_row is None):
        raise ArgumentError(f"{caller}: give either probability or per_row; got {probability!r} and {per_row!r}.")
    if per_row is not None:
        number = as_integer(per_row)
        if number is None or not 0 <= number <= _MOST:
            raise ArgumentError(f"{caller}: per_row is {per_row!r}; allowed: integers from 0 to {_MOST}.")
        return Rule(distribution, None, number)
    if isinstance(probability, jax.core.Tracer):
        raise ArgumentError(
            f"{caller}: probability is traced; expected a number, which decides how rows are drawn. Make the matrix "
            "outside of jit, or name the argument in static_argnames. Weights and seed may be traced."
        )
    chance = as_number(probability)
    if not (chance == 0 or LEAST <= chance <= 1):
        raise ArgumentError(f"{caller}: probability is {probability!r}; allowed: 0, and numbers from {LEAST} to 1.")
    return Rule(distribution, chance, None)


def checked_parameters(caller: str, names: tuple[str, ...], given: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    """Return the parameters of the weights as arrays of one dtype, without JAX's weak type."""
    if len(given) != len(names):
        raise InputError(f"{caller}: got {len(given)} parameters; expected {len(names)}: {', '.join(names)}.")
    arrays = [as_array(caller, name, value) for name, value in zip(names, given, strict=True)]
    for name, array in zip(names, arrays, strict=True):
        if array.shape:
            raise ShapeError(f"{caller}: {name} has the shape {array.shape}; expected one number. Map with jax.vmap.")
        check_dtype(caller, name, array.dtype)
        if len(names) == 2 and array.dtype.kind == "c":
            raise DtypeError(f"{caller}: {name} is of dtype {array.dtype}; expected a real number.")
    # Bounds, means and deviations that are integers become floating-point numbers.
    dtype = jnp.result_type(*arrays, *[float] * (len(names) - 1))
    return tuple(array.astype(dtype) for array in arrays)


def seed_words(caller: str, seed: Any) -> jax.Array:
    """Return the two words of a seed: those of an integer, low word first, or two drawn from a key of `jax.random`."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.shape:
            raise InputError(f"{caller}: seed is an array of keys of shape {seed.shape}; expected one. Use jax.vmap.")
        return jax.random.bits(seed, (2,), jnp.uint32)
    if isinstance(seed, jax.Array) and seed.dtype == jnp.uint32 and seed.shape == (2,):  # of jax.random.PRNGKey
        return jax.random.bits(seed, (2,), jnp.uint32)
    number = as_integer(seed) if is_known(seed) else None
    if number is not None and 0 <= number < 2**64:
        return jnp.array([number & 0xFFFFFFFF, number >> 32], jnp.uint32)
    if number is not None or not isinstance(seed, jax.Array) or seed.shape or seed.dtype.kind not in "iu":
        raise InputError(
            f"{caller}: seed is {seed!r:.200} of type {type(seed).__name__}; expected an integer from 0 to 2**64 - 1, "
            "or a key of jax.random, such as jax.random.key(0)."
        )
    high = seed >> 32 if seed.dtype.itemsize == 8 else jnp.zeros_like(seed)
    return jnp.stack([seed, high]).astype(jnp.uint32)


def draw_lines(
    rule: Rule, shape: tuple[int, int], params: jax.Array, seed: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the weights, places and first entries of lines, as arrays of compressed lines.

    Args:
      rule: how lines are drawn.
      shape: the number of lines, and of places in a line.
      params: the parameters of the weights, as kernels take them.
      seed: the key of the words.
    """
    lines, places = shape
    chunks = walk_of(rule, places).chunks
    many = max(1, _SLOTS // max(1, chunks * BATCH))
    parts = [_part(rule, places, params, seed, first, min(many, lines - first)) for first in range(0, lines, many)]
    counts = np.concatenate([np.zeros(1, np.int64), *(part[0] for part in parts)])
    indices = np.concatenate([np.zeros(0, np.int32), *(part[1] for part in parts)])
    indptr = np.cumsum(counts).astype(np.int32 if indices.size < 2**31 else np.int64)
    if rule.homogeneous:
        return params, jnp.asarray(indices), jnp.asarray(indptr)
    data = jnp.concatenate([params[:0], *(part[2] for part in parts)])
    return data, jnp.asarray(indices), jnp.asarray(indptr)


def _part(rule: Rule, places: int, params: jax.Array, seed: jax.Array, first: int, lines: int) -> Any:
    """Return the number of entries of each line, and the places and weights of all of them."""
    walk = walk_of(rule, places)
    start = jnp.zeros((lines, walk.chunks), jnp.int32)
    batches: list[Any] = []
    while (start < walk.length).any():
        *drawn, start = _drawn(rule, places, params, seed, jnp.uint32(first), jnp.uint32(len(batches)), start)
        batches.append(drawn)
    if not batches:
        return np.zeros(lines, np.int64), np.zeros(0, np.int32), params[:0]
    place = np.concatenate([batch[0] for batch in batches], axis=-1)
    is_entry = place < places
    weight = np.zeros(0)
    if not rule.homogeneous:
        weight = np.concatenate([batch[1] for batch in batches], axis=-1)[is_entry]
    return is_entry.sum(axis=(1, 2)), place[is_entry], weight


@functools.partial(jax.jit, static_argnums=(0, 1))
def _drawn(
    rule: Rule, places: int, params: jax.Array, seed: jax.Array, first: Any, batch: Any, start: jax.Array
) -> Any:
    lines = first + jnp.arange(start.shape[0], dtype=jnp.uint32)
    return draw_batch(rule, places, params, seed, lines, batch, start)
