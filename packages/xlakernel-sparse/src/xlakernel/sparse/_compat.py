"""Differences between the supported versions of JAX, and uses of private JAX modules, each with its reason."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

# lib.xla_client: `jax.device_put` takes 30 µs for a small array on the CPU, and the C++ function that it calls 3 µs. A
#   part of a matrix is three arrays, and SciPy takes 20 µs for all of it.
from jax._src.lib import xla_client


def reshard(x: Any, sharding: Any) -> Any:
    """Spread *x* over devices: by ``jax.reshard`` since jax 0.8, and by ``jax.sharding.reshard`` before.

    ``jax.sharding.reshard`` refuses arrays on one device, so ``jax.device_put`` moves arrays that are not traced.
    """
    if hasattr(jax, "reshard"):
        return jax.reshard(x, sharding)
    move: Any = jax.sharding.reshard if isinstance(x, jax.core.Tracer) else jax.device_put
    return move(x, sharding)


def put_beside(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Return a NumPy array as a JAX array on the only device of *like*, and committed to the device like it.

    JAX may use the memory of *array* as it is, so nothing must write to it. JAX must have the array's dtype: it would
    read an int64 array as int32 while its 64-bit types are off. It does not trace the conversion.
    """
    sharding = like.sharding
    place = sharding, [array], [*sharding.device_set], like.committed
    placed: jax.Array = xla_client.batched_device_put(_type(array.shape, array.dtype), *place)
    return placed


_type = functools.lru_cache(jax.core.ShapedArray)
