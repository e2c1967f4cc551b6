"""Products of matrices in compressed rows, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries


def scatter_entries(
    out: Any, operand: str, data: jax.Array, rows: jax.Array, columns: jax.Array, x: jax.Array
) -> jax.Array:
    """Add ``data[k] * x[columns[k]]`` to ``rows[k]`` for each entry; entries with a row out of range are dropped."""
    if 0 in (x.shape[0], out.shape[0]):  # all entries are padding, and JAX cannot gather from an empty array
        return jnp.zeros(out.shape, out.dtype)
    data = data.astype(out.dtype)
    data = data if x.ndim == 1 else data[:, None]
    factor = x.at[columns].get(mode="fill", fill_value=0)
    if operand == "binary":
        terms = jnp.where(factor, data, 0)
    elif operand == "weighted":
        terms = jnp.where(factor != 0, data * factor, 0)
    else:
        terms = data * factor
    return jnp.zeros(out.shape, out.dtype).at[rows].add(terms.astype(out.dtype), mode="drop")


def product(
    outs: Sequence[Any], *, operand: str, shape: tuple[int, int], transpose: bool, homogeneous: bool
) -> Callable[..., jax.Array]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies the matrix, or its transpose, by *x*."""
    (out,) = outs

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array, x: jax.Array) -> jax.Array:
        rows = rows_of_entries(indptr, indices.shape[0])
        if not transpose:
            return scatter_entries(out, operand, data, rows, indices, x)
        # Padding gets a column out of range, which is dropped.
        columns = jnp.where(rows < shape[0], indices, shape[1])
        return scatter_entries(out, operand, data, columns, jnp.minimum(rows, shape[0] - 1), x)

    return run


def compact_product(outs: Sequence[Any], *, shape: tuple[int, int], homogeneous: bool) -> Callable[..., jax.Array]:
    """Return a function ``f(data, indices, indptr, active, count)`` that adds up the rows ``active[:count]``."""

    def run(data: jax.Array, indices: jax.Array, indptr: jax.Array, active: jax.Array, count: jax.Array) -> jax.Array:
        counted = jnp.arange(active.shape[0]) < count
        times = jnp.zeros(shape[0], jnp.int32).at[jnp.where(counted, active, shape[0])].add(1, mode="drop")
        weighted = product(outs, operand="weighted", shape=shape, transpose=True, homogeneous=homogeneous)
        return weighted(data, indices, indptr, times.astype(outs[0].dtype))

    return run


def sampled_product(outs: Sequence[Any], *, shape: tuple[int, int], events: str = "") -> Callable[..., jax.Array]:
    """Return a function ``f(indices, indptr, u, v)`` that multiplies *u* by the transpose of *v* at the entries.

    Zeros of *events*, "u" or "v", add nothing.
    """

    def run(indices: jax.Array, indptr: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
        if 0 in shape:  # all entries are padding, and JAX cannot gather from an empty array
            return jnp.zeros(outs[0].shape, outs[0].dtype)
        rows = rows_of_entries(indptr, indices.shape[0])
        columns = jnp.where(rows < shape[0], indices, shape[1])  # out of range for padding: 0 * inf is NaN
        factors = {"u": u.at[rows].get(mode="fill", fill_value=0), "v": v.at[columns].get(mode="fill", fill_value=0)}
        found = factors["u"] * factors["v"]
        found = jnp.where(factors[events] != 0, found, 0) if events else found
        return found if u.ndim == 1 else found.sum(axis=1, dtype=outs[0].dtype)

    return run


def active_indices(outs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function ``f(flags)`` that returns the positions of True, followed by zeros, and their number."""
    positions, number = outs

    def run(flags: jax.Array) -> Any:
        # The place of an active element is the number of active ones before it; inactive elements are dropped.
        place = jnp.where(flags, jnp.cumsum(flags, dtype=number.dtype) - 1, flags.shape[0])
        entry = jnp.arange(flags.shape[0], dtype=positions.dtype)
        found = jnp.zeros(positions.shape, positions.dtype).at[place].set(entry, mode="drop", unique_indices=True)
        # Kernels rely on a count within the array. The sum may exceed it if bools are bytes other than 0 and 1, as
        # those of `np.frombuffer(...)` under jit.
        return found, jnp.minimum(jnp.sum(flags, dtype=number.dtype), flags.shape[0])

    return run
