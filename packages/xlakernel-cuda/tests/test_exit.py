"""End of a process while a program on a GPU still needs the interpreter."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from numba import cuda
from xlakernel.core import debug_mode
from xlakernel.cuda import numba_cuda_callable, numba_cuda_kernel

steps = 200_000 if sys.argv[1] == "debug" else 20_000_000  # it is compiled without optimisation there

@cuda.jit
def spin(x, out):
    value = x[0]
    for _ in range(steps):
        value = np.float32(3.9) * value * (np.float32(1) - value)
    out[0] = value

def launch(x, out, stream):
    spin[1, 1, stream](x, out)

def raises(x, out, stream):
    launch(x, out, stream)
    if np.isfinite(x.copy_to_host(stream=stream)).all():
        raise ValueError("the launching function failed")

x = jnp.full(1, 0.5, jnp.float32)
run = {
    "python": lambda: numba_cuda_callable(launch, x, record=False),
    "raises": lambda: numba_cuda_callable(raises, x, record=False),
    "debug": lambda: numba_cuda_kernel(spin, x, launch_dims=1),
}[sys.argv[1]]()

with debug_mode(sys.argv[1] == "debug"):
    program = jax.jit(lambda x: run(run(run(x)))).lower(x).compile()
"""


@pytest.mark.parametrize("end", ["result = program(x)", "program(x)"], ids=["result", "no result"])
@pytest.mark.parametrize("kind", ["python", "raises", "debug"])
def test_a_process_ends(kind, end):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + end, kind],
        env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        capture_output=True,
        text=True,
        timeout=120,  # which a process that never ends exceeds
        check=False,
    )
    assert done.returncode == 0 or (kind == "raises" and "the launching function failed" in done.stderr), done.stderr
