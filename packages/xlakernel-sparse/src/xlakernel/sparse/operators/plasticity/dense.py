"""Updates of the weights of dense matrices: `update_dense_on_binary_pre` and `update_dense_on_binary_post`."""

from __future__ import annotations

from typing import Any

import jax

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ShapeError

from ..arguments import as_array
from ..units import joined
from .arguments import NAMES, check_events, check_limits, check_trace, check_weights, in_one_unit
from .update import add_trace


def update_dense_on_binary_pre(
    weight: Any,
    pre_spike: Any,
    post_trace: Any,
    w_min: Any = None,
    w_max: Any = None,
    *,
    backend: str | None = None,
) -> jax.Array:
    """Add the trace of the columns to the active rows of a dense matrix, ``W[i] += post_trace``.

    Only active rows are read and written; see `update_csr_on_binary_pre`.

    Args:
      weight: the weights, ``(rows, columns)``; integers, real or complex numbers.
      pre_spike: bool, integers or real numbers, ``(rows,)``, or a `BinaryArray`. Elements that are not zero are active.
      post_trace: the trace of each column, ``(columns,)``, converted to the dtype of *weight*.
      w_min: the lower limit of weights that are updated, integers or real numbers, ``()`` or ``(rows, columns)``; None:
        no limit.
      w_max: the upper limit, integers or real numbers, ``()`` or ``(rows, columns)``; None: no limit.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The weights, ``(rows, columns)``, of the dtype of *weight*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if shapes do not fit.
      DtypeError: if a dtype is not supported, or if the trace cannot be converted to the dtype of *weight*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import update_dense_on_binary_pre
      >>> print(update_dense_on_binary_pre(jnp.zeros((2, 3)), jnp.array([True, False]), jnp.arange(3.0)))
      [[0. 1. 2.]
       [0. 0. 0.]]
    """
    caller = "update_dense_on_binary_pre"
    return _run(caller, weight, post_trace, pre_spike, w_min, w_max, axis=0, backend=backend)


def update_dense_on_binary_post(
    weight: Any,
    pre_trace: Any,
    post_spike: Any,
    w_min: Any = None,
    w_max: Any = None,
    *,
    backend: str | None = None,
) -> jax.Array:
    """Add the trace of the rows to the active columns of a dense matrix, ``W[:, j] += pre_trace``.

    Only active columns are read and written; see `update_csr_on_binary_pre`.

    Args:
      weight: the weights, ``(rows, columns)``; integers, real or complex numbers.
      pre_trace: the trace of each row, ``(rows,)``, converted to the dtype of *weight*.
      post_spike: bool, integers or real numbers, ``(columns,)``, or a `BinaryArray`. Elements that are not zero are
        active.
      w_min: the lower limit of weights that are updated, integers or real numbers, ``()`` or ``(rows, columns)``; None:
        no limit.
      w_max: the upper limit, integers or real numbers, ``()`` or ``(rows, columns)``; None: no limit.
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The weights, ``(rows, columns)``, of the dtype of *weight*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if shapes do not fit.
      DtypeError: if a dtype is not supported, or if the trace cannot be converted to the dtype of *weight*.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import update_dense_on_binary_post
      >>> print(update_dense_on_binary_post(jnp.zeros((2, 3)), jnp.arange(2.0), jnp.array([True, False, True])))
      [[0. 0. 0.]
       [1. 0. 1.]]
    """
    caller = "update_dense_on_binary_post"
    return _run(caller, weight, pre_trace, post_spike, w_min, w_max, axis=1, backend=backend)


def _run(
    caller: str, weight: Any, trace: Any, spikes: Any, w_min: Any, w_max: Any, *, axis: int, backend: str | None
) -> jax.Array:
    """Check the arguments, and update; `_update` lists the arguments."""
    (weight, trace, w_min, w_max), unit = in_one_unit(caller, axis, weight, trace, w_min, w_max)
    updated: jax.Array = joined(
        _compiled(caller, weight, trace, spikes, w_min, w_max, axis=axis, backend=backend), unit
    )
    return updated


def _update(
    caller: str, weight: Any, trace: Any, spikes: Any, w_min: Any, w_max: Any, *, axis: int, backend: str | None
) -> jax.Array:
    """Check the arguments of the function *caller*, and update active rows if *axis* is 0, else columns."""
    weight = as_array(caller, "weight", weight)
    if weight.ndim != 2:
        raise ShapeError(f"{caller}: weight has the shape {weight.shape}; expected two dimensions, (rows, columns).")
    weight = check_weights(caller, weight, weight.shape)
    spike, trace_name = NAMES[axis]
    active = check_events(caller, spike, spikes, weight.shape[axis], weight.shape)
    trace = check_trace(caller, trace_name, trace, weight.shape[1 - axis], weight.shape, weight.dtype)
    limits = check_limits(caller, w_min, w_max, weight)
    return add_trace(weight, (), trace, active, limits, layout=("rows", "columns")[axis], backend=backend)


_compiled = jit_when_eager(_update, static_argnums=0, static_argnames=("axis", "backend"))
