"""Threads that compile, lower and run kernels at once, by machine code and by Python; each case prints its name.

A function that launches kernels may do anything beside it: no lock is held around functions, only around each launch.
"""

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
import warp as wp

from xlakernel.core.ffi import registry
from xlakernel.numba import numba_kernel
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel
from xlakernel.warp._internals.lock import lock

# A module compiles in half the time without derivatives, and without headers that others would share.
wp.set_module_options({"enable_backward": False, "use_precompiled_headers": False})
Floats = wp.array(dtype=float)
N, M = 64, 500
x = np.arange(1, N + 1, dtype=np.float32)


@wp.kernel
def double(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = 2.0 * x[wp.tid()]


@wp.kernel
def triple(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = 3.0 * x[wp.tid()]


@wp.kernel
def plus(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    out[wp.tid()] = x[wp.tid()] + x.dtype(1.0)


@wp.kernel(module="unique", enable_backward=True)
def square(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    out[wp.tid()] = x[wp.tid()] * x[wp.tid()]


@wp.kernel(module="unique")
def sums(x: wp.array2d(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    wp.tile_store(out, wp.tile_sum(wp.tile_load(x, shape=(1, N), offset=(i, 0), storage="shared")), offset=i)


def launches(kernel, x, out):
    wp.launch(kernel, dim=x.shape, inputs=[x], outputs=[out])


def run_beside(work):
    """Start *work* in a thread; return a function that waits for its end."""
    failed = []

    def guarded():
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is reported where the thread is joined
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()

    def join():
        thread.join(60)
        assert not thread.is_alive() and not failed, failed

    return join


def sums_of(rows):
    return jax.jit(warp_kernel(sums, jax.ShapeDtypeStruct((rows,), jnp.float32), launch_dims=rows))


one_sum = sums_of(1)


def tiles():
    def launch(x: wp.array2d(dtype=float), out: wp.array(dtype=float)):
        wp.launch_tiled(sums, dim=x.shape[0], inputs=[x], outputs=[out], block_dim=64)

    runs = [sums_of(M), jax.jit(lambda x: jax_callable(launch, output_dims=M)(x)[0])]
    x = np.arange(M * N, dtype=np.float32).reshape(M, N) % 5

    def repeat(run):
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert np.array_equal(run(x), x.sum(1))

    [run(x) for run in runs]
    [join() for join in [run_beside(lambda run=run: repeat(run)) for run in runs]]


def meet_in_the_registry(of_warp, factor):
    """Register a target of Warp's and one of Numba's, where Numba's waits for Warp's to be inside the registry."""

    def multiply(x, out):
        for i in range(x.size):  # which compiles in a tenth of the time of a slice
            out[i] = factor * x[i]

    of_numba = numba_kernel(numba.njit(multiply), lambda x: x)
    run = {f: threading.Thread(target=lambda f=f: f(jnp.ones(3)), daemon=True) for f in (of_warp, of_numba)}
    inside, entered = threading.Event(), []

    class Meeting:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if threading.current_thread() is run[of_numba]:
                inside.wait(3)
            self.lock.acquire()
            entered.append(threading.current_thread())
            if threading.current_thread() is run[of_warp]:
                inside.set()

        def __exit__(self, *_):
            self.lock.release()

    before = registry._lock
    registry._lock = Meeting(before)
    for thread in run.values():
        thread.start()
    for thread in run.values():
        thread.join(60)
    registry._lock = before
    assert not any(thread.is_alive() for thread in run.values())
    assert set(run.values()) <= set(entered)


def registry_and_kernels():
    meet_in_the_registry(warp_kernel(triple, lambda x: x), 3)


def registry_and_functions():
    def launch(x: Floats, out: Floats):
        wp.launch(double, dim=x.shape, inputs=[x], outputs=[out])

    meet_in_the_registry(jax_callable(launch), 4)


def a_thread_that_lowers():
    def function(x: Floats, out: Floats):
        run_beside(lambda: jax.jit(jax_kernel(plus)).lower(jnp.ones(3)).compile())()
        launches(double, x, out)

    assert np.array_equal(jax_callable(function)(x)[0], 2 * x)


def a_program_with_tiles():
    one_sum(x[None])

    def function(x: Floats, out: Floats):
        assert np.asarray(one_sum(np.ones((1, N), np.float32)))[0] == N
        launches(double, x, out)

    assert np.array_equal(jax_callable(function)(x)[0], 2 * x)


def a_thread_with_the_same_tiles():
    def function(x: wp.array2d(dtype=float), out: Floats):
        run_beside(lambda: one_sum(x.numpy()).block_until_ready())()
        wp.launch_tiled(sums, dim=1, inputs=[x], outputs=[out], block_dim=64)

    assert jax_callable(function, output_dims=1)(x[None])[0][0] == x.sum()


def another_function():
    def inner(x: Floats, out: Floats):
        launches(double, x, out)

    def function(x: Floats, out: Floats):
        run_beside(lambda: jax_callable(inner)(np.ones(3, np.float32))[0].block_until_ready())()
        launches(double, x, out)

    assert np.array_equal(jax_callable(function)(x)[0], 2 * x)


def a_function_that_takes_long():
    begun, done = threading.Event(), threading.Event()

    def function(x: Floats, out: Floats):
        begun.set()
        assert done.wait(60)
        launches(double, x, out)

    join = run_beside(lambda: jax_callable(function)(x)[0].block_until_ready())
    assert begun.wait(60)
    for dtype in (np.float32, np.uint32, np.int32):
        jax.jit(jax_kernel(plus)).lower(jnp.ones(3, dtype)).compile()
    assert np.asarray(one_sum(x[None]))[0] == x.sum()
    done.set()
    join()


def a_tape_each():
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

    [join() for join in [run_beside(lambda factor=factor: check(factor)) for factor in (1.0, 3.0)]]


def new_overloads_of_a_kernel():
    both = threading.Barrier(4)

    def make(dtype):
        def function(x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
            both.wait(60)
            launches(plus, x, out)

        return jax_callable(function)

    def check(dtype):
        x = np.arange(5).astype(jnp.dtype(wp.dtype_to_jax(dtype)))
        assert np.array_equal(make(dtype)(x)[0], x + 1)

    dtypes = (wp.float32, wp.float16, wp.int16, wp.uint8)
    [join() for join in [run_beside(lambda dtype=dtype: check(dtype)) for dtype in dtypes]]


def a_fork_while_another_thread_compiles():
    def function(x: Floats, out: Floats):
        launches(double, x, out)

    assert np.array_equal(jax_callable(function)(x)[0], 2 * x)
    held = threading.Event()

    def compiles():
        with lock:
            held.set()
            time.sleep(1)

    join = run_beside(compiles)
    assert held.wait(60)
    warnings.simplefilter("ignore")  # JAX has threads, which a child must not need: it uses Warp alone
    child = os.fork()
    if not child:
        given, out = wp.array(x, dtype=float), wp.zeros(N, dtype=float)
        launches(double, given, out)
        os._exit(0 if np.array_equal(out.numpy(), 2 * x) else 1)
    join()
    end = time.monotonic() + 60
    while not (found := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
    if not found[0]:
        os.kill(child, 9)
    assert found == (child, 0), found


def an_interrupt():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def function(x: Floats, out: Floats):
        os.kill(os.getpid(), signal.SIGINT)
        launches(double, x, out)

    try:
        jax_callable(function)(x)[0].block_until_ready()
        threading.Event().wait(10)
    except KeyboardInterrupt:
        return
    raise AssertionError("Ctrl-C was lost")


# Those that leave something behind in the process come last.
CASES = {
    "kernels and functions with tiles at once": tiles,
    "the registry, with kernels": registry_and_kernels,
    "the registry, with functions": registry_and_functions,
    "a function waits for a thread that lowers": a_thread_that_lowers,
    "a function calls a program with tiles": a_program_with_tiles,
    "a function waits for a thread with tiles that it launches too": a_thread_with_the_same_tiles,
    "a function calls another function": another_function,
    "a function takes long": a_function_that_takes_long,
    "functions each have a tape": a_tape_each,
    "functions meet new overloads of a kernel": new_overloads_of_a_kernel,
    "a function is followed by a fork while another thread compiles": a_fork_while_another_thread_compiles,
    "a function is interrupted": an_interrupt,
}

if __name__ == "__main__":
    for name, case in CASES.items():
        begin = time.monotonic()
        try:
            case()
        except BaseException:  # noqa: BLE001 - it is printed, and the case counts as failed
            traceback.print_exc()
            sys.stderr.flush()
        else:
            print(f"passed: {name}", flush=True)
        if "-v" in sys.argv:
            print(f"{time.monotonic() - begin:.2f} s", flush=True)
    os._exit(0)  # a thread that still waits must not hold up the end
