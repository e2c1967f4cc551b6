"""Conversion of compressed rows to compressed columns by XLA's stable sort, which on GPUs is a radix sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import first_entries, rows_of_entries


def transpose(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr)`` that returns both arrays of the transpose, and the permutation."""

    def run(indices: jax.Array, indptr: jax.Array) -> Any:
        columns, size = shape[1], indices.shape[0]
        places = jnp.arange(size, dtype=indptr.dtype)
        # Padding is sorted after the last column.
        column, permutation = jax.lax.sort(
            (jnp.where(places < indptr[-1], indices, columns), places), num_keys=1, is_stable=True
        )
        rows = rows_of_entries(indptr, size)[permutation]
        indices_t = jnp.where(column < columns, rows, 0).astype(indices.dtype)
        return indices_t, first_entries(column, columns).astype(indptr.dtype), permutation

    return run


def transpose_with_data(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr)`` that returns the three arrays of the transpose."""
    structure = transpose(outs[1:], shape=shape)

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array) -> Any:
        indices_t, indptr_t, permutation = structure(indices, indptr)
        is_entry = jnp.arange(data.shape[0]) < indptr[-1]
        return jnp.where(is_entry, data[permutation], jnp.zeros((), data.dtype)), indices_t, indptr_t

    return run
