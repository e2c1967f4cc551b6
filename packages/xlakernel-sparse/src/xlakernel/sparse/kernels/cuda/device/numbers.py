"""Dtypes of the kernels' sums, in registers and in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def kind_of(dtype: Any) -> type:
    """Return NumPy's scalar type of sums: integers are summed in int64, other numbers in their own type."""
    dtype = jnp.dtype(dtype)
    return np.int64 if dtype.kind in "iu" else dtype.type


def in_memory(out: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return *out* with a dtype that has atomic additions: integers get at least 32 bits.

    Cast back to fewer bits, the result is the same.
    """
    dtype = jnp.dtype(out.dtype)
    if dtype.kind in "iu" and dtype.itemsize < 4:
        dtype = jnp.dtype(np.int32 if dtype.kind == "i" else np.uint32)
    return jax.ShapeDtypeStruct(out.shape, dtype)
