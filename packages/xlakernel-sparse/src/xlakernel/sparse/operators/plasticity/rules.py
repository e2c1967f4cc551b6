"""Rules for the states of entries at active events: `csr_apply_on_pre` and `csr_apply_on_post`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, ShapeError

from ..arguments import as_array, check_shape, check_structure, index_array
from .arguments import check_events, check_vector
from .visits import Visits, apply_at_events, trace_rule


def csr_apply_on_pre(
    rule: Callable[..., Any],
    edge_state: Any,
    indices: Any,
    indptr: Any,
    pre_spike: Any,
    *,
    pre_vals: Any = None,
    post_vals: Any = None,
    params: Any = None,
    shape: Any,
) -> Any:
    """Apply a rule to the states of the entries of active rows, ``state[k] = rule(state[k], pre[i], post[j], params)``.

    Here ``i`` and ``j`` are the row and the column of entry ``k``. The states of other entries stay as they are, and
    the rule is computed for the entries of active rows only, some thousands at a time. If *edge_state* is donated to a
    jitted function, or carried by ``jax.lax.scan``, it is updated in place. For sums of weight and trace,
    `update_csr_on_binary_pre` is faster.

    Derivatives of both modes, with respect to states, values, params and arrays that *rule* closes over, visit all
    entries; so does a call under ``jax.vmap``. A rule is traced once for each function object, like a function given to
    ``jax.jit``: pass numbers that change as *params*.

    Args:
      rule: a JAX function of one entry. Its arguments are the pytrees *edge_state*, *pre_vals* and *post_vals* without
        the first dimension of their arrays, and *params*. It returns a pytree with the structure of *edge_state*.
      edge_state: a pytree of arrays of any dtype, ``(nnz, ...)``, such as ``{"w": weights, "eligibility": e}``.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; not checked, see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      pre_spike: bool, integers or real numbers, ``(rows,)``, or an event array. Elements that are not zero are active.
        Derivatives with respect to them are zero.
      pre_vals: a pytree of arrays of any dtype, ``(rows, ...)``; None: the rule gets None.
      post_vals: a pytree of arrays of any dtype, ``(columns, ...)``; None: the rule gets None.
      params: a pytree of numbers or arrays of any shape and dtype, the same for all entries.
      shape: the matrix's shape, (rows, columns).

    Returns:
      The new states, a pytree like *edge_state*, with the same dtypes.

    Raises:
      InputError: if a leaf is not an array.
      ShapeError: if lengths do not fit.
      DtypeError: if events are complex, or indices are not integers.
      ArgumentError: if *rule* returns another structure, or arrays of another shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_apply_on_pre
      >>> indptr, indices, weight = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> def towards_four(w, pre, post, rate):
      ...     return w + rate * post * (4 - w)
      >>> spikes, trace = jnp.array([False, True]), jnp.array([1.0, 0.5, 2.0])
      >>> print(
      ...     csr_apply_on_pre(towards_four, weight, indices, indptr, spikes, post_vals=trace, params=0.5, shape=(2, 3))
      ... )
      [1.   3.   3.25]
    """
    return apply_rule(
        "csr_apply_on_pre", rule, edge_state, (indices, indptr), pre_spike, pre_vals, post_vals, params,
        shape=shape, axis=0, across=False,
    )  # fmt: skip


def csr_apply_on_post(
    rule: Callable[..., Any],
    edge_state: Any,
    indices: Any,
    indptr: Any,
    post_spike: Any,
    *,
    pre_vals: Any = None,
    post_vals: Any = None,
    params: Any = None,
    shape: Any,
    transposed: Any = None,
) -> Any:
    """Apply a rule to the states of the entries of active columns; see `csr_apply_on_pre`.

    Without *transposed*, the rule is computed for all entries.

    Args:
      rule: a JAX function of one entry, ``rule(state, pre, post, params)``, which returns the new state.
      edge_state: a pytree of arrays of any dtype, ``(nnz, ...)``, in the order of the rows.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; not checked.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      post_spike: bool, integers or real numbers, ``(columns,)``, or an event array.
      pre_vals: a pytree of arrays of any dtype, ``(rows, ...)``; None: the rule gets None.
      post_vals: a pytree of arrays of any dtype, ``(columns, ...)``; None: the rule gets None.
      params: a pytree of numbers or arrays of any shape and dtype, the same for all entries.
      shape: the matrix's shape, (rows, columns).
      transposed: three arrays of int32 or int64, the result of ``csr_transpose(indices, indptr, shape=shape)``:
        ``(nnz,)``, ``(columns + 1,)`` and ``(nnz,)``. None: all entries are visited.

    Returns:
      The new states, a pytree like *edge_state*, with the same dtypes.

    Raises:
      InputError: if a leaf is not an array.
      ShapeError: if lengths do not fit.
      DtypeError: if events are complex, or indices are not integers.
      ArgumentError: if *rule* returns another structure, or arrays of another shape; or if *transposed* is not three
        arrays.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_apply_on_post
      >>> indptr, indices, weight = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> spikes, trace = jnp.array([True, False, True]), jnp.array([0.5, 0.1])
      >>> decay = lambda w, pre, post, _: w * (1 - pre)
      >>> print(csr_apply_on_post(decay, weight, indices, indptr, spikes, pre_vals=trace, shape=(2, 3)))
      [0.5 1.8 3. ]
    """
    caller = "csr_apply_on_post"
    structure: Sequence[Any] = (indices, indptr)
    if transposed is not None:
        if not isinstance(transposed, (tuple, list)) or len(transposed) != 3:
            raise ArgumentError(
                f"{caller}: transposed is {transposed!r:.100}; expected three arrays, indices, indptr and permutation, "
                "as csr_transpose returns them."
            )
        structure = transposed
    return apply_rule(
        caller, rule, edge_state, structure, post_spike, pre_vals, post_vals, params,
        shape=shape, axis=1, across=transposed is None,
    )  # fmt: skip


def apply_rule(
    caller: str,
    rule: Callable[..., Any],
    state: Any,
    structure: Sequence[Any],
    spikes: Any,
    pre_vals: Any,
    post_vals: Any,
    params: Any,
    *,
    shape: Any,
    axis: int,
    across: bool,
) -> Any:
    """Check the arguments of the function *caller*, and apply *rule* to the entries of active rows, or columns.

    Args:
      caller: the function's name.
      rule: the rule.
      state: the states of the entries.
      structure: ``indices, indptr`` of lines and, if the states are in another order, the permutation.
      spikes: the events.
      pre_vals: values of rows.
      post_vals: values of columns.
      params: parameters of the rule.
      shape: the matrix's shape.
      axis: 0 if the events are those of rows, 1 if of columns.
      across: if False, the events select lines; if True, places in lines.
    """
    shape = check_shape(caller, shape)
    by_row = (axis == 0) != across
    indices, indptr, *permutation = structure
    lines = shape if by_row else shape[::-1]
    indices, indptr = check_structure(caller, indices, indptr, lines, lines="rows" if by_row else "columns")
    if permutation:
        permutation = [index_array(caller, "the permutation", permutation[0])]
        check_vector(caller, "the permutation", permutation[0], indices.shape[0], shape)
    active = check_events(caller, ("pre_spike", "post_spike")[axis], spikes, shape[axis], shape)
    state = _checked(caller, "edge_state", state, indices.shape[0])
    pre = _checked(caller, "pre_vals", pre_vals, shape[0])
    post = _checked(caller, "post_vals", post_vals, shape[1])
    if 0 in (*shape, indices.shape[0]):  # there are no entries, or all are padding
        return state
    params = jax.tree.map(functools.partial(as_array, caller, "params"), params)
    visits = Visits(indices, indptr, permutation[0] if permutation else None, active, by_row, across)
    return _apply(caller, rule, visits, state, pre, post, params)


def _apply_checked(
    caller: str, rule: Callable[..., Any], visits: Visits, state: Any, pre: Any, post: Any, params: Any
) -> Any:
    traced = trace_rule(caller, rule, state, pre, post, params)
    return apply_at_events(traced, visits, state, pre, post, params)


# Outside of jit each call would compile its loop anew.
_apply = jit_when_eager(_apply_checked, static_argnums=(0, 1))


def _checked(caller: str, what: str, tree: Any, length: int) -> Any:
    """Return *tree* with its leaves as arrays.

    Raises:
      ShapeError: if the first dimension of a leaf is not *length*.
    """

    def check(leaf: Any) -> jax.Array:
        array = as_array(caller, what, leaf)
        if array.shape[:1] != (length,):
            raise ShapeError(
                f"{caller}: {what} has a leaf of shape {array.shape}; the first dimension of each must be {length}."
            )
        return array

    return jax.tree.map(check, tree)
