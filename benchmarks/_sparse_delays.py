"""Deliveries of spikes with delays at several rates, ours and brainevent's, in place in one jitted loop."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
from _sparse_loops import Loop
from _sparse_matrices import OPERANDS, RATES, Size, spikes
from _sparse_plasticity import in_place

from xlakernel import sparse
from xlakernel.sparse import CSR

SLOTS = 20  #: of the ring


def delay_cases(matrix: CSR, size: Size) -> dict[str, Loop | None]:
    """Return deliveries with a delay for each entry."""
    delays = jax.random.randint(jax.random.key(6), (matrix.nnz,), 1, SLOTS, jnp.int32)
    libraries: dict[str, Any] = {"": sparse}
    if importlib.util.find_spec("brainevent") is not None:
        import brainevent

        libraries[", brainevent"] = brainevent
    cases: dict[str, Loop | None] = {}
    for rate in RATES:
        for suffix, library in libraries.items():
            deliver = functools.partial(_deliver, library.csr_delay_deliver, matrix, delays)
            ring = jnp.zeros((SLOTS, size.n))
            now = jnp.arange(OPERANDS, dtype=jnp.int32)
            cases[f"delivery with delays, {rate:.1%}{suffix}"] = in_place(deliver, ring, spikes(size, rate), now)
    return cases


def _deliver(deliver: Any, matrix: CSR, delays: Any, ring: Any, fired: Any, t: Any) -> jax.Array:
    arrays = matrix.data, *matrix.structure, delays, t
    delivered: jax.Array = deliver(ring, fired, *arrays, shape=matrix.shape)
    return delivered
