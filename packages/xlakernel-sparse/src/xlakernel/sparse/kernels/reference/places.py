"""Places of the entries of a compressed structure in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries


def entry_rows(outs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function ``f(indptr)`` that returns the row of each entry; for padding, the number of rows."""
    return lambda indptr: rows_of_entries(indptr, outs[0].shape[0])


def descents(outs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr)`` that counts the entries that are not in ascending order."""

    def run(indices: jax.Array, indptr: jax.Array) -> jax.Array:
        row = rows_of_entries(indptr, indices.shape[0])
        falls = (indices[1:] <= indices[:-1]) & (row[1:] == row[:-1]) & (row[1:] < indptr.shape[0] - 1)
        return jnp.sum(falls, dtype=outs[0].dtype)

    return run


def first_of_places(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr)`` of the first entry of each entry's place.

    Its results are the number of this entry, and how many entries are not the first of their place.
    """

    def run(indices: jax.Array, indptr: jax.Array) -> Any:
        size = indices.shape[0]
        row = rows_of_entries(indptr, size)
        entry = jnp.arange(size, dtype=outs[0].dtype)
        # The sort is stable: the first of equal places is the one with the least number.
        row, column, order = jax.lax.sort((row, indices, entry), num_keys=2, is_stable=True)
        is_new = jnp.ones(size, bool).at[1:].set((row[1:] != row[:-1]) | (column[1:] != column[:-1]))
        is_new |= row == shape[0]  # each entry of padding has a place of its own
        start = jax.lax.cummax(jnp.where(is_new, entry, 0))
        first = jnp.zeros_like(order).at[order].set(order[start], unique_indices=True)
        return first, jnp.sum(~is_new, dtype=outs[1].dtype)

    return run
