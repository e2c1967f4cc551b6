"""Products of matrices in coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def scatter_entries(
    out: Any, operand: str, data: jax.Array, rows: jax.Array, columns: jax.Array, x: jax.Array
) -> jax.Array:
    """Add ``data[k] * x[columns[k]]`` to ``rows[k]`` for each entry; those with a row out of range are left out."""
    if 0 in (x.shape[0], out.shape[0]):  # all is padding, and JAX gathers nothing from nothing
        return jnp.zeros(out.shape, out.dtype)
    data = data.astype(out.dtype)
    data = data if x.ndim == 1 else data[:, None]
    factor = x.at[columns].get(mode="fill", fill_value=0)
    if operand == "binary":
        terms = jnp.where(factor, data, 0)
    elif operand == "weighted":
        terms = jnp.where(factor != 0, data * factor, 0)
    else:
        terms = data * factor
    return jnp.zeros(out.shape, out.dtype).at[rows].add(terms.astype(out.dtype), mode="drop")


def coo_product(
    outs: Sequence[Any], *, operand: str, shape: tuple[int, int], homogeneous: bool
) -> Callable[..., jax.Array]:
    """Make the product with a vector, or with the columns of a matrix."""

    def run(data: jax.Array, row: jax.Array, col: jax.Array, x: jax.Array) -> jax.Array:
        return scatter_entries(outs[0], operand, data, row, col, x)

    return run
