"""The generators of the kernels, called when a program is lowered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from xlakernel.numba import numba_kernel

from ...operators.connections import Rule, walk_of
from ...operators.plasticity.update import STRUCTURES
from ..reference.dense import by_matmul
from . import (
    conversion,
    delays,
    dense,
    events,
    gather,
    lines,
    matrix,
    merging,
    multiplication,
    places,
    plasticity,
    prepared,
    procedural,
    reductions,
    sampled,
    scatter,
)

# transposed, rank of the operand, True if zeros are skipped → kernel
_PRODUCTS = {
    (False, 1, False): gather.gather,
    (False, 2, False): matrix.gather_matrix,
    (False, 2, True): matrix.gather_active_matrix,
    (True, 1, False): scatter.scatter,
    (True, 2, False): matrix.scatter_matrix,
}
# Vectors of events: transposed, kind of events → kernel. The transposed products visit only rows of active events.
_EVENTS = {
    (False, "binary"): gather.gather_flags,
    (False, "weighted"): gather.gather_values,
    (True, "binary"): events.scatter_flags,
    (True, "weighted"): events.scatter_values,
}
# Several vectors of events, the rows of a matrix: kind of events → kernel
_EVENT_ROWS = {"binary": events.scatter_rows_of_flags, "weighted": events.scatter_rows_of_values}
# Matrices that are drawn: transposed, True if zeros are skipped → kernel
_DRAWN = {
    (False, False): procedural.gather_drawn,
    (False, True): procedural.gather_drawn_active,
    (True, False): procedural.scatter_drawn,
    (True, True): procedural.scatter_drawn_active,
}
# Dense matrices: True if the events select columns, kind of events → kernel
_DENSE = {
    (False, "binary"): dense.sum_rows_of_flags,
    (False, "weighted"): dense.sum_rows_of_values,
    (True, "binary"): dense.sum_columns_of_flags,
    (True, "weighted"): dense.sum_columns_of_values,
}
# XLA multiplies at least so many vectors of events by a dense matrix, if more than one event in so many is active.
_MATMUL = 4, 8
# The factor whose zeros are skipped → kernel
_SAMPLED = {"": sampled.sample, "u": sampled.sample_active_rows, "v": sampled.sample_active_columns}
# Reductions of rows that are sums → kernel
_SUMS = {"sum": reductions.sum_rows, "count": reductions.count_rows}
# Layout → kernel without and with limits
_UPDATES = {
    "lines": (plasticity.update_lines, plasticity.update_lines_within),
    "permuted": (plasticity.update_permuted, plasticity.update_permuted_within),
    "rows": (plasticity.update_rows, plasticity.update_rows_within),
    "columns": (plasticity.update_columns, plasticity.update_columns_within),
}


def product(
    outs: Sequence[Any], *, operand: str, shape: tuple[int, int], transpose: bool, homogeneous: bool
) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, x)`` that multiplies a compressed matrix by a vector or matrix.

    Args:
      outs: the result's struct, in a sequence.
      operand: the kind of *x*: "dense", "binary" for events as bools, or "weighted" for events with values.
      shape: rows and columns of the matrix.
      transpose: if True, multiply by the transposed matrix.
      homogeneous: if True, all entries have the weight ``data[0]``.
    """
    (out,) = outs
    rank = _kernel_rank(out)
    if operand != "dense" and transpose and rank == 2:
        return _of_transposes(_EVENT_ROWS[operand], out, homogeneous)
    if rank == 1 and operand != "dense":
        kernel = _EVENTS[transpose, operand]
    else:
        kernel = _PRODUCTS[transpose, rank, operand != "dense"]
    run = numba_kernel(kernel, _of_rank(out, rank))

    def call(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        x = x if rank == 2 else x.reshape(-1)
        return run(_weights(data, homogeneous), indices, indptr, x).reshape(out.shape)

    return call


def prepared_events(outs: Sequence[Any], *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function that multiplies a vector of events by a matrix whose entries are stored in both orders.

    Its arguments are ``data, order, indices, indptr, all_data, all_indices, all_indptr, x``; see
    `prepared.multiply_flags`. An *order* of None means that of the entries, an *all_data* of None that there is none.
    """
    (out,) = outs
    run = numba_kernel(prepared.multiply_flags if operand == "binary" else prepared.multiply_values, out)

    def call(data: Any, order: Any, indices: Any, indptr: Any, all_data: Any, *others: Any) -> Any:
        order = jnp.zeros((1, 1), jnp.uint8) if order is None else order
        all_data = jnp.zeros(0, data.dtype) if all_data is None else all_data
        weights = _weights(data, homogeneous), _weights(all_data, homogeneous and bool(all_data.size))
        return run(weights[0], order, indices, indptr, weights[1], *others)

    return call


def dense_product(outs: Sequence[Any], *, operand: str, across: bool) -> Callable[..., Any]:
    """Return a function ``f(matrix, x)`` that multiplies each row of *x* by the matrix, transposed if *across*."""
    (out,) = outs
    run = numba_kernel(_DENSE[across, operand], out)

    def call(matrix: Any, x: Any) -> Any:
        is_symbolic = any(map(export.is_symbolic_dim, x.shape))
        if is_symbolic or x.shape[0] < _MATMUL[0] or not jnp.issubdtype(out.dtype, jnp.inexact):
            return run(matrix, x)

        def multiply() -> Any:
            oriented = (matrix.T if across else matrix).astype(out.dtype)
            return by_matmul(oriented, x, lambda: run(matrix, x))

        return jax.lax.cond(jnp.count_nonzero(x) > x.size // _MATMUL[1], multiply, lambda: run(matrix, x))

    return call


def procedural_product(
    outs: Sequence[Any], *, operand: str, shape: tuple[int, int], transpose: bool, rule: Rule
) -> Callable[..., Any]:
    """Return a function ``f(params, key, x)`` that multiplies a matrix of drawn rows by a vector or matrix.

    Args:
      outs: the result's struct, in a sequence.
      operand: the kind of *x*, like that of `product`.
      shape: rows and columns of the matrix.
      transpose: if True, multiply by the transposed matrix.
      rule: how the rows are drawn.
    """
    (out,) = outs
    rank = _kernel_rank(out)
    run = numba_kernel(_DRAWN[transpose, operand != "dense"], _of_rank(out, rank))
    walk = walk_of(rule, shape[1]).array()

    def call(params: Any, key: Any, x: Any) -> Any:
        x = (x if rank == 2 else x.reshape(-1)).astype(out.dtype)
        return run(_weights(params, rule.homogeneous), key, walk, x).reshape(out.shape)

    return call


def compact_product(outs: Sequence[Any], *, shape: tuple[int, int], homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, active, count)`` that adds up the rows ``active[:count]``."""
    (out,) = outs
    run = numba_kernel(events.scatter_listed, out)

    def call(data: Any, indices: Any, indptr: Any, active: Any, count: Any) -> Any:
        if not homogeneous:
            return run(data, indices, indptr, active, count)
        # Sums of ones are exact up to larger counts than sums of other weights.
        entries = run(_weights(jnp.ones(1, out.dtype), homogeneous), indices, indptr, active, count)
        return jnp.where(entries != 0, entries * data[0].astype(out.dtype), 0)

    return call


def sampled_product(outs: Sequence[Any], *, shape: tuple[int, int], events: str = "") -> Callable[..., Any]:
    """Return a function ``f(indices, indptr, u, v)`` that multiplies *u* by the transpose of *v* at the entries.

    Zeros of *events*, "u" or "v", are skipped.
    """
    (out,) = outs
    return numba_kernel(_SAMPLED[events], out)


def delay_delivery(outs: Sequence[Any], *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(ring, data, indices, indptr, delays, t, x)`` that adds the weights of active rows."""
    (out,) = outs
    kernel = delays.deliver_flags if operand == "binary" else delays.deliver_values
    run = numba_kernel(kernel, out, input_output_aliases={0: 0})

    def call(ring: Any, data: Any, indices: Any, indptr: Any, delay: Any, t: Any, x: Any) -> Any:
        weights, shared = _weights(data, homogeneous), _weights(delay, delay.shape == (1,))
        return run(ring, weights, indices, indptr, shared, t, x)

    return call


def trace_update(outs: Sequence[Any], *, layout: str) -> Callable[..., Any]:
    """Return a function ``f(data, *structure, trace, active, *limits)`` that updates the weights at active events."""
    (out,) = outs

    def call(data: Any, *others: Any) -> Any:
        count = STRUCTURES[layout] + 2
        limits = [x.reshape(1, 1) if x.shape == (1,) else x.reshape(-1) for x in others[count:]]
        # A matrix is not reshaped: XLA would copy it.
        return numba_kernel(_UPDATES[layout][bool(limits)], out, input_output_aliases={0: 0})(
            data, *others[:count], *limits
        )

    return call


def transpose(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr)`` that returns both arrays of the transpose, and the permutation."""
    return numba_kernel(conversion.transpose, tuple(outs))


def transpose_with_data(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr)`` that returns the three arrays of the transpose."""
    return numba_kernel(conversion.transpose_with_data, tuple(outs))


def entry_rows(outs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function ``f(indptr)`` that returns the row of each entry; for padding, the number of rows."""
    return numba_kernel(places.entry_rows, outs[0])


def descents(outs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr)`` that counts the entries that are not in ascending order."""
    return numba_kernel(places.descents, outs[0])


def first_of_places(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr)`` of the first entry of each entry's place.

    Its results are the number of this entry, and how many entries are not the first of their place.
    """
    return functools.partial(numba_kernel(places.first_of_places, tuple(outs)), columns=shape[1])


def slice_rows(outs: Sequence[Any], *, shape: tuple[int, int], homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr, rows)`` that returns these rows as a dense matrix."""
    run = numba_kernel(lines.slice_rows, outs[0])
    return lambda data, indices, indptr, rows: run(_weights(data, homogeneous), indices, indptr, rows)


def gather_rows(outs: Sequence[Any], *, shape: tuple[int, int]) -> Callable[..., Any]:
    """Return a function ``f(indices, indptr, rows, dense)``, the transpose of `slice_rows` for the weights."""
    return numba_kernel(lines.gather_slices, outs[0])


def diagonal(outs: Sequence[Any], *, offset: int, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(data, indices, indptr)`` that returns the elements with ``column - row == offset``."""
    run = numba_kernel(lines.diagonal, outs[0])
    return lambda data, indices, indptr: run(_weights(data, homogeneous), indices, indptr, offset=offset)


def merge_rows(outs: Sequence[Any], *, common: bool) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start)`` of the first entry of each row of the merged structure."""
    return functools.partial(numba_kernel(merging.merge_rows, outs[0]), common=common)


def merge_entries(outs: Sequence[Any], *, common: bool) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start, indptr)`` of the columns and entries of the merged structure."""
    return functools.partial(numba_kernel(merging.merge_entries, tuple(outs)), common=common)


def product_rows(outs: Sequence[Any], *, columns: int, pairs: int) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start)`` of the first entry of each row of the product."""
    return functools.partial(numba_kernel(multiplication.product_rows, outs[0]), columns=columns)


def product_entries(outs: Sequence[Any], *, columns: int, pairs: int) -> Callable[..., Any]:
    """Return a function ``f(a, a_start, b, b_start, indptr)`` of the columns of the product's entries."""
    return functools.partial(numba_kernel(multiplication.product_entries, outs[0]), columns=columns)


def product_weights(outs: Sequence[Any], *, columns: int, pairs: int) -> Callable[..., Any]:
    """Return a function ``f(a_data, a, a_start, b_data, b, b_start, indices, indptr)`` of the product's weights."""
    return functools.partial(numba_kernel(multiplication.product_weights, outs[0]), columns=columns)


def reduce_rows(outs: Sequence[Any], *, method: str) -> Callable[..., Any]:
    """Return a function ``f(data, indptr)`` that reduces the weights of each row."""
    if method in _SUMS:
        return numba_kernel(_SUMS[method], outs[0])
    return functools.partial(numba_kernel(reductions.extremes_of_rows, outs[0]), is_max=method == "max")


def active_indices(outs: Sequence[Any]) -> Callable[..., Any]:
    """Return a function ``f(flags)`` that returns the positions of True, followed by zeros, and their number."""
    return numba_kernel(events.list_flags, tuple(outs))


def _kernel_rank(out: Any) -> int:
    """Return the rank of the kernel's operand: a matrix with one column is passed as a vector."""
    return 2 if len(out.shape) == 2 and out.shape[1] != 1 else 1


def _of_rank(out: Any, rank: int) -> Any:
    return out if rank == 2 else jax.ShapeDtypeStruct(out.shape[:1], out.dtype)


def _of_transposes(kernel: Any, out: Any, homogeneous: bool) -> Callable[..., Any]:
    """Return a product by a kernel whose operand and result are transposed: ``X @ A`` then needs no copies of both."""
    run = numba_kernel(kernel, jax.ShapeDtypeStruct(out.shape[::-1], out.dtype))
    return lambda data, indices, indptr, x: run(_weights(data, homogeneous), indices, indptr, x.T).T


def _weights(data: Any, homogeneous: bool) -> Any:
    """Return the weights as the kernels take them: of rank 2 if all entries share one weight."""
    return data.reshape(1, 1) if homogeneous else data
