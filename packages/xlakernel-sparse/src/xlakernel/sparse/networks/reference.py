"""The random numbers of `xlakernel.sparse.networks` in plain JAX, for references of neurons' functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .random_streams import INCREMENTS, MULTIPLIERS, NORMAL, PARTS, POISSON, RECIPROCALS, ROUNDS, SHARE, UNIFORM


def _product(a: Any, b: int) -> tuple[jax.Array, jax.Array]:
    """Return the upper and the lower 32 bits of the product of uint32 numbers."""
    low_a, high_a = a & 0xFFFF, a >> 16
    low_b, high_b = jnp.uint32(b & 0xFFFF), jnp.uint32(b >> 16)
    low, across, back, high = low_a * low_b, high_a * low_b, low_a * high_b, high_a * high_b
    middle = (low >> 16) + (across & 0xFFFF) + back
    return high + (across >> 16) + (middle >> 16), a * jnp.uint32(b)


def philox(rng: Any, draw: Any, kind: Any) -> tuple[jax.Array, ...]:
    """Return four words of 32 random bits for each neuron, uint32."""
    key0, key1, a, b = (jnp.asarray(value).astype(jnp.uint32) for value in rng)
    c, d = jnp.asarray(draw).astype(jnp.uint32), jnp.asarray(kind).astype(jnp.uint32)
    for _ in range(ROUNDS):
        left_high, left = _product(a, MULTIPLIERS[0])
        right_high, right = _product(c, MULTIPLIERS[1])
        a, b, c, d = right_high ^ b ^ key0, right, left_high ^ d ^ key1, left
        key0, key1 = key0 + jnp.uint32(INCREMENTS[0]), key1 + jnp.uint32(INCREMENTS[1])
    return a, b, c, d


def _fraction(word: jax.Array) -> jax.Array:
    return (word >> 8).astype(jnp.float32) * np.float32(2.0**-24)


def uniform(rng: Any, draw: int) -> jax.Array:
    """Return the numbers of `xlakernel.sparse.networks.uniform`, float32."""
    return _fraction(philox(rng, draw >> 2, UNIFORM)[draw & 3])


def normal(rng: Any, draw: int) -> jax.Array:
    """Return the numbers of `xlakernel.sparse.networks.normal`, float32, up to rounding."""
    a, b, _, _ = philox(rng, draw, NORMAL)
    radius = jnp.sqrt(np.float32(-2.0) * jnp.log(np.float32(1.0) - _fraction(a)))
    found: jax.Array = radius * jnp.cos(np.float32(2 * np.pi) * _fraction(b))
    return found


def poisson(rng: Any, draw: int, mean: Any) -> jax.Array:
    """Return the numbers of `xlakernel.sparse.networks.poisson`, int32, up to rounding.

    Probabilities are float64 if JAX's 64-bit types are on, as on the other backends, else float32.
    """

    def following(carry: Any) -> Any:
        rest, count, part = carry
        share = jnp.clip(rest, 0, SHARE)
        fraction = (philox(rng, draw, POISSON + 4 * part)[0].astype(rest.dtype) + 0.5) * 2.0**-32
        return rest - share, count + _inverse(fraction, share), part + 1

    def has_rest(carry: Any) -> jax.Array:
        has_more: jax.Array = jnp.any(carry[0] > 0) & (carry[2] < PARTS)
        return has_more

    rest = jnp.broadcast_to(mean, jnp.shape(rng[2])).astype(jnp.result_type(float))
    start = rest, jnp.zeros(rest.shape, jnp.int32), jnp.uint32(0)
    found: jax.Array = jax.lax.while_loop(has_rest, following, start)[1]
    return found


def _inverse(fraction: jax.Array, mean: jax.Array) -> jax.Array:
    reciprocals = jnp.asarray(RECIPROCALS, mean.dtype)

    def has_more(carry: Any) -> jax.Array:
        fraction, probability, count = carry
        is_open: jax.Array = (fraction > probability) & (count < len(RECIPROCALS)) & (mean > 0)
        return is_open

    def following(carry: Any) -> Any:
        fraction, probability, count = carry
        more = has_more(carry)
        factor = jnp.where(more, mean * reciprocals[jnp.minimum(count, len(RECIPROCALS) - 1)], 1)
        return jnp.where(more, fraction - probability, fraction), probability * factor, count + more

    start = fraction, jnp.exp(-mean), jnp.zeros(mean.shape, jnp.int32)
    found: jax.Array = jax.lax.while_loop(lambda carry: jnp.any(has_more(carry)), following, start)[2]
    return found
