"""`jax.vmap` over kernels on XLA's thread pool: results, errors, and the number of threads."""

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.numba import numba_kernel

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="XLA's pool has one thread on one core")

FAST, SLOW = 0, 100_000  # steps of a slice: some nanoseconds, some hundred microseconds

pthread_self = ctypes.CDLL(None).pthread_self
pthread_self.restype, pthread_self.argtypes = ctypes.c_uint64, ()


@numba.njit
def spin(steps):
    value = 0.5
    for _ in range(steps):
        value = 3.9 * value * (1 - value)  # chaotic: no compiler can shorten it
    return value


@numba.njit
def slow_cumsum(x, steps, out):
    """Each element depends on all before it, to detect mixed-up slices; the time depends on the slice."""
    total = np.float32(0) if spin(steps[()]) >= 0 else np.float32(1)
    for i in range(x.size):
        total += x[i]
        out[i] = total


@numba.njit
def count_up(before, steps, after):
    """For an alias of before and after, to detect slices that run twice."""
    if spin(steps[()]) >= 0:
        for i in range(after.size):
            after[i] += 1


@numba.njit
def fails_below(x, steps, out):
    if spin(steps[()]) >= 0 and x[0] < 0:
        raise ValueError("a negative start", x[0])
    for i in range(x.size):
        out[i] = x[i]


@numba.njit
def halve(x, steps, out):
    if spin(steps[()]) >= 0:
        out[()] = x[()] * np.float32(0.5)


@numba.njit
def thread_of(steps, out):
    if spin(steps[()]) >= 0:
        out[()] = np.uint32(pthread_self() >> 12)


@numba.njit(parallel=True)
def parallel_helper(steps):
    total = 0.0
    for _ in numba.prange(2):
        total += spin(steps)
    return total


@numba.njit
def thread_of_calling_parallel(steps, out):
    if parallel_helper(steps[()]) >= 0:
        out[()] = np.uint32(pthread_self() >> 12)


def first(x, *_):
    return x


run_cumsum = numba_kernel(slow_cumsum, outs=first)
run_count_up = numba_kernel(count_up, outs=first, input_output_aliases={0: 0})
run_fails_below = numba_kernel(fails_below, outs=first)


def costs(kind, total):
    steps = np.full(total, FAST, np.int32)
    if kind == "slow":
        steps[:] = SLOW if total < 100 else SLOW // 20
    if kind == "mixed":
        steps[:: max(1, total // 7)] = SLOW
    if kind == "slow at last":
        steps[total // 2 :] = SLOW // max(1, total // 20)
    return steps


def integers(*shape):
    return np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)


KINDS = pytest.mark.parametrize("kind", ["fast", "slow", "mixed", "slow at last"])


@KINDS
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 97, 1009, 4096])
def test_every_slice_is_computed_exactly_once(kind, size):
    x, steps = integers(size, 5), costs(kind, size)
    assert_array_equal(jax.vmap(run_cumsum)(x, steps), np.cumsum(x, 1))
    assert_array_equal(jax.vmap(run_count_up)(x, steps), x + 1)


@KINDS
def test_nested_batches_and_operands_that_slices_share(kind):
    x, steps = integers(6, 4), costs(kind, 30)
    out = jax.vmap(jax.vmap(run_cumsum, (None, 0)), (0, None))(x, steps)
    assert_array_equal(out, np.broadcast_to(np.cumsum(x, 1)[:, None], (6, 30, 4)))
    out = jax.vmap(jax.vmap(run_cumsum, (0, None)), (None, 0), 1)(x, steps)
    assert_array_equal(out, np.broadcast_to(np.cumsum(x, 1)[:, None], (6, 30, 4)))
    assert_array_equal(jax.vmap(run_cumsum, (None, 0))(x[0], steps), np.broadcast_to(np.cumsum(x[0]), (30, 4)))


@KINDS
def test_an_aliased_operand_that_slices_share(kind):
    x = jnp.asarray(integers(4))
    out = jax.vmap(run_count_up, (None, 0))(x, costs(kind, 50))
    assert_array_equal(out, np.broadcast_to(x + 1, (50, 4)))
    assert_array_equal(x, integers(4))


@KINDS
@pytest.mark.parametrize("failing", [[0], [30], [59], [7, 8, 41], range(60)], ids=str)
def test_the_error_is_that_of_the_first_slice_that_fails(kind, failing):
    """As in a serial run; and the next call is right."""
    good, steps = np.abs(integers(60, 3)), costs(kind, 60)
    bad = good.copy()
    bad[failing, 0] = -1 - np.asarray(failing)
    expected = (
        rf"ValueError: \('a negative start', -{1 + failing[0]}\.0\) \(raised by kernel 'fails_below'.*test_vmap_pool"
    )
    program = jax.jit(jax.vmap(run_fails_below))
    for _ in range(3):
        with pytest.raises(RAISED, match=expected):
            program(bad, steps).block_until_ready()
        assert_array_equal(program(good, steps), good)


