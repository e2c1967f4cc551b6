"""The choice of a kernel for a compressed matrix, or its transpose, times a dense operand or events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .gather import gather_vector
from .gather_matrix import gather_matrix
from .scatter import scatter_vector
from .scatter_matrix import scatter_matrix


def product(
    outs: Sequence[jax.ShapeDtypeStruct], *, operand: str, shape: tuple[int, int], transpose: bool, homogeneous: bool
) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the matrix, or its transpose, by *x*.

    Args:
      outs: the result.
      operand: ``"dense"``, ``"binary"`` or ``"weighted"``; see `terms`.
      shape: rows and columns of the matrix.
      transpose: if True, multiply by the transposed matrix.
      homogeneous: if True, all entries have the weight ``data[0]``.
    """
    (out,) = outs
    is_vector = len(out.shape) == 1
    if not out.size or 0 in shape:
        return lambda data, indices, indptr, x: jnp.zeros(out.shape, out.dtype)
    if not transpose and is_vector:
        multiply = gather_vector(out, operand=operand, shape=shape, homogeneous=homogeneous)
    elif not transpose:
        multiply = gather_matrix(out, operand=operand, homogeneous=homogeneous)
    elif is_vector:
        multiply = scatter_vector(out, operand=operand, homogeneous=homogeneous)
    else:
        multiply = scatter_matrix(out, operand=operand, homogeneous=homogeneous)
    return _where_entries(multiply, out)


def compact_product(
    outs: Sequence[jax.ShapeDtypeStruct], *, shape: tuple[int, int], homogeneous: bool
) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, active, count)`` that adds up the rows ``active[:count]``.

    Args:
      outs: the result, ``(columns,)``.
      shape: rows and columns of the matrix.
      homogeneous: if True, all entries have the weight ``data[0]``.
    """
    (out,) = outs
    rows = shape[0]
    multiply = product(outs, operand="weighted", shape=shape, transpose=True, homogeneous=homogeneous)

    def sum_rows(data: Any, indices: Any, indptr: Any, active: Any, count: Any) -> Any:
        listed = jnp.where(jnp.arange(active.size) < count, active, rows)  # indices out of range are dropped
        times = jnp.zeros((rows,), out.dtype).at[listed].add(1, mode="drop")
        if not homogeneous:
            return multiply(data, indices, indptr, times)
        # Sums of ones are exact up to larger counts than sums of other weights.
        entries = multiply(jnp.ones((1,), out.dtype), indices, indptr, times)
        return jnp.where(entries != 0, entries * data[0].astype(out.dtype), 0)

    return sum_rows


def _where_entries(multiply: Callable[..., Any], out: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    """Return a function like *multiply* that launches no kernel if the matrix has no entries or *x* no elements."""

    def checked(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        if not indices.size or not x.size:
            return jnp.zeros(out.shape, out.dtype)
        return multiply(data, indices, indptr, x)

    return checked
