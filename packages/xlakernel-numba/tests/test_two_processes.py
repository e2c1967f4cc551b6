"""Calls that are split over the devices of two processes, connected by gloo."""

import pytest

from xlakernel.core.testing import run_in_processes

PROGRAM = """
import jax
import jax.numpy as jnp
import numba
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from xlakernel.numba import numba_kernel

assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)

@numba.njit
def cube(x, out):
    for i in range(x.size):
        out[i] = x[i] * x[i] * x[i]

@numba.njit
def matmul(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total

@numba.njit
def cumsum(x, out):
    total = np.float32(0)
    for i in range(x.size):
        total += x[i]
        out[i] = total

same = lambda x, *_: x
run_cube = numba_kernel(cube, outs=same, sharding_rule="i -> i", reference=lambda x: x**3)
run_matmul = numba_kernel(
    matmul,
    outs=lambda a, b: jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
    sharding_rule="m k, k n -> m n",
    reference=jnp.matmul,
)
run_cumsum = numba_kernel(cumsum, outs=same)

mesh = jax.make_mesh((4,), ("d",), (AxisType.Auto,))
V = np.linspace(-1, 1, 16, dtype=np.float32)
A = np.arange(64, dtype=np.float32).reshape(8, 8) / 64

def put(x, *spec):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, P(*spec)), lambda index: x[index])

def check(name, out, expected, *spec):
    for shard in out.addressable_shards:
        np.testing.assert_allclose(shard.data, np.asarray(expected)[shard.index], rtol=1e-4, atol=1e-5, err_msg=name)
    if spec:
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), out.ndim), (name, out.sharding)
    print("right:", name, flush=True)

x = put(V, "d")
check("rule", jax.jit(run_cube)(x), V**3, "d")
check("grad", jax.jit(jax.grad(lambda x: run_cube(x).sum()))(x), 3 * V**2, "d")
check("vmap", jax.jit(jax.vmap(run_cube))(put(A, None, "d")), A**3, None, "d")
by_hand = jax.shard_map(lambda x: jax.lax.psum(run_cube(x), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
check("shard_map and psum", jax.jit(by_hand)(x), (V**3).reshape(4, 4).sum(0))
a, b = put(A, None, "d"), put(A, "d", None)
check("contraction", jax.jit(run_matmul)(a, b), A @ A)
gradient = jax.jit(jax.grad(lambda a, b: run_matmul(a, b).sum(), (0, 1)))
for name, out, expected in zip("ab", gradient(a, b), (np.tile(A.sum(1), (8, 1)), np.tile(A.sum(0)[:, None], 8))):
    check(f"gradient of a contraction in {name}", out, expected)
check("no rule", jax.jit(run_cumsum)(x), np.cumsum(V))
print("finished", flush=True)
"""

CASES = 8


@pytest.mark.slow
def test_calls_over_two_processes():
    for text in run_in_processes(PROGRAM):
        assert text.count("right:") == CASES, text
        assert "finished" in text, text
