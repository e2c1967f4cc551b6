"""In which types the kernels compute, and in which they add up in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def kind_of(dtype: Any) -> type:
    """Return NumPy's scalar type to sum in: of floats their own, and of integers, whose sums wrap round, the widest."""
    dtype = jnp.dtype(dtype)
    return np.int64 if dtype.kind in "iu" else dtype.type


def in_memory(out: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the same output with elements that the GPU adds to atomically: integers have 32 bits at least.

    What does not fit into fewer bits is lost either way, then or in the end.
    """
    dtype = jnp.dtype(out.dtype)
    if dtype.kind in "iu" and dtype.itemsize < 4:
        dtype = jnp.dtype(np.int32 if dtype.kind == "i" else np.uint32)
    return jax.ShapeDtypeStruct(out.shape, dtype)
