"""Merged structures of two matrices in compressed rows in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries


def merge_rows(outs: Sequence[Any], *, common: bool) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start)`` of the first entry of each row of the merged structure."""
    (out,) = outs

    def run(*structures: jax.Array) -> jax.Array:
        row, *_, is_kept = _merged(*structures, common=common)
        counts = jnp.zeros(out.shape, out.dtype).at[row + 1].add(is_kept.astype(out.dtype), mode="drop")
        return jnp.cumsum(counts, dtype=out.dtype)

    return run


def merge_entries(outs: Sequence[Any], *, common: bool) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start, indptr)`` of the columns and entries of the merged structure."""

    def run(a: jax.Array, a_start: jax.Array, b: jax.Array, b_start: jax.Array, _: jax.Array) -> Any:
        if not outs[0].shape[0]:
            return [jnp.zeros(out.shape, out.dtype) for out in outs]
        _, *merged, is_kept = _merged(a, a_start, b, b_start, common=common)
        (places,) = jnp.nonzero(is_kept, size=outs[0].shape[0])
        return [array[places].astype(out.dtype) for array, out in zip(merged, outs, strict=True)]

    return run


def _merged(a: jax.Array, a_start: jax.Array, b: jax.Array, b_start: jax.Array, *, common: bool) -> Any:
    """Return the row, the column and the entries in both matrices of each entry's place, and where a place is kept."""
    row = jnp.concatenate([rows_of_entries(start, of.size) for of, start in ((a, a_start), (b, b_start))])
    row, column, entry = jax.lax.sort((row, jnp.concatenate([a, b]), jnp.arange(row.size)), num_keys=2, is_stable=True)
    # Entries of one place are neighbours, that of the first matrix in front.
    is_second = (row == jnp.roll(row, 1)) & (column == jnp.roll(column, 1)) & (entry >= a.size) & (row.size > 1)
    is_pair = jnp.roll(is_second, -1)
    first = jnp.where(entry < a.size, entry, a.size)
    second = jnp.where(is_pair, jnp.roll(entry, -1) - a.size, jnp.where(entry < a.size, b.size, entry - a.size))
    return row, column, first, second, is_pair if common else ~is_second
