"""Calls that are split over the devices of two processes, which talk through gloo."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys
import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]), initialization_timeout=60)

import jax.numpy as jnp
import numba
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


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_both(folder, limit):
    """Run the program in two processes; return their exit codes and what they wrote. None of them outlives this."""
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    paths = [folder / f"{i}.txt" for i in range(2)]  # a pipe that nobody reads would fill up
    both = []
    try:
        for i, path in enumerate(paths):
            command = [sys.executable, "-c", PROGRAM, address, str(i)]
            with path.open("w") as file:
                both.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))
        end = time.monotonic() + limit
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in both:
                process.wait(max(0, end - time.monotonic()))
    finally:
        for process in both:
            process.kill()
            process.wait()
    return [process.returncode for process in both], [path.read_text() for path in paths]


@pytest.mark.slow
def test_calls_over_two_processes(tmp_path):
    codes, texts = run_both(tmp_path, limit=180)
    if any("Address already in use" in text for text in texts):  # someone took the port in between
        codes, texts = run_both(tmp_path, limit=180)
    report = "\n".join(f"process {i}, exit code {codes[i]}:\n{text}" for i, text in enumerate(texts))
    assert codes == [0, 0], report
    for text in texts:
        assert text.count("right:") == CASES, report
        assert "finished" in text, report
