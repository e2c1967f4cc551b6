"""The slices of a batch on a thread pool: the distribution of slices, errors, and the use of the pool.

Most tests have their own pool, which starts tasks at once, late or never, or refuses them, and slices in machine code
that count their runs. The others use XLA's pool.
"""

import ctypes
import functools
import os
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import carray, cfunc
from numpy.testing import assert_array_equal

from xlakernel.core.backend.native import new_lock
from xlakernel.core.ffi import abi
from xlakernel.core.native.threads import pool as batches

WORDS = 32  # of a frame, of 8 bytes each; what the slices read and write comes after it
TOTAL = WORDS - 1  # where the frame of a test keeps the number of slices
FAST, SLOW = 0, 200_000  # steps of a slice: some nanoseconds, some hundred microseconds
LONG = 4_000_000  # some milliseconds
ERROR = 1 << 20  # the error of slice i is at this "address" plus i
NO_POOL, REFUSED = 1 << 30, 1 << 31


def run(frame, first, last):
    total = carray(frame, (WORDS,), np.int64)[TOTAL]
    memory = carray(frame, (WORDS + 4 * total,), np.int64)
    counts, steps, fails, values = memory[WORDS:].reshape(4, total)
    for i in range(first, last):
        value = 0.5
        for _ in range(steps[i]):
            value = 3.9 * value * (1 - value)  # chaotic: no compiler can shorten it
        values[i] = int(1e9 * value)
        counts[i] += 1
        if fails[i]:
            return ERROR + i
    return 0


@functools.cache
def compiled_run():
    return cfunc("int64(voidptr, int64, int64)")(run)


class NumThreadsArgs(ctypes.Structure):
    _fields_ = [("head", ctypes.c_int64 * 3), ("num_threads", ctypes.POINTER(ctypes.c_int64))]


class ScheduleArgs(ctypes.Structure):
    _fields_ = [("head", ctypes.c_int64 * 3), ("task", ctypes.c_void_p), ("data", ctypes.c_void_p)]


class DestroyArgs(ctypes.Structure):
    _fields_ = [("head", ctypes.c_int64 * 2), ("error", ctypes.c_int64)]


def test_the_structs_of_this_test_are_those_of_the_api():
    assert NumThreadsArgs.num_threads.offset == abi.NUM_THREADS_ARGS["num_threads"]
    assert (ScheduleArgs.task.offset, ScheduleArgs.data.offset) == (
        abi.SCHEDULE_ARGS["task"],
        abi.SCHEDULE_ARGS["data"],
    )
    assert DestroyArgs.error.offset == abi.ERROR_DESTROY_ARGS["error"]


