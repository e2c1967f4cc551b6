"""Parallel kernels, kernels in several Python threads, and the GIL."""

import ctypes
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


def in_threads(count, work):
    """Run ``work(number)`` in *count* threads at once; raise what any of them raised."""
    failures, barrier = [], threading.Barrier(count)

    def guarded(number):
        try:
            barrier.wait(timeout=60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


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


def test_many_calls_from_four_threads():
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


def test_four_threads_that_meet_a_new_kernel_at_once():
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
    """Another thread notes the time every millisecond; with the GIL held there would be no note inside the call."""
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


# A parallel loop runs in XLA's threads, with a state of its own in each call.


@numba.njit(parallel=True)
def scratch_sums(x, out):
    """Sum with a place for each thread, as Numba's documentation shows."""
    places = np.zeros(numba.get_num_threads())
    for i in numba.prange(x.size):
        places[numba.get_thread_id()] += x[i]
    out[0] = places.sum()


@numba.njit(parallel=True)
def chunked_sums(x, out):
    with numba.parallel_chunksize(7):
        total = 0.0
        for i in numba.prange(x.size):
            total += x[i]
    out[0] = total


@numba.njit(parallel=True)
def sum_of(x):
    total = 0.0
    for i in numba.prange(x.size):
        total += x[i]
    return total


@numba.njit(parallel=True)
def nested_sums(x, out):
    total = 0.0
    for i in numba.prange(10):
        total += sum_of(x[i * x.size // 10 : (i + 1) * x.size // 10])
    out[0] = total


@numba.njit("float64(float64[::1])", parallel=True)
def declared_sum_of(x):
    total = 0.0
    for i in numba.prange(x.size):
        total += x[i]
    return total


@numba.njit
def declared_sums(x, out):
    out[0] = declared_sum_of(x.astype(np.float64))


ONE = jax.ShapeDtypeStruct((1,), jnp.float32)
SUMS = [scratch_sums, chunked_sums, nested_sums, declared_sums]


@pytest.mark.parametrize("kernel", SUMS, ids=lambda kernel: kernel.__name__)
def test_sums_in_eight_threads_at_once(kernel):
    run = jax.jit(numba_kernel(kernel, outs=ONE))

    def work(number):
        for i in range(60):
            x = np.full(1000, number + i, np.float32)
            assert run(x)[0] == 1000 * (number + i)

    run(np.zeros(1000, np.float32)).block_until_ready()
    in_threads(8, work)
    x = np.arange(50_000, dtype=np.float32).reshape(50, 1000)
    assert_array_equal(jax.jit(jax.vmap(run))(x)[:, 0], x.sum(1))


def test_a_plain_call_uses_numbas_threads_before_and_after():
    x, before, after = np.arange(1000.0, dtype=np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)
    fresh = numba.njit(parallel=True)(scratch_sums.py_func)
    fresh(x, before)
    numba_kernel(fresh, outs=ONE)(x).block_until_ready()
    numba.njit(parallel=True)(scratch_sums.py_func)(x, after)
    assert before[0] == after[0] == x.sum()


@numba.njit(parallel=True)
def rounded_sums(x, out):
    total = np.float32(0)
    for i in numba.prange(x.size):
        total += x[i]
    out[0] = total


def test_a_sum_is_the_same_whichever_threads_were_free():
    run = jax.jit(numba_kernel(rounded_sums, outs=ONE))
    x = np.random.default_rng(0).normal(size=30_000).astype(np.float32)
    expected = np.asarray(run(x))
    mapped = np.asarray(jax.jit(jax.vmap(run))(np.stack([x] * 20)))
    assert_array_equal(mapped, np.broadcast_to(expected, mapped.shape))
    in_threads(4, lambda number: [assert_array_equal(run(x), expected) for _ in range(50)])


@numba.njit
def checked(value):
    if value < 0:
        raise ValueError("negative", value)
    return value


@numba.njit(parallel=True)
def checked_sum_of(x):
    total = 0.0
    for i in numba.prange(x.size):
        total += checked(x[i])
    return total


@numba.njit(parallel=True)
def fails_in_a_loop(x, out):
    for i in numba.prange(x.size):
        out[i] = checked(x[i])


@numba.njit
def fails_in_a_loop_of_a_helper(x, out):
    out[:] = checked_sum_of(x)


@pytest.mark.parametrize("kernel", [fails_in_a_loop, fails_in_a_loop_of_a_helper], ids=lambda kernel: kernel.__name__)
def test_each_call_gets_its_own_failure(kernel):
    """One call's exception is not another's, which runs the same kernel at the same time."""
    run = jax.jit(numba_kernel(kernel, outs=same))
    good = np.ones(2000, np.float32)
    run(good).block_until_ready()

    def work(number):
        for _ in range(40):
            if number % 2:
                bad = good.copy()
                bad[-number] = -number
                with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=rf"'negative', -{number}\.0"):
                    run(bad).block_until_ready()
            else:
                run(good).block_until_ready()

    in_threads(6, work)


def test_a_parallel_loop_does_not_ask_for_the_gil():
    run = numba_kernel(parallel_plus, outs=same)

    @jax.jit
    def program(x, matrix):
        for _ in range(3):  # what makes XLA run the program in a thread of its own
            matrix = matrix @ matrix / 300
        return run(x + 0 * matrix[0, 0])

    x, matrix = jnp.arange(1000.0), jnp.ones((300, 300))
    program(x, matrix).block_until_ready()
    sleep = ctypes.PyDLL(None).usleep  # which holds the GIL
    for _ in range(20):  # a busy machine may have given XLA's threads no time
        result = program(x, matrix)
        sleep(300_000)
        if result.is_ready():
            return
    pytest.fail("no program was done while another thread had the GIL")


WORKQUEUE = """
import threading
import jax, jax.numpy as jnp, numba, numpy as np
from xlakernel.numba import numba_kernel

@numba.njit(parallel=True)
def plus(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + 1

mapped = jax.vmap(numba_kernel(plus, outs=lambda x: x))

@jax.jit
def run(many, matrix):
    for _ in range(3):  # what makes XLA run the program in a thread of its own
        matrix = matrix @ matrix / 300
    return mapped(many + 0 * matrix[0, 0])

x, out = np.arange(3000, dtype=np.float32), np.empty(3000, np.float32)
many, matrix = jnp.zeros((200, 3000)), jnp.ones((300, 300))
run(many, matrix).block_until_ready()
plus(x, out)
assert numba.threading_layer() == "workqueue"
for _ in range(30):
    result = run(many, matrix)
    while not result.is_ready():
        plus(x, out)
    assert bool((result == 1).all())
assert bool((out == x + 1).all())
"""


def test_plain_calls_on_workqueue_beside_programs():
    """That layer ends the process when two threads enter it at once."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NUMBA_THREADING_LAYER": "workqueue"}
    done = subprocess.run(
        [sys.executable, "-c", WORKQUEUE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
