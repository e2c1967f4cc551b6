"""Matrices spread over the devices of two processes, which communicate through gloo."""

import jax
import pytest

from xlakernel.core.testing import run_in_processes

PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from xlakernel.sparse import CSC, CSR, BinaryArray, CompactArray

assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)

def check(name, found, expected):
    for shard in found.addressable_shards:
        np.testing.assert_allclose(shard.data, np.asarray(expected)[shard.index], rtol=1e-5, err_msg=name)
    print("right:", name, flush=True)

def loss(matrix, weights, x, u):
    matrix = matrix.with_data(weights)
    return ((matrix @ x) ** 2).sum() + ((BinaryArray(u) @ matrix) ** 2).sum()

gradients = jax.jit(jax.grad(loss, (1, 2, 3)))

# Every process makes the same matrix. The second shape does not divide among the devices.
random = np.random.default_rng(0)
for axes, shape, kind, prepared in (
    ("Auto", (8, 12), CSR, False), ("Auto", (7, 5), CSC, True), ("Explicit", (7, 5), CSR, True)
):
    dense = (random.integers(1, 9, shape) * (random.random(shape) < 0.4)).astype(np.float32)
    matrix = kind.from_dense(dense).shard(jax.make_mesh((4,), ("d",), (getattr(AxisType, axes),)), "d")
    matrix = matrix.prepare() if prepared else matrix
    rows, columns = shape
    x, u = np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32) % 3
    case = f"{axes}, {matrix!r}: "
    assert not matrix.data.is_fully_addressable
    check(case + "A @ x", matrix @ x, dense @ x)
    check(case + "u @ A", jnp.asarray(u) @ matrix, u @ dense)
    check(case + "A @ X", matrix @ np.stack([x, -x], 1), dense @ np.stack([x, -x], 1))
    check(case + "spikes @ A", BinaryArray(u) @ matrix, (u != 0) @ dense)
    check(case + "numbers of spikes @ A", CompactArray(u) @ matrix, (u != 0) @ dense)
    check(case + "the transpose", matrix.T @ u, u @ dense)
    check(case + "dense", matrix.todense(), dense)
    if axes == "Explicit" and jax.__version_info__ < (0, 8):
        continue  # an error of JAX: "padding on sharded dims ... is not implemented"
    # JAX lets no program close over what other processes hold: the matrix is an argument.
    of_weights, of_x, of_u = gradients(matrix, matrix.data, x, u)
    spikes = (u != 0).astype(np.float32)
    known = 2 * (np.outer(dense @ x, x) + np.outer(spikes, spikes @ dense)) * (dense != 0)
    check(case + "gradient of the weights", jax.jit(lambda A, w: A.with_data(w).todense())(matrix, of_weights), known)
    check(case + "gradient of x", of_x, 2 * dense.T @ (dense @ x))
    check(case + "gradient of the spikes", of_u, 2 * dense @ (spikes @ dense))
print("finished", flush=True)
"""

CHECKS = 3 * 10 if jax.__version_info__ >= (0, 8) else 3 * 10 - 3


@pytest.mark.slow
def test_a_matrix_over_two_processes():
    for text in run_in_processes(PROGRAM):
        assert text.count("right:") == CHECKS, text
        assert "finished" in text, text
