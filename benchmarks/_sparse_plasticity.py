"""Updates of plastic weights at several rates, ours and brainevent's, in place in one jitted loop."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _sparse_loops import Loop
from _sparse_matrices import OPERANDS, RATES, Size, spikes

from xlakernel import sparse
from xlakernel.sparse import CSR


def in_place(update: Callable[..., jax.Array], state: jax.Array, *arrays: jax.Array) -> Loop:
    """Return a loop that carries the *state*, and updates it with one slice of *arrays* after the other."""

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state: jax.Array, arrays: Any, calls: jax.Array) -> jax.Array:
        def step(i: jax.Array, state: jax.Array) -> jax.Array:
            return update(state, *(array[i % len(array)] for array in arrays))

        return jax.lax.fori_loop(0, calls, step, state)

    carried = [jnp.array(state)]

    def loop(calls: int) -> None:
        carried[0] = jax.block_until_ready(run(carried[0], arrays, calls))

    return loop


def plasticity_cases(matrix: CSR, size: Size) -> dict[str, Loop | None]:
    """Return updates on events of rows and of columns, with and without limits."""
    known, transposed = matrix.structure, sparse.csr_transpose(*matrix.structure, shape=matrix.shape)
    traces = 1e-3 * jax.random.normal(jax.random.key(5), (OPERANDS, size.n))
    libraries: dict[str, Any] = {"": sparse}
    if importlib.util.find_spec("brainevent") is not None:
        import brainevent

        libraries[", brainevent"] = brainevent
    cases: dict[str, Loop | None] = {}
    for rate in RATES:
        fired = spikes(size, rate)
        for limits, name in (((), ""), ((0.0, 1.0), ", within limits")):
            for suffix, library in libraries.items():
                on_pre = functools.partial(_on_pre, library.update_csr_on_binary_pre, known, limits, matrix.shape)
                on_post = functools.partial(
                    _on_post, library.update_csr_on_binary_post, transposed, limits, matrix.shape
                )
                cases[f"update on pre, {rate:.1%}{name}{suffix}"] = in_place(on_pre, matrix.data, fired, traces)
                cases[f"update on post, {rate:.1%}{name}{suffix}"] = in_place(on_post, matrix.data, fired, traces)
    return cases


def _on_pre(update: Any, structure: Any, limits: Any, shape: Any, data: Any, fired: Any, trace: Any) -> jax.Array:
    updated: jax.Array = update(data, *structure, fired, trace, *limits, shape=shape)
    return updated


def _on_post(update: Any, structure: Any, limits: Any, shape: Any, data: Any, fired: Any, trace: Any) -> jax.Array:
    updated: jax.Array = update(data, *structure, trace, fired, *limits, shape=shape)
    return updated
