"""Lines of a compressed matrix as dense vectors in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries


def slice_rows(outs: Sequence[Any], *, shape: tuple[int, int], homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, rows)`` that returns these rows as a dense matrix.

    Rows out of range are zeros.
    """
    (out,) = outs

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array, rows: jax.Array) -> jax.Array:
        if 0 in (*indices.shape, *rows.shape, *shape):
            return jnp.zeros(out.shape, out.dtype)
        slot = _slots(rows, shape[0])
        line = slot[rows_of_entries(indptr, indices.shape[0])]
        weights = jnp.broadcast_to(data.astype(out.dtype), indices.shape)
        dense = jnp.zeros(out.shape, out.dtype).at[line, indices].add(weights, mode="drop")
        return dense.at[_slots_of(slot, rows)].get(mode="fill", fill_value=0)

    return run


def gather_rows(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr, rows, dense)``, the transpose of `slice_rows` for the weights."""
    (out,) = outs

    def run(indices: jax.Array, indptr: jax.Array, rows: jax.Array, dense: jax.Array) -> jax.Array:
        if 0 in (*out.shape, *rows.shape, *shape):
            return jnp.zeros(out.shape, out.dtype)
        slot = _slots(rows, shape[0])
        sums = jnp.zeros_like(dense).at[_slots_of(slot, rows)].add(dense, mode="drop")
        return sums.at[slot[rows_of_entries(indptr, out.shape[0])], indices].get(mode="fill", fill_value=0)

    return run


def _slots(rows: jax.Array, count: int) -> jax.Array:
    """Return a position of each of *count* rows in *rows*, and of the row of padding; out of range if there is none."""
    positions = jnp.arange(rows.shape[0], dtype=jnp.int32)
    inside = jnp.where((rows >= 0) & (rows < count), rows, count + 1)
    return jnp.full(count + 1, rows.shape[0], jnp.int32).at[inside].set(positions, mode="drop")


def _slots_of(slot: jax.Array, rows: jax.Array) -> jax.Array:
    """Return the position that stands for each of *rows*, the same for equal rows; out of range if there is no row."""
    inside = (rows >= 0) & (rows < slot.shape[0] - 1)
    return jnp.where(inside, slot[jnp.where(inside, rows, 0)], rows.shape[0])


def diagonal(outs: Sequence[Any], *, offset: int, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr)`` that returns the elements with ``column - row == offset``."""
    (out,) = outs
    top = max(0, -offset)

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array) -> jax.Array:
        if not out.shape[0]:
            return jnp.zeros(out.shape, out.dtype)
        row = rows_of_entries(indptr, indices.shape[0])
        place = jnp.where((indices - row == offset) & (row >= top), row - top, out.shape[0])
        return jnp.zeros(out.shape, out.dtype).at[place].add(data.astype(out.dtype), mode="drop")

    return run
