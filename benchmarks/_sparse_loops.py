"""Sparse products inside jitted loops, ours and those of peers, so that what is timed is the kernel."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from _sparse_matrices import OPERANDS

from xlakernel.sparse import CSR, ProceduralMatrix

#: ``run(calls)`` multiplies that often, by one operand after the other, and waits; a multiple of `OPERANDS`.
Loop = Callable[[int], None]

IN_A_PROGRAM = 4 * OPERANDS  #: products
GREATEST = 1e30  #: greater than any element of a product
SECONDS = 0.03  #: how long one measurement of a case takes, if a call is not longer


def in_jit(product: Callable[[Any, jax.Array], jax.Array], matrix: Any, operands: jax.Array) -> Loop:
    """Return a loop that is one compiled program.

    Each product depends on the iteration, by its operand: what does not, XLA moves out of the loop, also from behind
    `jax.lax.optimization_barrier` on the CPU. There, products of one iteration could run at the same time, so there is
    one; a GPU runs them in order, and waits for the host after each iteration, so that there are several.
    """
    together = 1 if jax.default_backend() == "cpu" else len(operands)

    @jax.jit
    def run(matrix: Any, operands: jax.Array, iterations: jax.Array) -> Any:
        def step(iteration: jax.Array, _: Any) -> Any:
            return tuple(product(matrix, operands[(iteration + j) % len(operands)]) for j in range(together))

        struct = jax.eval_shape(product, matrix, operands[0])
        nothing = tuple(jnp.zeros(struct.shape, struct.dtype) for _ in range(together))
        return jax.lax.fori_loop(0, iterations, step, nothing)

    def loop(calls: int) -> None:
        jax.block_until_ready(run(matrix, operands, -(-calls // together)))

    return loop


def in_program(product: Callable[[Any, Any], Any], matrix: Any, operands: jax.Array) -> Loop:
    """Return a loop over programs of up to `IN_A_PROGRAM` products, each of which a GPU runs as a CUDA graph.

    Each product waits for the one before: its operand is set at one place, by another kernel of the graph. The operand
    stays in its memory: if an address changes between two runs, the graph is updated, node by node.
    """

    @functools.partial(jax.jit, static_argnums=2, donate_argnums=1)
    def run(matrix: Any, x: jax.Array, products: int) -> jax.Array:
        for _ in range(products):
            x = x.at[0].set(product(matrix, x)[0] > GREATEST)
        return x

    def loop(calls: int) -> None:
        x = operands[0]
        for _ in range(calls // IN_A_PROGRAM):
            x = run(matrix, x, IN_A_PROGRAM)
        if calls % IN_A_PROGRAM:
            x = run(matrix, x, calls % IN_A_PROGRAM)
        jax.block_until_ready(x)

    return loop


def on_host(product: Callable[[Any], Any], operands: Any) -> Loop:
    """Return a loop in Python, for a peer of which a call costs little beside its kernel."""

    def run(calls: int) -> None:
        for i in range(calls):
            product(operands[i % len(operands)])

    return run


def on_device(product: Callable[[Any], Any], operands: Any) -> Loop:
    """Return a loop in Python over calls of CuPy's, which are waited for together."""
    import cupy

    enqueue = on_host(product, operands)

    def run(calls: int) -> None:
        enqueue(calls)
        cupy.cuda.Device().synchronize()

    return run


def in_brainevent(product: Callable[[Any, Any], Any], matrix: CSR, operands: jax.Array) -> Loop | None:
    """Return a compiled loop with brainevent's matrix; None if it is not installed."""
    if importlib.util.find_spec("brainevent") is None:
        return None
    import brainevent

    known = (matrix.data, matrix.indices, matrix.indptr)

    def multiply(_: None, x: jax.Array) -> jax.Array:  # it looks at the structure while tracing
        return product(brainevent.CSR(known, shape=matrix.shape), x)

    return in_jit(multiply, None, operands)


def in_jit_brainevent(
    product: Callable[[Any, Any], Any], name: str, matrix: ProceduralMatrix, operands: jax.Array
) -> Loop | None:
    """Return a compiled loop with brainevent's matrix that is drawn in each product; None if it is not installed.

    *name* is that of the weights' distribution: "equal weights", "uniform" or "normal".
    """
    if importlib.util.find_spec("brainevent") is None:
        return None
    import brainevent

    kind = {"equal weights": "JITCScalarR", "uniform": "JITCUniformR", "normal": "JITCNormalR"}[name]
    parameters = (*(float(parameter) for parameter in matrix.parameters), matrix.probability, 1)
    peer = getattr(brainevent, kind)(parameters, shape=matrix.shape)
    return in_jit(lambda _, x: product(peer, x), None, operands)


def time_loops(cases: Mapping[str, Loop | None], rounds: int) -> dict[str, list[float]]:
    """Time the cases in turn, so that all see the same weather; return seconds per call, round by round."""
    present = {name: run for name, run in cases.items() if run is not None}
    calls: dict[str, int] = {}
    for name, run in list(present.items()):
        try:
            calls[name] = _calls(run)
        except Exception as error:  # a peer that fails is told of, and its marks do not hold
            if not name.endswith("brainevent"):
                raise
            print(f"{name} failed: {type(error).__name__}: {str(error)[:200]}")
            del present[name]
    seconds: dict[str, list[float]] = {name: [] for name in present}
    for _ in range(rounds):
        for name, run in present.items():
            start = time.perf_counter()
            run(calls[name])
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return seconds


def _calls(run: Loop) -> int:
    """Return how many calls fill a measurement; compiles, and warms up."""
    run(OPERANDS)
    start = time.perf_counter()
    run(OPERANDS)
    calls = OPERANDS * max(1, round(SECONDS / (time.perf_counter() - start)))
    if calls > IN_A_PROGRAM:
        calls -= calls % IN_A_PROGRAM
    run(calls)  # compiles the programs of `in_program`, which depend on the number of calls
    return calls
