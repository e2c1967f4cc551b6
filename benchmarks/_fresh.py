"""What is measured in processes of their own: the first call of an exported program, and memory that grows.

Each function of `CHILDREN` is what a child process runs; it prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def measure(child: str, *arguments: str) -> Any:
    """Run a function of `CHILDREN` in a new process, and return what it printed."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import _fresh; _fresh.run_child(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, child, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def run_child(arguments: list[str]) -> None:
    """Run the function that *arguments* name."""
    print(json.dumps(CHILDREN[arguments[0]](*arguments[1:])))


def export_here() -> bytes:
    """Export a program with a kernel."""
    import jax
    import jax.numpy as jnp
    from _kernels import add_kernel

    from xlakernel.core import export
    from xlakernel.numba import numba_kernel

    add = numba_kernel(add_kernel, outs=lambda x, y: x)
    struct = jax.ShapeDtypeStruct((1000,), jnp.float32)
    return export(jax.jit(add))(struct, struct).serialize()


def first_call(artifact: str) -> dict[str, float]:
    """Load an exported program and call it, in a process that has imported JAX and Numba and used JAX."""
    import jax.numpy as jnp
    import numba  # noqa: F401  # its import is not what is measured
    import numpy as np

    x = jnp.arange(1000, dtype=jnp.float32).block_until_ready()  # starts the backend, which every program does
    start = time.perf_counter()
    from xlakernel.core import deserialize

    loaded = deserialize(Path(artifact).read_bytes())
    middle = time.perf_counter()
    result = loaded.call(x, x).block_until_ready()
    end = time.perf_counter()
    np.testing.assert_array_equal(result, x + x)
    return {"load": middle - start, "first call": end - middle}


def measure_first_call(rounds: int) -> list[dict[str, float]]:
    """Export once, and load and call it in *rounds* new processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(export_here())
        return [measure("first_call", str(path)) for _ in range(rounds)]


def memory_growth() -> dict[str, float]:
    """Return by how many megabytes the resident memory grows."""
    import jax
    import jax.numpy as jnp
    from _kernels import fragile_kernel

    from xlakernel.numba import numba_kernel

    def wrap() -> Callable[..., Any]:
        return numba_kernel(fragile_kernel, outs=lambda x: x)

    run = wrap()
    good, bad = jnp.ones(16), -jnp.ones(16)

    def fail() -> None:
        try:
            jax.block_until_ready(run(bad))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            if "negative" not in str(error):
                raise
        else:
            raise AssertionError("the kernel raised nothing")

    repeated: dict[str, tuple[Callable[[], Any], int]] = {
        "100 000 calls": (lambda: run(good), 100_000),
        "1000 wraps of one kernel": (wrap, 1000),
        "1000 wraps, each called": (lambda: wrap()(good), 1000),
        "1000 errors": (fail, 1000),
    }
    found = {}
    for name, (action, times) in repeated.items():
        for _ in range(times // 20):  # what is allocated once is not growth
            action()
        before = _resident()
        for _ in range(times):
            action()
        found[name] = _resident() - before
    return found


def _resident() -> float:
    """Return the resident memory of this process, in megabytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def first_conversion() -> float:
    """Convert a matrix to compressed columns, in a process that has imported JAX and Numba and used JAX."""
    import jax
    import numba  # noqa: F401  # its import is not what is measured
    from _sparse_matrices import SIZES, uniform

    import xlakernel.sparse.kernels.numba  # noqa: F401  # nor that of the kernels

    matrix = jax.block_until_ready(uniform(SIZES["cpu"]))
    start = time.perf_counter()
    jax.block_until_ready(matrix.tocsc())
    return time.perf_counter() - start


CHILDREN: dict[str, Callable[..., Any]] = {
    "first_call": first_call,
    "first_conversion": first_conversion,
    "memory_growth": memory_growth,
}
