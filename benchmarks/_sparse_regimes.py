"""Regimes beside the common ones: batches of events, lists of events, many active events, and extreme sizes."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _sparse_loops import Loop, in_brainevent, in_jit, on_host
from _sparse_matrices import OPERANDS, RATES, Size, spikes, uniform, vectors
from _sparse_products import left, left_events, right, right_brainevent, right_events

from xlakernel.sparse import CSR, BinaryArray, CompactArray

BATCHES = (2, 32, 128)
SPARSE_RATES = (0.001, 0.01)  #: at which batches are mapped
DENSE_RATES = (0.2, 0.5)  #: at which entries are gathered
MANY_ROWS = Size(1_000_000, 10)
WIDE = Size(20_000, 50)
WIDE_COLUMNS = 128
DENSE_SIZE = 4000  #: rows and columns of the dense matrix


def batch_cases(matrix: CSR, size: Size) -> dict[str, Loop | None]:
    """Return products of batches of events: mapped by `jax.vmap`, one after the other, and as dense matrices."""
    cases: dict[str, Loop | None] = {}
    for batch in BATCHES:
        for rate in SPARSE_RATES:
            x = jnp.stack([spikes(size, rate)] * (batch // OPERANDS + 1), 1).reshape(OPERANDS, -1, size.n)[:, :batch]
            name = f"batch of {batch}, {rate:.1%}"
            cases[name] = in_jit(_mapped, matrix, x)
            cases[f"{name}, lax.map"] = in_jit(_in_turn, matrix, x)
            cases[f"{name}, dense"] = in_jit(lambda matrix, x: x.astype(matrix.dtype) @ matrix, matrix, x)
    return cases


def _mapped(matrix: CSR, x: jax.Array) -> jax.Array:
    return jax.vmap(lambda x: BinaryArray(x) @ matrix)(x)


def _in_turn(matrix: CSR, x: jax.Array) -> jax.Array:
    found: jax.Array = jax.lax.map(lambda x: BinaryArray(x) @ matrix, x)
    return found


def list_cases(matrix: CSR, size: Size) -> dict[str, Loop | None]:
    """Return products with lists of events that are made in each step, and with new weights in each step."""
    x = spikes(size, 0.001)
    prepared = matrix.prepare()

    def with_new_weights(matrix: CSR, x: jax.Array) -> jax.Array:
        return matrix.with_data(matrix.data) @ BinaryArray(x)

    return {
        "CompactArray(s) @ CSR, 0.1%": in_jit(lambda matrix, x: CompactArray(x) @ matrix, matrix, x),
        "BinaryArray(s) @ CSR, 0.1%": in_jit(right_events, matrix, x),
        "CSR @ events, 0.1%, prepared, new weights": in_jit(with_new_weights, prepared, x),
        "CSR @ events, 0.1%, prepared": in_jit(left_events, prepared, x),
        "CSR @ events, 0.1%": in_jit(left_events, matrix, x),
    }


def active_cases(matrix: CSR, size: Size) -> dict[str, Loop | None]:
    """Return products with many active events, with a prepared matrix and without."""
    cases: dict[str, Loop | None] = {}
    prepared = matrix.prepare()
    for rate in DENSE_RATES:
        x = spikes(size, rate)
        cases[f"CSR @ events, {rate:.0%}, prepared"] = in_jit(left_events, prepared, x)
        cases[f"CSR @ events, {rate:.0%}, gathered"] = in_jit(left_events, matrix, x)
        cases[f"CSR @ events, {rate:.0%}, scattered"] = in_jit(right_events, matrix.T.tocsr(), x)
        cases[f"events @ CSR, {rate:.0%}"] = in_jit(right_events, matrix, x)
        cases[f"events @ CSR, {rate:.0%}, brainevent"] = in_brainevent(right_brainevent, matrix, x)
    return cases


def dense_cases() -> dict[str, Loop | None]:
    """Return products of events, a vector and a batch, with a dense matrix."""
    matrix: Any = jax.random.normal(jax.random.key(9), (DENSE_SIZE, DENSE_SIZE))
    has_peer = importlib.util.find_spec("brainevent") is not None
    cases: dict[str, Loop | None] = {}
    for rate in RATES:
        for shape, name in (((), "events"), ((32,), "32 x events")):
            x = jax.random.bernoulli(jax.random.key(10), rate, (OPERANDS, *shape, DENSE_SIZE))
            cases[f"{name} @ dense, {rate:.1%}"] = in_jit(right_events, matrix, x)
            cases[f"{name} @ dense, {rate:.1%}, jax.numpy"] = in_jit(_times_dense, matrix, x)
            peer = in_jit(right_brainevent, matrix, x) if has_peer else None
            cases[f"{name} @ dense, {rate:.1%}, brainevent"] = peer
    return cases


def _times_dense(matrix: jax.Array, x: jax.Array) -> jax.Array:
    # As accurate as ours: by default, a GPU rounds float32 weights to 11 bits before it multiplies.
    return jnp.matmul(x.astype(matrix.dtype), matrix, precision="highest")


def extreme_cases() -> dict[str, Loop | None]:
    """Return products of a matrix with many short rows, and with a wide dense matrix."""
    short, x = uniform(MANY_ROWS), vectors(MANY_ROWS)
    matrix = uniform(WIDE)
    columns: Any = jax.random.uniform(jax.random.key(8), (2, WIDE_COLUMNS, WIDE.n))
    cases: dict[str, Loop | None] = {}
    for name, product, of, operands in (
        ("CSR @ x, 10^6 rows of 10", left, short, x),
        ("x @ CSR, 10^6 rows of 10", right, short, x),
        (f"X @ CSR, {WIDE_COLUMNS} rows", right, matrix, columns),
        (f"CSR @ X, {WIDE_COLUMNS} columns", left, matrix, columns.transpose(0, 2, 1)),
    ):
        theirs = of.to_scipy()
        cases[name] = in_jit(product, of, operands)
        cases[f"{name}, SciPy"] = on_host(lambda x, by=product, of=theirs: by(of, x), np.asarray(operands))
    return cases
