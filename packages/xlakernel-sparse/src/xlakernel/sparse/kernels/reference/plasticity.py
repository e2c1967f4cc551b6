"""Updates of weights at active events, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.entries import rows_of_entries
from ...operators.plasticity.limits import within


def trace_update(outs: Sequence[Any], *, layout: str) -> Callable[..., Any]:
    """Return a function ``f(data, *structure, trace, active, *limits)`` that updates the weights at active events."""
    kernels: dict[str, Callable[..., Any]] = {
        "lines": _lines,
        "permuted": _permuted,
        "rows": _rows,
        "columns": _columns,
    }
    return kernels[layout]


def _changed(data: jax.Array, change: jax.Array, limits: Sequence[jax.Array]) -> jax.Array:
    return within(data.astype(change.dtype) + change, limits).astype(data.dtype)


def _at_entries(indices: Any, indptr: Any, trace: Any, active: Any) -> tuple[jax.Array, jax.Array]:
    """Return the trace of each entry, and True for entries of active lines."""
    lines = rows_of_entries(indptr, indices.shape[0])
    is_active = active.at[lines].get(mode="fill", fill_value=False)
    return trace.at[indices].get(mode="fill", fill_value=0), is_active


def _lines(data: Any, indices: Any, indptr: Any, trace: Any, active: Any, *limits: Any) -> Any:
    if not trace.size or not active.size:  # all entries are padding
        return data
    change, is_active = _at_entries(indices, indptr, trace, active)
    return jnp.where(is_active, _changed(data, change, limits), data)


def _permuted(data: Any, indices: Any, indptr: Any, permutation: Any, trace: Any, active: Any, *limits: Any) -> Any:
    if not trace.size or not active.size:
        return data
    change, is_active = _at_entries(indices, indptr, trace, active)
    ordered = [limit if limit.shape == (1,) else limit[permutation] for limit in limits]
    places = jnp.where(is_active, permutation, data.shape[0])
    return data.at[places].set(_changed(data[permutation], change, ordered), mode="drop")


def _rows(data: Any, trace: Any, active: Any, *limits: Any) -> Any:
    return jnp.where(active[:, None], _changed(data, trace[None], limits), data)


def _columns(data: Any, trace: Any, active: Any, *limits: Any) -> Any:
    return jnp.where(active[None], _changed(data, trace[:, None], limits), data)