def test_the_message_is_that_of_a_call_without_a_batch():
    messages = []
    for run, x, steps in [
        (run_fails_below, -np.ones(3, np.float32), np.int32(0)),
        (jax.vmap(run_fails_below), -np.ones((50, 3), np.float32), costs("slow", 50)),
    ]:
        with pytest.raises(RAISED) as caught:
            jax.jit(run)(x, steps).block_until_ready()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "a negative start" in messages[0]


def test_some_thousand_calls_of_which_half_fail():
    program = jax.jit(jax.vmap(run_fails_below))
    good = np.abs(integers(8, 2))
    bad, steps = -1 - good, np.full(8, SLOW // 4, np.int32)
    for _ in range(1000):
        with pytest.raises(RAISED, match="a negative start"):
            program(bad, steps).block_until_ready()
        assert_array_equal(program(good, steps), good)


def test_eight_threads_that_call_at_once():
    program, together = jax.jit(jax.vmap(run_cumsum)), threading.Barrier(8)
    x = integers(40, 5)
    cases = [costs(kind, 40) // 4 for kind in ("fast", "slow", "mixed", "slow at last")]
    expected = np.cumsum(x, 1)
    program(x, cases[0])

    def work(number):
        together.wait(60)
        for i in range(25):
            scale = np.float32(number + i)
            assert_array_equal(program(x * scale, cases[(number + i) % 4]), expected * scale)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_eight_threads_of_which_some_calls_fail():
    program, together = jax.jit(jax.vmap(run_fails_below)), threading.Barrier(8)
    good, steps = np.abs(integers(30, 2)), costs("slow", 30) // 4
    bad = good.copy()
    bad[11, 0] = -5

    def work(number):
        together.wait(60)
        for i in range(20):
            if (number + i) % 2:
                with pytest.raises(RAISED, match=r"a negative start', -5\.0"):
                    program(bad, steps).block_until_ready()
            else:
                assert_array_equal(program(good, steps), good)

    program(good, steps)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_several_batches_within_one_program():
    @jax.jit
    def program(x, steps):
        independent = [jax.vmap(run_cumsum)(x + number, steps) for number in range(6)]
        chained = jax.lax.fori_loop(0, 3, lambda _, x: jax.vmap(run_count_up)(x, steps), x)
        return independent, chained

    x = integers(50, 3)
    for kind in ("fast", "slow", "mixed"):
        independent, chained = program(x, costs(kind, 50))
        assert_array_equal(independent, [np.cumsum(x + number, 1) for number in range(6)])
        assert_array_equal(chained, x + 3)


def test_every_thread_rounds_alike():
    """XLA flushes denormal numbers to zero in its threads, and so must the calling thread."""
    program = jax.jit(jax.vmap(numba_kernel(halve, outs=first)))
    x = np.full(99, np.finfo(np.float32).tiny)
    for _ in range(5):
        assert len(set(np.asarray(program(x, costs("slow", 99))).tolist())) == 1


def count_threads(kernel, steps, **options):
    """Return the number of threads that ran the slices of a batch, for each of several calls."""
    run = numba_kernel(kernel, outs=jax.ShapeDtypeStruct((), jnp.uint32), **options)
    program = jax.jit(jax.vmap(run))
    while True:
        yield len(set(np.asarray(program(steps)).tolist()))


@TWO_CORES
@pytest.mark.parametrize("kind", ["slow", "slow at last"])
def test_a_heavy_batch_runs_in_several_threads(kind):
    counts = count_threads(thread_of, costs(kind, 99))
    assert any(next(counts) > 1 for _ in range(200))


def test_a_light_batch_runs_in_one_thread():
    counts = count_threads(thread_of, costs("fast", 300))
    # Not all of them: a thread that is interrupted takes its slice for a heavy one.
    assert sum(next(counts) == 1 for _ in range(60)) > 30


def test_ordered_batches_run_in_one_thread():
    counts = count_threads(thread_of, costs("slow", 50), has_side_effect=True)
    assert [next(counts) for _ in range(5)] == [1] * 5


@TWO_CORES
def test_slices_with_parallel_loops_run_in_several_threads():
    """Their loops take part in the same pool."""
    counts = count_threads(thread_of_calling_parallel, costs("slow", 50))
    assert any(next(counts) > 1 for _ in range(200))


def test_a_side_effect_makes_another_handler_of_the_same_kernel():
    """The order of the two does not matter."""
    heavy = costs("slow", 99)
    ordered, free = (count_threads(thread_of, heavy, has_side_effect=flag) for flag in (True, False))
    for _ in range(3):
        next(free)
        assert next(ordered) == 1
