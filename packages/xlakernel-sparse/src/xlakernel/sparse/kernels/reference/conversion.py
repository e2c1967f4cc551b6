"""The structure of the transposed matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries


def transpose(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., list[jax.Array]]:
    """Make the conversion of a structure; see `transpose_with_data`."""

    def run(indices: jax.Array, indptr: jax.Array) -> list[jax.Array]:
        rows = rows_of_entries(indptr, indices.shape[0])
        # Padding sorts behind the last column.
        columns = jnp.where(rows < shape[0], indices, shape[1])
        permutation = jnp.argsort(columns, stable=True)
        new_indices = jnp.where(rows < shape[0], rows, 0)[permutation]
        counts = jnp.zeros(shape[1], indptr.dtype).at[columns].add(1, mode="drop")
        new_indptr = jnp.concatenate([jnp.zeros(1, indptr.dtype), jnp.cumsum(counts, dtype=indptr.dtype)])
        found = (new_indices, new_indptr, permutation)
        return [x.astype(out.dtype) for x, out in zip(found, outs, strict=True)]

    return run


def transpose_with_data(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., list[jax.Array]]:
    """Make the conversion to compressed columns, in which rows ascend."""
    out_data, *out_structure = outs

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array) -> list[jax.Array]:
        structure = transpose([*out_structure, out_structure[1]], shape=shape)
        new_indices, new_indptr, permutation = structure(indices, indptr)
        is_entry = jnp.arange(data.shape[0]) < indptr[-1]
        return [jnp.where(is_entry, data[permutation], 0).astype(out_data.dtype), new_indices, new_indptr]

    return run
