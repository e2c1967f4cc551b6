"""Vectors of events times a dense matrix in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def dense_product(outs: Sequence[Any], *, operand: str, across: bool) -> Callable[..., jax.Array]:
    """Return a function ``f(matrix, x)`` that multiplies each row of *x* by the matrix, transposed if *across*.

    Inactive events add nothing, also where the matrix is infinite or NaN.
    """
    (out,) = outs

    def run(matrix: jax.Array, x: jax.Array) -> jax.Array:
        oriented = (matrix.T if across else matrix).astype(out.dtype)

        def of_vector(vector: jax.Array) -> jax.Array:
            terms = oriented if operand == "binary" else vector[:, None] * oriented
            return jnp.where(vector[:, None] != 0, terms, 0).sum(0, dtype=out.dtype)

        return by_matmul(oriented, x, lambda: jax.lax.map(of_vector, x))

    return run


def by_matmul(matrix: jax.Array, x: jax.Array, otherwise: Callable[[], jax.Array]) -> jax.Array:
    """Return ``x @ matrix`` if it is finite, else what *otherwise* returns: a product without zeros times infinity.

    An element of the matrix that is infinite or NaN makes each product of its column infinite or NaN.
    """
    product = jnp.matmul(x.astype(matrix.dtype), matrix, precision="highest")
    found: jax.Array = jax.lax.cond(jnp.isfinite(product).all(), lambda: product, otherwise)
    return found
