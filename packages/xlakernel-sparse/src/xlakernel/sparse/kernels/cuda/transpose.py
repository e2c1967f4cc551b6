"""From rows to columns: the structure of the transpose, by XLA's own sort, which is stable and a radix sort on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries


def transpose(outs: Sequence[jax.ShapeDtypeStruct], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return ``f(indices, indptr) -> (indices_t, indptr_t, permutation)``, the structure of the transpose.

    Entry ``q`` of the transpose is entry ``permutation[q]`` of the matrix; within a column the entries are in the order
    that they had. What is behind the entries stays there.

    Args:
      outs: the three results.
      shape: rows and columns of the matrix.
    """

    def convert(indices: Any, indptr: Any) -> Any:
        columns = shape[1]
        size = indices.size
        places = jnp.arange(size, dtype=indptr.dtype)
        column, permutation = jax.lax.sort(
            (jnp.where(places < indptr[-1], indices, columns), places), num_keys=1, is_stable=True
        )
        indptr_t = jnp.searchsorted(column, jnp.arange(columns + 1, dtype=column.dtype)).astype(indptr.dtype)
        row = rows_of_entries(indptr, size)[permutation]
        indices_t = jnp.where(column < columns, row, 0).astype(indices.dtype)
        return indices_t, indptr_t, permutation

    return convert


def transpose_with_data(outs: Sequence[jax.ShapeDtypeStruct], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr) -> (data_t, indices_t, indptr_t)``, the transpose; see `transpose`."""
    structure = transpose(outs[1:], shape=shape)

    def convert(data: Any, indices: Any, indptr: Any) -> Any:
        indices_t, indptr_t, permutation = structure(indices, indptr)
        places = jnp.arange(indices.size, dtype=indptr.dtype)
        moved = jnp.where(places < indptr_t[-1], data[permutation], jnp.zeros((), data.dtype))
        return moved, indices_t, indptr_t

    return convert
