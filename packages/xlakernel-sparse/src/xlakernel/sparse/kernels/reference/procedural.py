"""Products of procedural matrices: all lines are drawn at once, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.connections import BATCH, LOGARITHM, PLACES, WEIGHTS, Rule, Walk, walk_of
from ...random.plain import fraction, normals, philox, product
from .products import scatter_entries


def _words(key: jax.Array, batch: Any, chunk: jax.Array, line: jax.Array, kind: int) -> jax.Array:
    """Return the words of the slots of a batch, with the slots along a new last axis."""
    group = jnp.arange(BATCH // 4, dtype=jnp.uint32) + jnp.uint32(batch) * jnp.uint32(BATCH // 4)
    counter = (group, chunk[..., None], line[..., None], jnp.uint32(kind))
    words = jnp.stack(jnp.broadcast_arrays(*philox(key[0], key[1], *counter)), axis=-1)
    return words.reshape(*words.shape[:-2], BATCH)


def _gaps(words: jax.Array, walk: Walk) -> jax.Array:
    odd = words | jnp.uint32(1)
    zeros = jax.lax.clz(odd)
    f = odd << zeros << 1
    power = jnp.full_like(f, LOGARITHM[-1])
    for coefficient in LOGARITHM[-2::-1]:
        power = jnp.uint32(coefficient) - product(f, power)[0]
    below = (jnp.uint32(0x7FFFFFFF) - product(f, power)[0]) >> 4
    return jnp.minimum(product(zeros << 27 | below, walk.multiplier)[0] >> walk.shift, jnp.uint32(walk.length))


def _weights(params: jax.Array, words: jax.Array, walk: Walk) -> jax.Array:
    if walk.is_normal:
        drawn = jnp.stack(normals(words[..., ::2], words[..., 1::2]), axis=-1).reshape(words.shape)
    else:
        drawn = fraction(words)
    return params[0] + params[1] * drawn.astype(params.dtype)


def draw_batch(
    rule: Rule, places: int, params: jax.Array, key: jax.Array, lines: jax.Array, batch: Any, start: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw the entries of a batch of slots in each chunk of some lines.

    Args:
      rule: how lines are drawn.
      places: the number of places of a line.
      params: the weight of all entries, or two parameters of the distribution.
      key: two words.
      lines: the lines, uint32.
      batch: the number of the batch.
      start: for each line and chunk, the place within the chunk that follows the entries of earlier batches, int32.

    Returns:
      The places of the slots, (lines, chunks, slots), *places* for slots without an entry; their weights, in an array
      that can be broadcast to the same shape; and *start* for the following batch, at least the number of places of a
      chunk if the chunk has no more.
    """
    walk = walk_of(rule, places)
    line, chunk = jnp.broadcast_arrays(lines[:, None], jnp.arange(walk.chunks, dtype=jnp.uint32))
    words = _words(key, batch, chunk, line, PLACES)
    base = chunk[..., None].astype(jnp.int32) * walk.length
    slot = jnp.arange(BATCH)
    if walk.number:
        place = product(words, places)[0].astype(jnp.int32)
        place = jnp.where(base + slot < walk.number, place, places)
        following = jnp.full(start.shape, walk.length)
    else:
        local = start[..., None] + jnp.cumsum(_gaps(words, walk).astype(jnp.int32), axis=-1, dtype=jnp.int32) + slot
        # A comparison before the addition, which may overflow.
        place = jnp.where(local < jnp.minimum(walk.length, places - base), base + local, places)
        following = local[..., -1] + 1
    weights = params if rule.homogeneous else _weights(params, _words(key, batch, chunk, line, WEIGHTS), walk)
    return place, weights, following.astype(start.dtype)


def procedural_product(
    outs: Sequence[Any], *, operand: str, shape: tuple[int, int], transpose: bool, rule: Rule
) -> Callable[..., jax.Array]:
    """Return a function ``f(params, key, x)`` that multiplies a matrix of drawn rows, or its transpose, by *x*."""
    (out,) = outs
    rows, columns = shape
    walk = walk_of(rule, columns)

    def run(params: jax.Array, key: jax.Array, x: jax.Array) -> jax.Array:
        lines = jnp.arange(rows, dtype=jnp.uint32)

        def add_batch(carry: Any) -> Any:
            y, batch, start = carry
            place, weights, following = draw_batch(rule, columns, params, key, lines, batch, start)
            weights = jnp.broadcast_to(weights, place.shape)
            row = jnp.broadcast_to(jnp.arange(rows)[:, None, None], place.shape)
            target, source = (place, row) if transpose else (row, place)
            y = y + scatter_entries(out, operand, weights.reshape(-1), target.reshape(-1), source.reshape(-1), x)
            return y, batch + 1, following

        def has_more(carry: Any) -> jax.Array:
            return jnp.any(carry[2] < walk.length)

        start = jnp.zeros((rows, walk.chunks), jnp.int32)
        y: jax.Array = jax.lax.while_loop(has_more, add_batch, (jnp.zeros(out.shape, out.dtype), jnp.uint32(0), start))[
            0
        ]
        return y

    return run
