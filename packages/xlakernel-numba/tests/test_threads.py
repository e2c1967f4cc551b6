"""Parallel kernels, kernels in several Python threads, and the GIL."""

import importlib
import os
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import numba_kernel


@numba.njit(parallel=True)
def parallel_plus(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + 1


@numba.njit
def calls_parallel(x, out):
    parallel_plus(x, out)


@numba.njit
def serial_plus(x, out):
    for i in range(x.size):
        out[i] = x[i] + 1


def same(x):
    return x


KERNELS = [numba_kernel(kernel, outs=same) for kernel in (parallel_plus, calls_parallel, serial_plus)]


@numba.njit(parallel=True)
def parallel_sums(x, rows, total):
    for i in numba.prange(x.shape[0]):
        rows[i] = x[i].sum()
    accumulated = 0.0
    for i in numba.prange(x.shape[0]):
        accumulated += rows[i]
    total[()] = accumulated


def test_parallel_kernels_are_right():
    x = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    run = numba_kernel(
        parallel_sums,
        outs=lambda x: (jax.ShapeDtypeStruct(x.shape[:1], x.dtype), jax.ShapeDtypeStruct((), jnp.float32)),
    )
    for call in (run, jax.jit(run)):
        rows, total = call(x)
        assert_allclose(rows, x.sum(axis=1), rtol=1e-4, atol=1e-5)
        assert_allclose(total, x.sum(), rtol=1e-3, atol=1e-3)
    rows, total = jax.vmap(run)(np.stack([x, 2 * x]))
    assert_allclose(rows[1], 2 * x.sum(axis=1), rtol=1e-4, atol=1e-5)


def test_many_calls_from_four_threads(in_threads):
    def work(number):
        for i in range(50):
            x = np.full(100 + i % 10, number, np.float32)
            for run in KERNELS:
                assert_array_equal(run(x), x + 1)

    for run in KERNELS:
        for i in range(10):
            run(np.zeros(100 + i, np.float32))  # XLA compiles for each size
    in_threads(4, work)


def test_many_calls_within_one_program():
    @jax.jit
    def program(x):
        return [run(x + number) for number in range(4) for run in KERNELS]

    x = np.arange(5000, dtype=np.float32)
    for _ in range(20):
        for i, out in enumerate(program(x)):
            assert_array_equal(out, x + 1 + i // len(KERNELS))


def test_four_threads_that_call_a_new_kernel_at_once(in_threads):
    @numba.njit
    def new(x, out):
        for i in range(x.size):
            out[i] = 3 * x[i]

    before = len(registered_targets())
    run, results = numba_kernel(new, outs=same), {}

    def work(number):
        results[number] = np.asarray(run(np.full(3 + number % 2, number, np.float32)))

    in_threads(4, work)
    assert {number: set(out.tolist()) for number, out in results.items()} == {n: {3.0 * n} for n in range(4)}
    assert len(registered_targets()) == before + 1


# Nothing is lost, and nothing aborts, on any of Numba's threading layers. The layer is chosen once in a process.

LAYERS = """
import sys, threading
import jax, numba, numpy as np
from xlakernel.numba import numba_kernel

layer, count, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
space = {"numba": numba}
exec('''
@numba.njit(parallel=True)
def parallel_plus(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + 1

@numba.njit(parallel=True)
def sums(x, out):
    total = 0.0
    for i in numba.prange(x.size):
        total += x[i]
    out[:] = total

@numba.njit
def serial_plus(x, out):
    for i in range(x.size):
        out[i] = x[i] + 1

@numba.njit
def calls_parallel(x, out):
    parallel_plus(x, out)

def closes_over(function):
    @numba.njit
    def kernel(x, out):
        function[0](x, out)
    return kernel

closes = closes_over((parallel_plus,))
''', space)
runs = {name: numba_kernel(space[name], outs=lambda x: x)
        for name in ("parallel_plus", "serial_plus", "calls_parallel", "closes", "sums")}
x = np.arange(600, dtype=np.float32)
expected = {name: np.full(600, x.sum()) if name == "sums" else x + 1 for name in runs}
for run in runs.values():
    run(x).block_until_ready()
right, together = [0] * count, threading.Barrier(count)

def work(number):
    together.wait(60)
    for i in range(times):
        name = list(runs)[(i + number) % len(runs)]
        right[number] += bool((np.asarray(runs[name](x)) == expected[name]).all())

threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

program = jax.jit(lambda x: [run(x + number) for number in range(4) for run in runs.values()])  # independent calls
programs = [np.asarray(out) for _ in range(25) for out in program(x)]
wanted = [np.full(600, (x + n).sum()) if name == "sums" else x + n + 1 for n in range(4) for name in runs] * 25
mapped = jax.jit(jax.vmap(runs["parallel_plus"]))(np.stack([x] * 50))
assert numba.threading_layer() == layer, numba.threading_layer()
same = [bool((a == b).all()) for a, b in zip(programs, wanted, strict=True)]
print(sum(right), sum(same), bool((mapped == x + 1).all()))
"""


def layer(name, module):
    try:
        importlib.import_module(f"numba.np.ufunc.{module}")
    except ImportError as error:
        return pytest.param(name, marks=pytest.mark.skip(reason=f"Numba's {name} layer: {error}"))
    return name


@pytest.mark.process
@pytest.mark.parametrize("layer", [layer("omp", "omppool"), layer("workqueue", "workqueue"), layer("tbb", "tbbpool")])
def test_eight_threads_on_each_threading_layer(layer):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", LAYERS, layer, "8", "500"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4000", "500", "True"], done.stderr


@numba.njit
def spin(steps, out):
    value = 0.5
    for _ in range(steps[()]):
        value = 3.9 * value * (1 - value)  # chaotic: no compiler can shorten it
    out[()] = value


def test_a_running_kernel_does_not_stop_other_python_threads():
    """Another thread records the time every millisecond, which it could not during the call if that held the GIL."""
    run = numba_kernel(spin, outs=jax.ShapeDtypeStruct((), jnp.float32))
    steps, elapsed = 0, 0.0
    while elapsed < 0.3:
        start = time.perf_counter()
        run(np.int32(steps)).block_until_ready()
        elapsed = time.perf_counter() - start if steps else 0.0  # the first call compiles
        steps = 2 * steps or 1_000_000
    notes, stop = [], threading.Event()

    def note():
        while not stop.is_set():
            notes.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=note)
    thread.start()
    while not notes:
        time.sleep(0.001)
    start = time.perf_counter()
    run(np.int32(steps)).block_until_ready()
    end = time.perf_counter()
    stop.set()
    thread.join()
    margin = 0.1 * (end - start)
    assert sum(start + margin < moment < end - margin for moment in notes) > 10
