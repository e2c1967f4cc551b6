"""Coordinates of the entries of a compressed matrix."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import export


@functools.partial(jax.jit, static_argnums=1)
def rows_of_entries(indptr: jax.Array, entries: int) -> jax.Array:
    """Return the row of each entry, ``(entries,)``, of the dtype of *indptr*; for padding, the number of rows."""
    # An entry's row is the number of rows that end before the entry; empty rows end where they begin.
    ends = jnp.zeros(entries + 1, indptr.dtype).at[indptr[1:]].add(1, mode="drop")
    return jnp.cumsum(ends[:entries], dtype=indptr.dtype)


def first_entries(lines: jax.Array, count: int) -> jax.Array:
    """Return the first entry of each of *count* lines, and the end; *lines* are the sorted lines of the entries."""
    if export.is_symbolic_dim(lines.shape[0]):  # `searchsorted` needs a known number of steps
        return jnp.cumsum(jnp.zeros(count + 1, lines.dtype).at[lines + 1].add(1, mode="drop"))
    return jnp.searchsorted(lines, jnp.arange(count + 1, dtype=lines.dtype))


@jax.jit
def in_order(array: jax.Array, entries: jax.Array) -> jax.Array:
    """Return the elements of *array* at the indices *entries*."""
    return array[entries]
