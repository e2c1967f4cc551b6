"""What the layouts of a matrix share, in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rows_of(indptr: jax.Array, size: int) -> jax.Array:
    """Return the row of each of *size* entries; of what is behind them, the number of rows."""
    ends = jnp.zeros(size + 1, indptr.dtype).at[indptr[1:]].add(1)
    return jnp.cumsum(ends[:size], dtype=indptr.dtype)
