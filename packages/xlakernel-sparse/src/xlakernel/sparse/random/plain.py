"""Philox4x32-10 in plain JAX: the numbers of `philox`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of Philox4x32-10. They are here since `philox` imports Numba, which a program without Numba kernels never loads.
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def product(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
    """Return the upper and the lower 32 bits of the product of uint32 numbers."""
    a, b = jnp.uint32(a), jnp.uint32(b)
    low_a, high_a, low_b, high_b = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    low, across, back, high = low_a * low_b, high_a * low_b, low_a * high_b, high_a * high_b
    middle = (low >> 16) + (across & 0xFFFF) + back
    return high + (across >> 16) + (middle >> 16), a * b


def philox(key0: Any, key1: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[jax.Array, ...]:
    """Return four words of 32 random bits for a key of two words and a counter of four, all uint32."""
    for _ in range(ROUNDS):
        left_high, left = product(a, MULTIPLIERS[0])
        right_high, right = product(c, MULTIPLIERS[1])
        a, b, c, d = right_high ^ b ^ key0, right, left_high ^ d ^ key1, left
        key0, key1 = key0 + jnp.uint32(INCREMENTS[0]), key1 + jnp.uint32(INCREMENTS[1])
    return a, b, c, d


def fraction(word: jax.Array) -> jax.Array:
    """Return the upper 24 bits of a word as a float32 in [0, 1)."""
    return (word >> 8).astype(jnp.float32) * np.float32(2.0**-24)


def normals(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two normal numbers from two words, by the Box-Muller transform, float32."""
    radius = jnp.sqrt(np.float32(-2.0) * jnp.log(np.float32(1.0) - fraction(first)))
    angle = np.float32(2 * np.pi) * fraction(second)
    return radius * jnp.cos(angle), radius * jnp.sin(angle)
