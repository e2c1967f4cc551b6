"""Differences between the supported versions of JAX."""

from __future__ import annotations

from typing import Any

import jax


def reshard(x: Any, sharding: Any) -> Any:
    """Spread *x* over devices: by ``jax.reshard`` since jax 0.8, and by ``jax.sharding.reshard`` before.

    ``jax.sharding.reshard`` refuses arrays on one device, so ``jax.device_put`` moves arrays that are not traced.
    """
    if hasattr(jax, "reshard"):
        return jax.reshard(x, sharding)
    move: Any = jax.sharding.reshard if isinstance(x, jax.core.Tracer) else jax.device_put
    return move(x, sharding)
