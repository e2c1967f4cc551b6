"""The slots of a ring buffer."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def slots_of(delays: jax.Array, t: jax.Array, slots: int) -> jax.Array:
    """Return the slots of entries that are delivered in slot *t*; sums of large delays cannot overflow."""
    return (jnp.remainder(delays, slots) + t.astype(delays.dtype)) % slots
