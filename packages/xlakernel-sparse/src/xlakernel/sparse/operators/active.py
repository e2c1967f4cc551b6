"""Positions of the active elements of an event array."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import jit_when_eager

from .backends import register

_Struct = jax.ShapeDtypeStruct

#: Input: flags, ``(n,)``. Results: the positions of True, followed by zeros, ``(n,)``, and their number, both int32.
active_indices = XLACustomKernel("active_indices", "The positions of active events.")
register(active_indices, "active_indices", plain=("warp",))
active_indices.def_tags("sparse", "events")


def _positions_of(events: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the positions of the elements of *events* that are not 0, followed by zeros, and their number."""
    outs = [_Struct(events.shape, jnp.int32), _Struct((), jnp.int32)]
    positions: jax.Array
    count: jax.Array
    positions, count = active_indices(events.astype(bool), outs=outs)
    return positions, count


positions_of = jit_when_eager(_positions_of)
