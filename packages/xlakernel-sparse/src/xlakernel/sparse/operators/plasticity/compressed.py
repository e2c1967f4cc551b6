"""Updates of the weights of compressed matrices: `update_csr_on_binary_pre` and its relatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core.backend import jit_when_eager

from ..arguments import check_shape, check_structure, index_array
from ..conversion import csr_transpose
from ..dtypes import accumulator
from ..entries import rows_of_entries
from ..units import joined
from .arguments import NAMES, check_events, check_limits, check_trace, check_vector, check_weights, in_one_unit
from .limits import within
from .update import add_trace


def update_csr_on_binary_pre(
    weight: Any,
    indices: Any,
    indptr: Any,
    pre_spike: Any,
    post_trace: Any,
    w_min: Any = None,
    w_max: Any = None,
    *,
    shape: Any,
    backend: str | None = None,
) -> jax.Array:
    """Add the trace of the columns to the weights of active rows, ``w[k] += post_trace[indices[k]]``.

    This is the presynaptic part of pair-based plasticity (Morrison et al. 2008, doi:10.1007/s00422-008-0233-1): rows
    are presynaptic neurons, columns are postsynaptic neurons. Only the entries of active rows are read and written. If
    *weight* is donated to a jitted function, or carried by ``jax.lax.scan``, it is updated in place.

    The limits apply to the weights that are updated. A weight outside of the limits stays there until its row is
    active: clip the initial weights, ``jnp.clip(weight, w_min, w_max)``.

    Args:
      weight: a weight for each entry, ``(nnz,)``; integers, real or complex numbers. Duplicates are separate entries.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; not checked, see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64; entries from ``indptr[-1]`` on stay as they
        are.
      pre_spike: bool, integers or real numbers, ``(rows,)``, or a `BinaryArray`. Elements that are not zero are active,
        also NaN. Derivatives with respect to them are zero.
      post_trace: the trace of each column, ``(columns,)``, converted to the dtype of *weight*.
      w_min: the lower limit, an integer or real number, ``()``, or an array that broadcasts to ``(nnz,)``; None: no
        limit.
      w_max: the upper limit, an integer or real number, ``()``, or an array that broadcasts to ``(nnz,)``; None: no
        limit. It takes precedence over *w_min*.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The weights, ``(nnz,)``, of the dtype of *weight*. float16 and bfloat16 are added in float32. They are
      differentiable with respect to *weight*, *post_trace* and the limits; a weight on a limit has the derivative of
      a weight between the limits.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths do not fit, or if there is one weight for all entries.
      DtypeError: if a dtype is not supported, or if the trace cannot be converted to the dtype of *weight*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import update_csr_on_binary_pre
      >>> indptr, indices, weight = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> spikes, trace = jnp.array([False, True]), jnp.array([0.5, 1.0, 2.0])
      >>> print(update_csr_on_binary_pre(weight, indices, indptr, spikes, trace, w_max=3.5, shape=(2, 3)))
      [1.  2.5 3.5]
    """
    caller = "update_csr_on_binary_pre"
    return update_entries(
        caller, weight, indices, indptr, post_trace, pre_spike, w_min, w_max, shape=shape, axis=0, backend=backend
    )


def update_csr_on_binary_post(
    weight: Any,
    indices: Any,
    indptr: Any,
    weight_indices: Any,
    pre_trace: Any,
    post_spike: Any,
    w_min: Any = None,
    w_max: Any = None,
    *,
    shape: Any,
    backend: str | None = None,
) -> jax.Array:
    """Add the trace of the rows to the weights of active columns, ``w[weight_indices[k]] += pre_trace[indices[k]]``.

    This is the postsynaptic part of pair-based plasticity; see `update_csr_on_binary_pre`. The weights are in the order
    of the rows. The structure is in the order of the columns, so that only the entries of active columns are visited:
    ``indices, indptr, weight_indices = csr_transpose(row_indices, row_indptr, shape=shape)``.

    Args:
      weight: a weight for each entry, ``(nnz,)``, in the order of the rows; integers, real or complex numbers.
      indices: rows of the entries in the order of the columns, ``(nnz,)``, int32 or int64.
      indptr: the first entry of each column, ``(columns + 1,)``, int32 or int64.
      weight_indices: the position in *weight* of each entry, ``(nnz,)``, int32 or int64, each once; not checked.
      pre_trace: the trace of each row, ``(rows,)``, converted to the dtype of *weight*.
      post_spike: bool, integers or real numbers, ``(columns,)``, or a `BinaryArray`.
      w_min: the lower limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.
      w_max: the upper limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The weights, ``(nnz,)``, in the order of the rows and of the dtype of *weight*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths do not fit, or if there is one weight for all entries.
      DtypeError: if a dtype is not supported, or if the trace cannot be converted to the dtype of *weight*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_transpose, update_csr_on_binary_post
      >>> weight = jnp.array([1.0, 2.0, 3.0])
      >>> structure = csr_transpose(jnp.array([2, 0, 1]), jnp.array([0, 1, 3]), shape=(2, 3))
      >>> spikes, trace = jnp.array([True, False, True]), jnp.array([0.5, 1.0])
      >>> print(update_csr_on_binary_post(weight, *structure, trace, spikes, shape=(2, 3)))
      [1.5 3.  3. ]
    """
    caller = "update_csr_on_binary_post"
    return update_entries(
        caller,
        weight,
        indices,
        indptr,
        pre_trace,
        post_spike,
        w_min,
        w_max,
        weight_indices,
        shape=shape,
        axis=1,
        backend=backend,
    )


def update_csc_on_binary_pre(
    weight: Any,
    indices: Any,
    indptr: Any,
    pre_spike: Any,
    post_trace: Any,
    w_min: Any = None,
    w_max: Any = None,
    *,
    shape: Any,
    backend: str | None = None,
) -> jax.Array:
    """Add the trace of the columns to the weights of active rows of a matrix in compressed columns.

    Each call sorts the structure by rows, which costs more than the update. In a loop, sort it once: ``indices, indptr,
    weight_indices = csr_transpose(indices, indptr, shape=shape[::-1])``, and call `update_csr_on_binary_post` with
    these arrays, *post_trace*, *pre_spike* and ``shape[::-1]``.

    Args:
      weight: a weight for each entry, ``(nnz,)``; integers, real or complex numbers.
      indices: rows of the entries, ``(nnz,)``, int32 or int64; not checked.
      indptr: the first entry of each column, ``(columns + 1,)``, int32 or int64.
      pre_spike: bool, integers or real numbers, ``(rows,)``, or a `BinaryArray`.
      post_trace: the trace of each column, ``(columns,)``, converted to the dtype of *weight*.
      w_min: the lower limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.
      w_max: the upper limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The weights, ``(nnz,)``, of the dtype of *weight*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths do not fit, or if there is one weight for all entries.
      DtypeError: if a dtype is not supported, or if the trace cannot be converted to the dtype of *weight*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import update_csc_on_binary_pre
      >>> indptr, indices, weight = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> spikes, trace = jnp.array([False, True, True]), jnp.array([0.5, 1.0])
      >>> print(update_csc_on_binary_pre(weight, indices, indptr, spikes, trace, shape=(3, 2)))
      [1.5 2.  4. ]
    """
    caller = "update_csc_on_binary_pre"
    rows, columns = check_shape(caller, shape)
    indices, indptr = check_structure(caller, indices, indptr, (columns, rows), lines="columns")
    indices, indptr, weight_indices = csr_transpose(indices, indptr, shape=(columns, rows), backend=backend)
    return update_entries(
        caller,
        weight,
        indices,
        indptr,
        post_trace,
        pre_spike,
        w_min,
        w_max,
        weight_indices,
        shape=(rows, columns),
        axis=0,
        backend=backend,
    )


def update_csc_on_binary_post(
    weight: Any,
    indices: Any,
    indptr: Any,
    pre_trace: Any,
    post_spike: Any,
    w_min: Any = None,
    w_max: Any = None,
    *,
    shape: Any,
    backend: str | None = None,
) -> jax.Array:
    """Add the trace of the rows to the weights of active columns of a matrix in compressed columns.

    Only the entries of active columns are read and written; see `update_csr_on_binary_pre`.

    Args:
      weight: a weight for each entry, ``(nnz,)``; integers, real or complex numbers.
      indices: rows of the entries, ``(nnz,)``, int32 or int64; not checked.
      indptr: the first entry of each column, ``(columns + 1,)``, int32 or int64.
      pre_trace: the trace of each row, ``(rows,)``, converted to the dtype of *weight*.
      post_spike: bool, integers or real numbers, ``(columns,)``, or a `BinaryArray`.
      w_min: the lower limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.
      w_max: the upper limit, integers or real numbers, ``()`` or ``(nnz,)``; None: no limit.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The weights, ``(nnz,)``, of the dtype of *weight*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths do not fit, or if there is one weight for all entries.
      DtypeError: if a dtype is not supported, or if the trace cannot be converted to the dtype of *weight*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import update_csc_on_binary_post
      >>> indptr, indices, weight = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> spikes, trace = jnp.array([False, True]), jnp.array([0.5, 1.0, 2.0])
      >>> print(update_csc_on_binary_post(weight, indices, indptr, trace, spikes, shape=(3, 2)))
      [1.  2.5 4. ]
    """
    caller = "update_csc_on_binary_post"
    return update_entries(
        caller, weight, indices, indptr, pre_trace, post_spike, w_min, w_max, shape=shape, axis=1, backend=backend
    )


def _update(
    caller: str,
    weight: Any,
    indices: Any,
    indptr: Any,
    trace: Any,
    spikes: Any,
    w_min: Any,
    w_max: Any,
    permutation: Any = None,
    *,
    shape: Any,
    axis: int,
    across: bool = False,
    backend: str | None,
) -> jax.Array:
    """Check the arguments of the function *caller*, and update the weights of active rows, or columns.

    Args:
      caller: the function's name.
      weight: the weights.
      indices: the place of each entry in its line.
      indptr: the first entry of each line.
      trace: the trace of the other axis.
      spikes: the events.
      w_min: the lower limit.
      w_max: the upper limit.
      permutation: the weight of each entry; None: the weights are in the order of the entries.
      shape: the matrix's shape.
      axis: 0 if the events are those of rows, 1 if of columns.
      across: if False, the events select lines; if True, places in lines, so that all entries are visited.
      backend: the backend.
    """
    shape = check_shape(caller, shape)
    events, places = shape if axis == 0 else shape[::-1]
    is_rows = (axis == 0) != across
    lines = shape if is_rows else shape[::-1]
    indices, indptr = check_structure(caller, indices, indptr, lines, lines="rows" if is_rows else "columns")
    weight = check_weights(caller, weight, indices.shape)
    structure = [indices, indptr]
    if permutation is not None:
        permutation = index_array(caller, "weight_indices", permutation)
        structure.append(check_vector(caller, "weight_indices", permutation, indices.shape[0], shape))
    spike, trace_name = NAMES[axis]
    active = check_events(caller, spike, spikes, events, shape)
    trace = check_trace(caller, trace_name, trace, places, shape, weight.dtype)
    limits = check_limits(caller, w_min, w_max, weight)
    if across:
        return _across(weight, indices, indptr, trace, active, limits)
    layout = "lines" if permutation is None else "permuted"
    return add_trace(weight, structure, trace, active, limits, layout=layout, backend=backend)


def _across(
    weight: jax.Array, indices: jax.Array, indptr: jax.Array, trace: jax.Array, active: jax.Array, limits: Any
) -> jax.Array:
    """Update the weights at active places of all lines."""
    if not trace.size or not active.size:  # all entries are padding
        return weight
    line = rows_of_entries(indptr, indices.shape[0])
    dtype = accumulator(weight.dtype)
    change = trace.astype(dtype).at[line].get(mode="fill", fill_value=0)
    changed = within(weight.astype(dtype) + change, limits).astype(weight.dtype)
    return jnp.where(active[indices] & (line < trace.size), changed, weight)


_compiled = jit_when_eager(_update, static_argnums=0, static_argnames=("shape", "axis", "across", "backend"))


def update_entries(
    caller: str,
    weight: Any,
    indices: Any,
    indptr: Any,
    trace: Any,
    spikes: Any,
    w_min: Any,
    w_max: Any,
    *permutation: Any,
    axis: int,
    **keywords: Any,
) -> jax.Array:
    """Check the arguments of the function *caller*, and update weights; `_update` lists the arguments."""
    (weight, trace, w_min, w_max), unit = in_one_unit(caller, axis, weight, trace, w_min, w_max)
    arrays = weight, indices, indptr, trace, spikes, w_min, w_max, *permutation
    updated: jax.Array = joined(_compiled(caller, *arrays, axis=axis, **keywords), unit)
    return updated
