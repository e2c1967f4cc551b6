"""Products of two matrices in compressed rows in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.multiplication import product_weights_in_jax, sorted_pairs


def product_rows(outs: Sequence[Any], *, columns: int, pairs: int) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start)`` of the first entry of each row of the product."""
    (out,) = outs

    def run(a: jax.Array, a_start: jax.Array, b: jax.Array, b_start: jax.Array) -> jax.Array:
        if not pairs:
            return jnp.zeros(out.shape, out.dtype)
        row, *_, is_new = sorted_pairs(a, a_start, b, b_start, pairs)
        return jnp.cumsum(jnp.zeros(out.shape, out.dtype).at[row + 1].add(is_new.astype(out.dtype)), dtype=out.dtype)

    return run


def product_entries(outs: Sequence[Any], *, pairs: int, **_: int) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start, indptr)`` of the columns of the product's entries."""
    (out,) = outs

    def run(a: jax.Array, a_start: jax.Array, b: jax.Array, b_start: jax.Array, _: jax.Array) -> jax.Array:
        if not out.shape[0]:
            return jnp.zeros(out.shape, out.dtype)
        found = sorted_pairs(a, a_start, b, b_start, pairs)
        indices: jax.Array = found[1][jnp.nonzero(found[-1], size=out.shape[0])[0]]
        return indices.astype(out.dtype)

    return run


def product_weights(outs: Sequence[Any], **static: int) -> Callable[..., Any]:
    """Return a function ``f(a_data, a, a_start, b_data, b, b_start, indices, indptr)`` of the product's weights."""
    return lambda *ins: product_weights_in_jax(*ins, outs=outs, **static)[0]
