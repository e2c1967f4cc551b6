"""The generators of the Warp kernels: products with vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core.errors import DtypeError, PlatformError
from xlakernel.warp import warp_kernel

from . import _kernels

# The number of threads that share a row: a warp on a GPU; one on the CPU, which is fastest there.
_LANES = {"gpu": 32, "cpu": 1}
# The dtypes that Warp adds atomically.
_ATOMIC = ("float32", "float64", "int32", "int64", "uint32", "uint64")


def product(
    outs: Sequence[Any],
    *,
    platform: str,
    operand: str,
    shape: tuple[int, int],
    transpose: bool,
    homogeneous: bool,
) -> Callable[..., jax.Array]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the matrix, or its transpose, by a vector."""
    (out,) = outs
    _check(out)
    lanes = _LANES[platform]
    static = {"stride": int(not homogeneous), "lanes": lanes, "skip": operand != "dense"}
    kernel = _kernels.scatter if transpose else _kernels.gather
    wrapped = warp_kernel(kernel, out, launch_dims=(shape[0], lanes), output_init=0)

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array, x: jax.Array) -> jax.Array:
        if 0 in (*data.shape, *indices.shape):  # Warp has no empty arrays
            return jnp.zeros(out.shape, out.dtype)
        y: jax.Array = wrapped(data, indices, indptr, x.astype(out.dtype), **static)  # binary events count as 1
        return y

    return run


def sampled_product(
    outs: Sequence[Any], *, platform: str, shape: tuple[int, int], events: str = ""
) -> Callable[..., jax.Array]:
    """Return a function ``f(indices, indptr, u, v)`` that multiplies two vectors at the entries.

    Zeros of *events*, "u" or "v", add nothing.
    """
    (out,) = outs
    _check(out)
    lanes = _LANES[platform]
    wrapped = warp_kernel(_kernels.sample, out, launch_dims=(shape[0], lanes), output_init=0)

    def run(indices: jax.Array, indptr: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
        if u.ndim > 1:
            raise PlatformError(
                "csr_sddmm: the Warp kernel multiplies vectors only. Choose another backend for this product, with "
                "backend= or use_backend."
            )
        if not out.shape[0]:
            return jnp.zeros(out.shape, out.dtype)
        skipped = {"skip_u": events == "u", "skip_v": events == "v"}
        entries: jax.Array = wrapped(indices, indptr, u, v, lanes=lanes, **skipped)
        return entries

    return run


def _check(out: Any) -> None:
    if out.dtype.name not in _ATOMIC:
        raise DtypeError(
            f"the product is of dtype {out.dtype.name}; the Warp kernels support {', '.join(_ATOMIC)}. Choose another "
            "backend, with backend= or use_backend."
        )
