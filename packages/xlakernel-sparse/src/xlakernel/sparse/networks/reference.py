"""The random numbers of `xlakernel.sparse.networks` in plain JAX, for the *reference* of a `Population`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..random.plain import fraction, normals, philox, product
from .model.fields import Fields, parameters_of
from .model.noise import FIRST_DRAW
from .random.streams import (
    LOG2_E,
    NORMAL,
    PARTS,
    POISSON,
    POWERS,
    RECIPROCALS,
    SHARE,
    UNIFORM,
)


def draw(fields: Fields, noise: Fields, values: Any, rng: Any) -> list[jax.Array]:
    """Return the random inputs; *values* is the named tuple of their parameters, with the fields *noise*."""
    found: list[jax.Array] = []
    for field in fields.fields:
        own = [getattr(values, parameter.name) for parameter in parameters_of(field.name, noise)]
        number = FIRST_DRAW + field.word
        if field.dtype == "poisson":
            found.append(poisson(rng, number, own[0]))
        elif field.dtype == "normal":
            found.append((own[0] + own[1] * normal(rng, number)).astype(jnp.float32))
    return found


def _words(rng: Any, draw: Any, kind: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Return the place of each neuron among the four neurons that share four words, and these words."""
    key0, key1, neuron, step = (jnp.asarray(value).astype(jnp.uint32) for value in rng)
    draw, kind = jnp.uint32(draw), jnp.uint32(kind)
    return neuron & 3, philox(key0, key1, neuron >> 2, step, draw, kind)


def _word(rng: Any, draw: Any, kind: Any) -> jax.Array:
    lane, words = _words(rng, draw, kind)
    return jnp.select([lane == 0, lane == 1, lane == 2], words[:3], words[3])


def uniform(rng: Any, draw: int) -> jax.Array:
    """Return the numbers of `xlakernel.sparse.networks.uniform`, float32."""
    return fraction(_word(rng, draw, UNIFORM))


def normal(rng: Any, draw: int) -> jax.Array:
    """Return the numbers of `xlakernel.sparse.networks.normal`, float32, up to rounding."""
    lane, (a, b, c, d) = _words(rng, draw, NORMAL)
    even, odd = normals(jnp.where(lane < 2, a, c), jnp.where(lane < 2, b, d))
    return jnp.where(lane % 2 == 1, odd, even)


def poisson(rng: Any, draw: int, mean: Any) -> jax.Array:
    """Return the numbers of `xlakernel.sparse.networks.poisson`, int32."""

    def following(carry: Any) -> Any:
        rest, count, part = carry
        share = jnp.clip(rest, 0, SHARE)
        more = jnp.where(rest > 0, _inverse(_word(rng, draw, POISSON + 4 * part), share), 0)
        return rest - share, count + more, part + 1

    def has_rest(carry: Any) -> jax.Array:
        has_more: jax.Array = jnp.any(carry[0] > 0) & (carry[2] < PARTS)
        return has_more

    rest = jnp.broadcast_to(jnp.asarray(mean, jnp.float32), jnp.shape(rng[2]))
    start = rest, jnp.zeros(rest.shape, jnp.int32), jnp.uint32(0)
    found: jax.Array = jax.lax.while_loop(has_rest, following, start)[1]
    return found


def _inverse(word: jax.Array, mean: jax.Array) -> jax.Array:
    fixed = (mean * np.float32(2.0**30)).astype(jnp.uint32)
    high, low = product(fixed, LOG2_E)
    fraction = high << 3 | low >> 29
    power = jnp.full_like(fixed, POWERS[-1])
    for coefficient in POWERS[-2::-1]:
        power = jnp.uint32(coefficient) - product(fraction, power)[0]
    power, whole = jnp.uint32(0xFFFFFFFF) - product(fraction, power)[0], high >> 29
    # Rounded by the last bit that is shifted out: adding a half before the shift could overflow 32 bits.
    probability = (power >> whole) + jnp.where(whole > 0, power >> jnp.maximum(whole, 1) - 1 & 1, 0)
    reciprocals = jnp.asarray(RECIPROCALS, jnp.uint32)

    def has_more(carry: Any) -> jax.Array:
        quantile, probability, _ = carry
        is_open: jax.Array = (quantile >= probability) & (probability > 0) & (fixed > 0)
        return is_open

    def following(carry: Any) -> Any:
        quantile, probability, count = carry
        more = has_more(carry)
        high, low = product(fixed, reciprocals[count])
        high, low = product(probability, high << 1 | low >> 31)
        return (
            jnp.where(more, quantile - probability, quantile),
            jnp.where(more, high << 2 | low >> 30, probability),
            count + more.astype(count.dtype),
        )

    start = word, probability, jnp.zeros(fixed.shape, jnp.int32)
    found: jax.Array = jax.lax.while_loop(lambda carry: jnp.any(has_more(carry)), following, start)[2]
    return found
