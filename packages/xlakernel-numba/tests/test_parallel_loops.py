"""Parallel loops in XLA's threads: numbers of threads, sums, exceptions, the GIL, and plain calls."""

import ctypes
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.numba import numba_kernel

TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or numba.config.NUMBA_NUM_THREADS < 2, reason="the pools have one thread"
)


def same(x):
    return x


@numba.njit(parallel=True)
def parallel_plus(x, out):
    for i in numba.prange(x.size):
        out[i] = x[i] + 1


@numba.njit(parallel=True)
def scratch_sums(x, out):
    """Sum with a slot for each thread, as in Numba's documentation."""
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
def test_sums_in_eight_threads_at_once(kernel, in_threads):
    run = jax.jit(numba_kernel(kernel, outs=ONE))

    def work(number):
        for i in range(60):
            x = np.full(1000, number + i, np.float32)
            assert run(x)[0] == 1000 * (number + i)

    run(np.zeros(1000, np.float32)).block_until_ready()
    in_threads(8, work)
    x = np.arange(50_000, dtype=np.float32).reshape(50, 1000)
    assert_array_equal(jax.jit(jax.vmap(run))(x)[:, 0], x.sum(1))


pthread_self = ctypes.CDLL(None).pthread_self
pthread_self.restype, pthread_self.argtypes = ctypes.c_uint64, ()


@numba.njit
def spin(steps):
    value = 0.5
    for _ in range(steps):
        value = 3.9 * value * (1 - value)  # chaotic: no compiler can shorten it
    return value


@numba.njit(parallel=True)
def thread_of(steps, out):
    for i in numba.prange(steps.size):
        if spin(steps[i]) >= 0:
            out[i] = np.uint32(pthread_self() >> 12)


def threads_until(run, steps, wanted, *, count):
    """Call *run* until *count* calls had the *wanted* number of threads, which a busy machine does not always have."""
    found, deadline = [], time.monotonic() + 120
    while sum(map(wanted, found)) < count:
        assert time.monotonic() < deadline, f"threads of {len(found)} calls: {found[:20]} ... {found[-20:]}"
        found.append(len(set(np.asarray(run(steps)).tolist())))


def one(threads):
    return threads == 1


def several(threads):
    return threads > 1


LIGHT, HEAVY = np.full(4, 100, np.int32), np.full(4000, 300, np.int32)  # about a microsecond, some milliseconds
LOADS = {
    "sizes": (LIGHT, HEAVY),
    "values": (np.zeros(16, np.int32), np.full(16, 100_000, np.int32)),
}


@TWO_CORES
@pytest.mark.parametrize("load", LOADS)
def test_a_heavy_loop_runs_in_several_threads(load):
    """A handler serves all sizes: light calls must not affect the threads of heavy ones, nor the reverse."""
    run = jax.jit(numba_kernel(thread_of, outs=lambda steps: jax.ShapeDtypeStruct(steps.shape, jnp.uint32)))
    light, heavy = LOADS[load]
    for _ in range(2):
        threads_until(run, light, one, count=3)
        threads_until(run, heavy, several, count=5)


@TWO_CORES
def test_a_plain_call_uses_numbas_threads_before_and_after():
    def plain(steps):
        out = np.zeros(steps.size, np.uint32)
        fresh(steps, out)
        return out

    fresh = numba.njit(parallel=True)(thread_of.py_func)
    threads_until(plain, HEAVY, several, count=1)
    numba_kernel(fresh, outs=lambda steps: jax.ShapeDtypeStruct(steps.shape, jnp.uint32))(HEAVY).block_until_ready()
    threads_until(plain, HEAVY, several, count=1)
    fresh = numba.njit(parallel=True)(thread_of.py_func)
    threads_until(plain, HEAVY, several, count=1)


@numba.njit(parallel=True)
def rounded_sums(x, out):
    total = np.float32(0)
    for i in numba.prange(x.size):
        total += x[i]
    out[0] = total


@numba.njit(parallel=True)
def rounded_chunked_sums(x, out):
    with numba.parallel_chunksize(7):
        total = np.float32(0)
        for i in numba.prange(x.size):
            total += x[i]
    out[0] = total


@pytest.mark.parametrize("kernel", [rounded_sums, rounded_chunked_sums], ids=lambda kernel: kernel.__name__)
def test_a_sum_does_not_depend_on_the_threads_that_are_free(kernel, in_threads):
    run = jax.jit(numba_kernel(kernel, outs=ONE))
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
def test_each_call_gets_its_own_failure(kernel, in_threads):
    """Concurrent calls of one kernel have separate exceptions."""
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


def test_a_parallel_loop_does_not_take_the_gil():
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


# A loop that Numba compiles for an overload, in the slices of a batch.
WORKQUEUE_OVERLOAD = """
import jax, jax.numpy as jnp, numba
from numba.extending import overload
from xlakernel.numba import numba_kernel

def add_one(x, out): pass

@overload(add_one, jit_options={"parallel": True})
def declare(x, out):
    def implementation(x, out):
        for i in numba.prange(x.size):
            total = 0.0
            for _ in range(200):
                total += x[i]
            out[i] = total
    return implementation

@numba.njit
def kernel(x, out):
    add_one(x, out)

run = jax.jit(jax.vmap(numba_kernel(kernel, outs=lambda x: x)))
for _ in range(20):
    assert bool((run(jnp.ones((8, 20_000))) == 200).all())
"""


@pytest.mark.process
@pytest.mark.parametrize("program", [WORKQUEUE, WORKQUEUE_OVERLOAD], ids=["beside programs", "of an overload"])
def test_loops_on_workqueue(program):
    """That layer aborts the process if two threads enter it at once."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NUMBA_THREADING_LAYER": "workqueue"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