class Pool:
    """The part of XLA's API that a batch needs.

    ``start(task, number)`` is called with each task, a function without parameters, and returns None or an error.
    """

    def __init__(self, start, threads=4):
        self.scheduled, self.destroyed = 0, []
        self.start, self.threads = start, threads
        functions = {
            "Error_Destroy": ctypes.CFUNCTYPE(None, ctypes.POINTER(DestroyArgs))(self.destroy),
            "ThreadPool_Schedule": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ScheduleArgs))(self.schedule),
            "ThreadPool_NumThreads": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(NumThreadsArgs))(self.count),
        }
        self.functions = list(functions.values())  # kept alive
        self.api = np.zeros(64, np.int64)
        for name, function in functions.items():
            self.api[abi.API[f"XLA_FFI_{name}"] // 8] = ctypes.cast(function, ctypes.c_void_p).value
        run_batch = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_void_p)
        self.run_batch = run_batch(batches.routine("run_batch"))
        self.memory = np.zeros(1, np.int64)

    def destroy(self, args):
        self.destroyed.append(args[0].error)

    def count(self, args):
        if self.threads is None:
            return NO_POOL
        args[0].num_threads[0] = self.threads
        return 0

    def schedule(self, args):
        task, data = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args[0].task), args[0].data
        self.scheduled += 1
        return self.start(lambda: task(data), self.scheduled) or 0

    def run(self, steps, fails=()):
        """Run a batch; return how often each slice ran, and its error: the slice that failed, or None."""
        total = len(steps)
        memory = np.zeros(WORDS + 4 * total, np.int64)
        memory[abi.CALL_FRAME["api"] // 8] = self.api.ctypes.data
        memory[TOTAL] = total
        memory[WORDS + total : WORDS + 2 * total] = steps
        memory[WORDS + 2 * total + np.asarray(fails, np.int64)] = 1
        counts = self.counts = memory[WORDS : WORDS + total]
        error = self.run_batch(memory.ctypes.data, compiled_run().address, total, self.memory.ctypes.data)
        return counts, error - ERROR if error else None


def started(tasks):
    """A pool that starts each task in a new thread."""

    def start(task, number):
        tasks.append(threading.Thread(target=task))
        tasks[-1].start()

    return start


def complete(tasks):
    while tasks:
        task = tasks.pop()
        task.join(60) if isinstance(task, threading.Thread) else task()


@pytest.fixture
def tasks():
    """The threads that `started` starts, or the tasks that `kept` keeps: run when the test is over."""
    tasks = []
    yield tasks
    complete(tasks)


def kept(tasks):
    """A pool that starts its tasks when the batch is long over."""
    return lambda task, number: tasks.append(task)


def at_once(tasks):
    """A pool that runs each task in the scheduling thread, as XLA may."""
    return lambda task, number: task()


def refused(tasks):
    return lambda task, number: REFUSED


def all_but_the_first_refused(tasks):
    return lambda task, number: REFUSED if number > 1 else started(tasks)(task, number)


POOLS = pytest.mark.parametrize("pool", [started, kept, at_once, refused, all_but_the_first_refused])


def costs(kind, total):
    """Steps of each slice."""
    steps = np.full(total, FAST)
    if kind == "slow":
        steps[:] = SLOW if total < 100 else SLOW // 20
    if kind == "mixed":
        steps[:: max(1, total // 7)] = SLOW
    if kind == "slow at last":
        steps[total // 2 :] = SLOW // max(1, total // 20)
    return steps


@POOLS
@pytest.mark.parametrize("kind", ["fast", "slow", "mixed", "slow at last"])
@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 97, 1009, 5000])
def test_every_slice_runs_exactly_once(pool, tasks, kind, total):
    counts, error = Pool(pool(tasks)).run(costs(kind, total))
    assert error is None
    assert_array_equal(counts, 1)


@POOLS
@pytest.mark.parametrize("fails", [[0], [1], [20], [39], [3, 4, 5], [2, 39], range(40)], ids=str)
def test_the_error_is_that_of_the_first_slice_that_fails(pool, tasks, fails):
    """As in one thread; the other errors are destroyed, each once."""
    ours = Pool(pool(tasks))
    for _ in range(5):
        ours.destroyed.clear()
        counts, error = ours.run(costs("slow", 40), fails)
        complete(tasks)
        assert error == fails[0]
        assert_array_equal(counts[: fails[0] + 1], 1)
        made = Counter(ERROR + i for i in fails if counts[i])
        destroyed = Counter(ours.destroyed)
        del destroyed[REFUSED]
        assert destroyed + Counter([ERROR + error]) == made


@pytest.mark.parametrize("longer", [20, 21])
def test_the_first_slice_counts_not_the_first_error_in_time(tasks, longer):
    steps = costs("slow", 40)
    steps[longer] = LONG
    ours = Pool(started(tasks))
    for _ in range(20):
        ours.destroyed.clear()
        counts, error = ours.run(steps, [20, 21])
        complete(tasks)
        assert error == 20
        assert ours.destroyed == [ERROR + 21] * counts[21]


def test_no_slice_is_begun_after_an_error(tasks):
    """The caller runs all slices here, so their order is known."""
    counts, error = Pool(kept(tasks)).run(costs("slow", 40), [17])
    assert error == 17
    assert_array_equal(counts, np.arange(40) <= 17)


def test_a_late_task_finds_nothing_to_do(tasks):
    counts, _ = Pool(kept(tasks)).run(costs("slow", 40))
    assert len(tasks) == 3
    complete(tasks)
    assert_array_equal(counts, 1)


@pytest.mark.parametrize(("threads", "destroyed"), [(None, [NO_POOL]), (1, []), (0, [])])
def test_without_a_pool_of_several_threads_the_caller_runs_everything(threads, destroyed):
    ours = Pool(lambda task, number: pytest.fail("scheduled"), threads)
    counts, error = ours.run(costs("slow", 40))
    assert error is None
    assert_array_equal(counts, 1)
    assert (ours.scheduled, ours.destroyed) == (0, destroyed)


def test_each_refusal_of_the_pool_is_an_error_that_is_destroyed(tasks):
    ours = Pool(refused(tasks))
    ours.run(costs("slow", 40))
    assert ours.destroyed == [REFUSED] * 3


@pytest.mark.parametrize(("total", "threads", "expected"), [(40, 4, 3), (40, 9, 8), (5, 9, 3), (3, 9, 1), (2, 9, 0)])
def test_there_are_at_most_as_many_threads_as_remaining_slices(tasks, total, threads, expected):
    """One slice runs before the pool is used, and the caller runs one more."""
    ours = Pool(kept(tasks), threads)
    ours.run(costs("slow", total))
    assert ours.scheduled == expected


def test_a_light_batch_does_not_use_the_pool(tasks):
    ours = Pool(refused(tasks))
    for _ in range(300):
        ours.run(costs("fast", 300))
    assert ours.scheduled < 150  # not 0: a thread that is interrupted takes its slice for a heavy one


def test_a_batch_that_turns_out_heavy_uses_the_pool(tasks):
    ours = Pool(kept(tasks))
    counts, _ = ours.run(costs("slow at last", 300))
    assert ours.scheduled
    assert_array_equal(counts, 1)


def test_a_batch_of_slices_with_a_long_history_starts_in_the_pool():
    """Otherwise a batch of a few long slices would take twice as long as necessary."""
    begun = []

    def start(task, number):
        begun.append(int(ours.counts.sum()))  # the slices of the latest batch that ran so far
        task()

    ours = Pool(start, threads=3)
    for _ in range(2):
        ours.run(np.full(3, LONG))
    assert begun == [
        1,
        0,
        3,
    ]  # the first batch had one slice left besides the caller's; of the second's tasks one did all


def test_a_light_batch_after_a_long_one_uses_the_pool_once():
    ours = Pool(lambda task, number: REFUSED, threads=2)
    for _ in range(2):
        ours.run(np.full(3, LONG))
    assert ours.scheduled == 2
    for _ in range(100):
        ours.run(costs("fast", 300))
    assert 3 <= ours.scheduled < 50


@POOLS
def test_no_memory_is_left_behind(pool):
    """The state of a batch is freed together with its lock, which Python's allocator counts."""

    tasks = []
    ours, steps = Pool(pool(tasks)), costs("slow", 20) // 10

    def rounds(count):
        for _ in range(count):
            ours.run(steps, [17])
            complete(tasks)
            ours.destroyed.clear()

    rounds(3)
    tracemalloc.start()
    try:
        rounds(5)
        before = tracemalloc.get_traced_memory()[0]
        rounds(1000)
        assert tracemalloc.get_traced_memory()[0] - before < 1000 * 16  # a lock has 32 bytes
    finally:
        tracemalloc.stop()


def test_batches_of_eight_threads_at_once(tasks):
    ours = Pool(started(tasks))
    steps = {kind: costs(kind, 60) for kind in ("fast", "slow", "mixed")}

    def work(number):
        for i in range(10):
            fails = [(number + i) % 60] if i % 2 else []
            counts, error = ours.run(steps[("fast", "slow", "mixed")[i % 3]], fails)
            assert error == (fails[0] if fails else None)
            assert (counts[: fails[0] + 1] if fails else counts).tolist() == [1] * (fails[0] + 1 if fails else 60)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


# XLA's own pool.

# Two cores are what XLA makes a second thread for.
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="XLA's pool has one thread on one core")

pthread_self = ctypes.CDLL(None).pthread_self
pthread_self.restype, pthread_self.argtypes = ctypes.c_uint64, ()


def who(steps, out):
    value = 0.5
    for _ in range(steps[()]):
        value = 3.9 * value * (1 - value)
    if value < -1:
        raise ValueError("unreachable")
    out[()] = np.uint32(pthread_self() >> 12)


@pytest.fixture(scope="module")
def new_who(register):
    """Return a function that returns a program: steps of each slice → the number of threads that ran them."""
    results = [("uint32", 0)]

    def make(**options):
        target = register(who, [("int32", 0)], results, **options)
        call = jax.jit(lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, jnp.uint32))(x))
        return lambda steps: len(set(np.asarray(call(np.asarray(steps, np.int32))).tolist()))

    return make


HEAVY = np.full(200, SLOW)


@TWO_CORES
def test_a_heavy_batch_runs_in_several_threads(new_who):
    count = new_who()
    assert any(count(HEAVY) > 1 for _ in range(100))


@pytest.mark.parametrize("options", [{"ordered": True}, {"lock": new_lock()}], ids=["ordered", "locked"])
def test_an_ordered_or_locked_batch_runs_in_one_thread(new_who, options):
    count = new_who(**options)
    assert [count(HEAVY) for _ in range(5)] == [1] * 5


def test_a_light_batch_runs_in_one_thread(new_who):
    count = new_who()
    assert sum(count(np.full(300, FAST)) == 1 for _ in range(60)) > 30
