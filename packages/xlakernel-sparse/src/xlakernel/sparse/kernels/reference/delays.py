"""Delivery of events with delays, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from ...operators.entries import rows_of_entries
from ...operators.slots import slots_of


def delay_delivery(outs: Sequence[Any], *, operand: str, homogeneous: bool) -> Callable[..., Any]:
    """Return a function ``f(ring, data, indices, indptr, delays, t, x)`` that adds the weights of active rows."""

    def run(ring: Any, data: Any, indices: Any, indptr: Any, delays: Any, t: Any, x: Any) -> Any:
        if not x.size:  # all entries are padding
            return ring
        values = x.at[rows_of_entries(indptr, indices.shape[0])].get(mode="fill", fill_value=0)
        terms = data if operand == "binary" else data * values
        terms = jnp.where(values != 0, terms, 0).astype(ring.dtype)
        slots = jnp.broadcast_to(slots_of(delays, t, ring.shape[0]), indices.shape)
        return ring.at[slots, indices].add(terms, mode="drop")

    return run
