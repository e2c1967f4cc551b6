"""The operator that adds a trace to the weights at active events, and its derivatives.

The update is linear in weights and trace, except for the limits. Weights that are not at active events pass through it,
and through all its derivatives, unchanged: an infinite or NaN trace does not reach them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel

from ..backends import register
from ..dtypes import accumulator
from ..operand import BINARY
from ..products.compressed import PRODUCTS

_Struct = jax.ShapeDtypeStruct

#: The numbers of index arrays of the layouts. ``"lines"``: events select lines of a compressed matrix; ``"permuted"``:
#: likewise, and entry ``k`` of the lines is weight ``permutation[k]``; ``"rows"`` and ``"columns"``: events select
#: these of a dense matrix.
STRUCTURES = {"lines": 2, "permuted": 3, "rows": 0, "columns": 0}

#: Inputs: ``data``; the index arrays of the layout, ``indices, indptr, permutation``; ``trace`` and ``active``; and the
#: limits ``lower, upper``, or none. Limits are of shape ``(1,)``, or that of *data*. Static keyword: ``layout``.
trace_update = XLACustomKernel("trace_update", "The operator behind `xlakernel.sparse.update_csr_on_binary_pre`.")
register(trace_update, "trace_update", without=("warp",))
trace_update.def_tags("sparse", "csr", "plasticity")


def _split(inputs: Sequence[Any], layout: str) -> tuple[Any, Sequence[Any], Any, Any, Sequence[Any]]:
    """Return data, index arrays, trace, active and limits of the operator's inputs, or of their tangents."""
    count = STRUCTURES[layout]
    data, *others = inputs
    return data, others[:count], others[count], others[count + 1], others[count + 2 :]


@trace_update.def_jvp_rule
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, layout: str, **params: Any) -> Any:
    data, structure, trace, active, limits = _split(primals, layout)
    of_data, _, of_trace, _, of_limits = _split(tangents, layout)
    (found,) = trace_update.primitive.bind(*primals, layout=layout, **params)
    if not jnp.issubdtype(data.dtype, jnp.inexact):
        return [found], [ad.Zero(jax.typeof(found).to_tangent_aval())]
    tangent = ad.instantiate_zeros(of_data)
    if not isinstance(of_trace, ad.Zero):
        (tangent,) = trace_update.primitive.bind(tangent, *structure, of_trace, active, layout=layout, **params)
    if limits:
        lower, upper = map(ad.instantiate_zeros, of_limits)
        (free,) = trace_update.primitive.bind(data, *structure, trace, active, layout=layout, **params)
        # A weight without limits differs from the result only if a limit took its place. It is the upper one where the
        # lower one exceeds it.
        is_upper = (free > found) | (limits[0] > limits[1])
        limit = jnp.where(is_upper, upper.astype(data.dtype), lower.astype(data.dtype))
        tangent = jnp.where((free < found) | (free > found), limit, tangent)  # NaN stays
    return [found], [tangent]


@trace_update.def_transpose_rule
def _transpose(cotangents: Sequence[Any], *inputs: Any, outs: Any, dispatch: Any, layout: str) -> Any:
    data, structure, trace, active, _ = _split(inputs, layout)
    (cotangent,) = cotangents
    found: list[Any] = [None] * len(inputs)
    if isinstance(cotangent, ad.Zero):
        return found
    if ad.is_undefined_primal(data):
        found[0] = cotangent
    if ad.is_undefined_primal(trace):
        found[1 + len(structure)] = _of_trace(cotangent, structure, active, trace.aval, layout, dispatch)
    return found


def _of_trace(cotangent: Any, structure: Sequence[Any], active: Any, trace: Any, layout: str, dispatch: Any) -> Any:
    """Return the cotangent of the trace: sums of the weights' cotangents at active events."""
    if layout in ("rows", "columns"):
        axis = int(layout == "columns")
        return jnp.where(jnp.expand_dims(active, 1 - axis), cotangent, 0).sum(axis, dtype=trace.dtype)
    indices, indptr, *permutation = structure
    ordered = cotangent[permutation[0]] if permutation else cotangent
    shape = (active.shape[0], trace.shape[0])
    outs = [_Struct(trace.shape, trace.dtype)]
    static = {"shape": shape, "transpose": True, "homogeneous": False}
    product = PRODUCTS[BINARY].vector
    return product.primitive.bind(ordered, indices, indptr, active, outs=outs, dispatch=dispatch, **static)[0]


def add_trace(
    data: jax.Array,
    structure: Sequence[jax.Array],
    trace: jax.Array,
    active: jax.Array,
    limits: Sequence[jax.Array],
    *,
    layout: str,
    backend: str | None,
) -> jax.Array:
    """Add the trace to the weights at active events, and replace those that then exceed a limit by the limit.

    The arguments are checked arrays, *active* of bools and *limits* a pair or empty. Sums are computed in the dtype
    `accumulator(data.dtype)`.
    """
    dtype = accumulator(data.dtype)
    updated: jax.Array
    (updated,) = trace_update(
        data,
        *structure,
        trace.astype(dtype),
        active,
        *(limit.astype(dtype) for limit in limits),
        outs=[_Struct(data.shape, data.dtype)],
        backend=backend,
        layout=layout,
    )
    return updated
