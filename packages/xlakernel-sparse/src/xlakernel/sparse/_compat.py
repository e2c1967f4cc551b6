"""Differences between the supported versions of JAX."""

from __future__ import annotations

from typing import Any

import jax


def reshard(x: Any, sharding: Any) -> Any:
    """Spread *x* over devices; ``jax.reshard`` since jax 0.8, and ``jax.sharding.reshard`` before."""
    move: Any = jax.reshard if hasattr(jax, "reshard") else jax.sharding.reshard
    return move(x, sharding)
