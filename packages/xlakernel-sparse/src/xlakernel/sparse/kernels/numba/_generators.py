"""The generators: what is called when a program is lowered, and returns a kernel for the shapes and dtypes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.numba import numba_kernel

from . import conversion, events, gather, matrix, sampled, scatter

# transposed, rank of the operand, whether only what is active counts → kernel
_PRODUCTS = {
    (False, 1, False): gather.gather,
    (False, 2, False): matrix.gather_matrix,
    (False, 2, True): matrix.gather_active_matrix,
    (True, 1, False): scatter.scatter,
    (True, 2, False): matrix.scatter_matrix,
    (True, 2, True): matrix.scatter_active_matrix,
}
# Vectors of events: transposed, kind of events → kernel. Only the rows of what is active are visited if transposed.
_EVENTS = {
    (False, "binary"): gather.gather_flags,
    (False, "weighted"): gather.gather_values,
    (True, "binary"): events.scatter_flags,
    (True, "weighted"): events.scatter_values,
}
# The factor of which only what is active counts → kernel
_SAMPLED = {"": sampled.sample, "u": sampled.sample_active_rows, "v": sampled.sample_active_columns}


def product(
    outs: Sequence[Any], *, operand: str, shape: tuple[int, int], transpose: bool, homogeneous: bool
) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, x)`` for a compressed matrix times a vector or matrix.

    Args:
      outs: the result's struct, in a sequence.
      operand: what *x* is: "dense", "binary" events, which are bool, or "weighted" events, of which zeros are skipped.
      shape: of the matrix.
      transpose: whether its transpose is meant.
      homogeneous: whether *data* is of length 1, for all entries.
    """
    (out,) = outs
    rank = _kernel_rank(out)
    if rank == 1 and operand != "dense":
        kernel = _EVENTS[transpose, operand]
    else:
        kernel = _PRODUCTS[transpose, rank, operand != "dense"]
    run = numba_kernel(kernel, _of_rank(out, rank))

    def call(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        x = x if rank == 2 else x.reshape(-1)
        return run(_weights(data, homogeneous), indices, indptr, x).reshape(out.shape)

    return call


def compact_product(outs: Sequence[Any], *, shape: tuple[int, int], homogeneous: bool) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr, active, count)``, the sum of the rows ``active[:count]``; see `product`."""
    (out,) = outs
    run = numba_kernel(events.scatter_listed, out)

    def call(data: Any, indices: Any, indptr: Any, active: Any, count: Any) -> Any:
        if not homogeneous:
            return run(data, indices, indptr, active, count)
        # Sums of ones are exact for longer than sums of anything else.
        entries = run(_weights(jnp.ones(1, out.dtype), homogeneous), indices, indptr, active, count)
        return jnp.where(entries != 0, entries * data[0].astype(out.dtype), 0)

    return call


def sampled_product(outs: Sequence[Any], *, shape: tuple[int, int], events: str = "") -> Callable[..., Any]:
    """Return ``f(indices, indptr, u, v)``, the product of *u* and *v* transposed where the matrix has entries.

    Zeros of the input that *events* names, "u" or "v", add nothing.
    """
    (out,) = outs
    return numba_kernel(_SAMPLED[events], out)


def transpose(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return ``f(indices, indptr)``: indices and indptr of the transpose, and where each of its entries comes from."""
    return numba_kernel(conversion.transpose, tuple(outs))


def transpose_with_data(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return ``f(data, indices, indptr)``: all three of the transpose."""
    return numba_kernel(conversion.transpose_with_data, tuple(outs))


def _kernel_rank(out: Any) -> int:
    """Return the rank that the kernel sees: a matrix with one column is a vector to it."""
    return 2 if len(out.shape) == 2 and out.shape[1] != 1 else 1


def _of_rank(out: Any, rank: int) -> Any:
    return out if rank == 2 else jax.ShapeDtypeStruct(out.shape[:1], out.dtype)


def _weights(data: Any, homogeneous: bool) -> Any:
    """Return the weights as the kernels take them, which tell their two kinds by the rank."""
    return data.reshape(1, 1) if homogeneous else data
