"""The limits of weights."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def within(weights: jax.Array, limits: Sequence[jax.Array]) -> jax.Array:
    """Return *weights*, with those below or above the *limits*, a pair or none, replaced by the limit; NaN stays."""
    if not limits:
        return weights
    lower, upper = limits
    weights = jnp.where(weights < lower, lower, weights)
    return jnp.where(weights > upper, upper, weights)
