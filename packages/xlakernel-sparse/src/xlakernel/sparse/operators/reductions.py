"""Sums, counts, maxima and minima of the weights of each row of a matrix in compressed rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core import XLACustomKernel

from .backends import register
from .dtypes import accumulator
from .entries import rows_of_entries

#: Inputs ``data, indptr``; static keyword ``method``: "sum", "max", "min", or "count" for weights that are not 0.
#: Result: ``(rows,)``, 0 for rows without entries; a maximum or minimum is NaN where a weight is.
row_reduction = XLACustomKernel("csr_row_reduction", "A sum, count, maximum or minimum of the weights of each row.")
register(row_reduction, "reduce_rows", plain=("warp",))
row_reduction.def_tags("sparse", "csr", "lines")

_SEGMENTS = {"sum": jax.ops.segment_sum, "max": jax.ops.segment_max, "min": jax.ops.segment_min}


def reduce_rows(data: jax.Array, indptr: jax.Array, method: str, dtype: Any = None) -> jax.Array:
    """Return a reduction of the weights of each row, ``(rows,)``; 0 for rows without entries.

    Args:
      data: the weights, ``(nnz,)``; maxima and minima are those of real numbers.
      indptr: the first entry of each row, ``(rows + 1,)``.
      method: that of `row_reduction`.
      dtype: the dtype of the result; None: that of *data*.
    """
    dtype = data.dtype if dtype is None else dtype
    reduced: jax.Array
    outs = [jax.ShapeDtypeStruct((indptr.shape[0] - 1,), accumulator(dtype))]
    (reduced,) = row_reduction(data.astype(accumulator(data.dtype)), indptr, outs=outs, method=method)
    return reduced.astype(dtype)


@row_reduction.def_reference
def reduce_rows_in_jax(data: jax.Array, indptr: jax.Array, *, outs: Any, method: str) -> Any:
    """Compute `row_reduction` by operations of JAX."""
    (out,) = outs
    if method == "count":
        data, method = data.astype(bool), "sum"
    row = rows_of_entries(indptr, data.shape[0])
    reduced = _SEGMENTS[method](data.astype(out.dtype), row, out.shape[0], indices_are_sorted=True)
    return [jnp.where(jnp.diff(indptr) == 0, 0, reduced)]
