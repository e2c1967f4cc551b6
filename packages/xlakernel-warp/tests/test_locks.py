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
from xlakernel.warp import jax_callable, warp_kernel

wp.set_module_options({"enable_backward": False, "use_precompiled_headers": False})

@wp.kernel
def double(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = 2.0 * x[wp.tid()]

@numba.njit
def triple(x, out):
    out[:] = 3 * x

def launch(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    wp.launch(double, dim=x.shape, inputs=[x], outputs=[out])

both, register = threading.Barrier(2), registry.jax.ffi.register_ffi_target
of_warp, of_numba = warp_kernel(double, lambda x: x), numba_kernel(triple, lambda x: x)
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


# What functions that launch kernels do beside it: no lock may be held around them, only around each launch.
FUNCTIONS = """
import threading
import jax, jax.numpy as jnp, numpy as np, warp as wp
from typing import Any
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

wp.set_module_options({"enable_backward": False, "use_precompiled_headers": False})
Floats = wp.array(dtype=float)
x = np.arange(1, 65, dtype=np.float32)

@wp.kernel
def double(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = 2.0 * x[wp.tid()]

@wp.kernel
def plus(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    out[wp.tid()] = x[wp.tid()] + x.dtype(1.0)

@wp.kernel(module="unique", enable_backward=True)
def square(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = x[wp.tid()] * x[wp.tid()]

@wp.kernel(module="unique")
def tile_sum(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    wp.tile_store(out, wp.tile_sum(wp.tile_load(x, shape=64, storage="shared")))

def launches(kernel, x, out):
    wp.launch(kernel, dim=x.shape, inputs=[x], outputs=[out])

def in_a_thread(work):
    failed = []
    def guarded():
        try:
            work()
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    def join():
        thread.join(60)
        assert not thread.is_alive() and not failed, failed
    return join

tiles = jax.jit(warp_kernel(tile_sum, jax.ShapeDtypeStruct((1,), jnp.float32), launch_dims=64, block_dim=64))
"""

BESIDE = {
    "waits for a thread that lowers": """
def function(x: Floats, out: Floats):
    in_a_thread(lambda: jax.jit(jax_kernel(plus)).lower(jnp.ones(3)).compile())()
    launches(double, x, out)

assert np.array_equal(jax_callable(function)(x)[0], 2 * x)
""",
    "calls a program with tiles": """
tiles(x)

def function(x: Floats, out: Floats):
    assert np.asarray(tiles(np.ones(64, np.float32)))[0] == 64
    launches(double, x, out)

assert np.array_equal(jax_callable(function)(x)[0], 2 * x)
""",
    "waits for a thread with tiles that it launches too": """
def function(x: Floats, out: Floats):
    in_a_thread(lambda: tiles(x.numpy()).block_until_ready())()
    wp.launch_tiled(tile_sum, dim=1, inputs=[x], outputs=[out], block_dim=64)

assert jax_callable(function, output_dims=1)(x)[0][0] == x.sum()
""",
    "calls another function": """
def inner(x: Floats, out: Floats):
    launches(double, x, out)

def function(x: Floats, out: Floats):
    in_a_thread(lambda: jax_callable(inner)(np.ones(3, np.float32))[0].block_until_ready())()
    launches(double, x, out)

assert np.array_equal(jax_callable(function)(x)[0], 2 * x)
""",
    "takes long": """
begun, done = threading.Event(), threading.Event()

def function(x: Floats, out: Floats):
    begun.set()
    assert done.wait(60)
    launches(double, x, out)

join = in_a_thread(lambda: jax_callable(function)(x)[0].block_until_ready())
assert begun.wait(60)
for dtype in (np.float32, np.float64, np.int32):
    jax.jit(jax_kernel(plus)).lower(jnp.ones(3, dtype)).compile()
assert np.asarray(tiles(x))[0] == x.sum()
done.set()
join()
""",
    "each has a tape": """
both = threading.Barrier(2)

def function(x: Floats, factor: float, out: Floats):
    y, squares = wp.clone(x, requires_grad=True), wp.zeros_like(x, requires_grad=True)
    both.wait(60)
    with wp.Tape() as tape:
        both.wait(60)
        launches(square, y, squares)
        both.wait(60)
    assert len(tape.launches) == 1
    tape.backward(grads={squares: wp.full_like(x, factor)})
    wp.copy(out, y.grad)

run = jax_callable(function)
def check(factor):
    assert np.array_equal(run(x, factor)[0], 2 * factor * x)

joins = [in_a_thread(lambda factor=factor: check(factor)) for factor in (1.0, 3.0)]
[join() for join in joins]
""",
    "is followed by a fork while another thread compiles": """
import os, time, warnings
from xlakernel.warp import _inside

def function(x: Floats, out: Floats):
    launches(double, x, out)

assert np.array_equal(jax_callable(function)(x)[0], 2 * x)
held = threading.Event()

def compiles():
    with _inside.lock:
        held.set()
        time.sleep(1)

join = in_a_thread(compiles)
assert held.wait(60)
warnings.simplefilter("ignore")  # JAX has threads, which a child must not need: it uses Warp alone
child = os.fork()
if not child:
    given, out = wp.array(x, dtype=float), wp.zeros(64, dtype=float)
    launches(double, given, out)
    os._exit(0 if np.array_equal(out.numpy(), 2 * x) else 1)
join()
end = time.monotonic() + 60
while not (found := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
    time.sleep(0.01)
if not found[0]:
    os.kill(child, 9)
assert found == (child, 0), found
""",
    "is interrupted": """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def function(x: Floats, out: Floats):
    os.kill(os.getpid(), signal.SIGINT)
    launches(double, x, out)

try:
    jax_callable(function)(x)[0].block_until_ready()
    threading.Event().wait(10)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("Ctrl-C was lost")
""",
    "meets new overloads of a kernel": """
both = threading.Barrier(4)

def make(dtype):
    def function(x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
        both.wait(60)
        launches(plus, x, out)
    return jax_callable(function)

def check(dtype):
    x = np.arange(5).astype(jnp.dtype(wp.dtype_to_jax(dtype)))
    assert np.array_equal(make(dtype)(x)[0], x + 1)

joins = [in_a_thread(lambda dtype=d: check(dtype)) for d in (wp.float32, wp.float16, wp.int32, wp.uint8)]
[join() for join in joins]
""",
}
OF_FUNCTIONS = REGISTRY.replace("warp_kernel(double, lambda x: x)", "jax_callable(launch)")
PROGRAMS = {"tiles": TILES, "registry": REGISTRY, "registry of functions": OF_FUNCTIONS} | {
    f"a function {what}": FUNCTIONS + it for what, it in BESIDE.items()
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_threads_wait_for_each_other_and_not_for_ever(program, tmp_path):
    path = tmp_path / "program.py"  # Warp reads kernels from files
    path.write_text(program)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
