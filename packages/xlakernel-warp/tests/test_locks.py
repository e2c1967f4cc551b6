"""Kernels from several threads, by machine code and by Python, compiled and called at once, in other processes."""

import subprocess
import sys

import pytest

# One kernel alone compiles in half the time without its derivative, and without headers that others would share.
TILES = """
import threading, time
import jax, jax.numpy as jnp, numpy as np, warp as wp
from xlakernel.warp import jax_callable, warp_kernel

N, M = 64, 500

wp.set_module_options({"enable_backward": False, "use_precompiled_headers": False})

@wp.kernel
def double_sums(x: wp.array2d(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    tile = wp.tile_load(x, shape=(1, N), offset=(i, 0), storage="shared") * 2.0
    wp.tile_store(out, wp.tile_sum(tile), offset=i)

def launch(x: wp.array2d(dtype=float), out: wp.array(dtype=float)):
    wp.launch_tiled(double_sums, dim=x.shape[0], inputs=[x], outputs=[out], block_dim=64)

natively = warp_kernel(double_sums, jax.ShapeDtypeStruct((M,), jnp.float32), launch_dims=M)
runs = [jax.jit(natively), jax.jit(lambda x: jax_callable(launch, output_dims=M)(x)[0])]
x = np.arange(M * N, dtype=np.float32).reshape(M, N) % 5
wanted, wrong = 2 * x.sum(1), []

def repeat(run):
    end = time.monotonic() + 2
    while time.monotonic() < end:
        if not np.array_equal(run(x), wanted):
            wrong.append(run)

[run(x) for run in runs]
threads = [threading.Thread(target=repeat, args=(run,)) for run in runs]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong
"""

REGISTRY = """
import threading
import jax.numpy as jnp, numba, numpy as np, warp as wp
from xlakernel.core.ffi import registry
from xlakernel.numba import numba_kernel
from xlakernel.warp import warp_kernel

wp.set_module_options({"enable_backward": False, "use_precompiled_headers": False})

@wp.kernel
def double(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = 2.0 * x[wp.tid()]

@numba.njit
def triple(x, out):
    out[:] = 3 * x

both, register = threading.Barrier(2), registry.jax.ffi.register_ffi_target
of_warp, of_numba = (wrap(k, lambda x: x) for wrap, k in ((warp_kernel, double), (numba_kernel, triple)))
run = {f: threading.Thread(target=lambda f=f: f(jnp.ones(3)), daemon=True) for f in (of_warp, of_numba)}

class Meeting:  # in place of the registry's lock: Numba's kernel waits before it for Warp's to be inside
    def __init__(self, lock): self.lock = lock
    def __enter__(self):
        if threading.current_thread() is run[of_numba]: inside.wait(3)
        self.lock.acquire()
        if threading.current_thread() is run[of_warp]: inside.set()
    def __exit__(self, *_): self.lock.release()

inside = threading.Event()
registry._lock = Meeting(registry._lock)
for thread in run.values(): thread.start()
for thread in run.values(): thread.join(30)
assert not any(thread.is_alive() for thread in run.values())
"""


@pytest.mark.parametrize("program", [pytest.param(TILES, id="tiles"), pytest.param(REGISTRY, id="registry")])
def test_threads_wait_for_each_other_and_not_for_ever(program, tmp_path):
    path = tmp_path / "program.py"  # Warp reads kernels from files
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
