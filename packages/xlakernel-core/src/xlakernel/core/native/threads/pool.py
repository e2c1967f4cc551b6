"""Batches on XLA's own thread pool, where that pays.

The kernel is called once for each slice of a batch, and the cost of a slice is measured. A batch begins in the calling
thread, which reads the clock after each chunk of slices. The batch moves to the pool as soon as the remaining slices
cost more than waking a thread. A batch of light slices therefore stays in one thread and pays for a few clock readings.
Each handler stores the cost of slices that run in the pool: if they are very long, its next batch starts there.

In the pool, the threads and the caller take chunks from a shared counter until none is left. The caller waits only for
chunks that are running, so a task that XLA starts late, or never, causes no delay. The interpreter is not involved.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ...ffi import abi
from ..machine.frame import (
    I32,
    I64,
    NULL,
    POINTER,
    VOID,
    address_of_word,
    call_api,
    call_symbol,
    destroy_error,
    i64,
    load,
    store,
)
from ..machine.lock import acquire, allocate, free, release
from ..machine.machine_code import NAME, MachineCode, load_module, new_function, new_module

#: True if the operating system has the C functions called here; otherwise every batch is serial.
SUPPORTED = os.name == "posix"

#: ``run(frame, first, last)``: run slices first … last - 1; return null or the error of the first slice that failed.
RUN = ir.FunctionType(POINTER, [POINTER, I64, I64])
#: ``run_batch(frame, run, total, memory)``: run all slices; return the same as ``run``. *memory* points to the stored
#: cost of a slice in nanoseconds, initially 0.
RUN_BATCH = ir.FunctionType(POINTER, [POINTER, RUN.as_pointer(), I64, I64.as_pointer()])
#: ``fan_out(frame, run, first, last, memory, helpers, cost)``: run slices first … last - 1, of *cost* nanoseconds each,
#: in at most *helpers* further threads.
FAN_OUT = ir.FunctionType(POINTER, [POINTER, RUN.as_pointer(), I64, I64, I64.as_pointer(), I64, I64])

# Times in nanoseconds. On an idle machine with 2 cores, a second thread pays off from 10 µs of work. If the second core
# is busy, a futile request for a thread costs about 30 µs, because the pool's threads spin before they sleep.
_PROBE = 5_000  # a shorter chunk may consist of cache misses and page faults, and does not predict the rest
_SHARE = 30_000  # the least work for each further thread
_CHUNK = 30_000  # the time of a chunk: long compared to counter and clock, short compared to the final wait
_CHUNKS = 4  # the least number of chunks for each thread, to balance slices of unequal cost
_GROWTH = 8  # the largest ratio of the sizes of successive chunks
_YIELDS = 50  # how often the caller yields before it sleeps
_LONG = 1_000_000  # slices of this cost go to the pool at once: a futile request for threads is cheap in comparison

# The shared state of a batch: these 64-bit fields, then a slot for the error of each thread.
_FIELDS = ("next", "done", "references", "errors", "last", "size", "limit", "frame", "run", "lock", "memory", "slots")
_STATE = abi.Struct("state", {name: 8 * position for position, name in enumerate(_FIELDS)})
_SLOT = abi.Struct("slot", {"first": 0, "error": 8})
_HEADER_SIZE, _SLOT_SIZE = 8 * len(_FIELDS), 8 * len(_SLOT.fields)

_TASK = ir.FunctionType(VOID, [POINTER])


def routine(name: str) -> int:
    """Return the address of ``"run_batch"`` (`RUN_BATCH`) or ``"fan_out"`` (`FAN_OUT`)."""
    code: MachineCode = _code()
    return code.address_of(f"{NAME}_{name}")


@functools.cache  # which keeps the machine code alive
@global_compiler_lock
def _code() -> MachineCode:
    module = new_module(cpu_target.target_context)
    work = _emit_work(module)
    _emit_run_batch(module, _emit_fan_out(module, work, _emit_task(module, work)))
    return load_module(cpu_target.target_context.codegen(), module, keep=True)


# run_batch: measure slices in the calling thread, and choose between this thread and the pool.


def _emit_run_batch(module: ir.Module, fan_out: ir.Function) -> None:
    function, builder = new_function(module, "run_batch", RUN_BATCH, linkage="external")
    frame, run, total, memory = function.args
    remembered = builder.load_atomic(memory, "monotonic", 8)
    with builder.if_then(builder.icmp_signed(">=", remembered, i64(_LONG)), likely=False):
        builder.ret(builder.call(fan_out, [frame, run, i64(0), total, memory, total, remembered]))

    first, size = (cgutils.alloca_once_value(builder, i64(value)) for value in (0, 1))
    before = cgutils.alloca_once_value(builder, clock(builder))
    with _loop(builder):
        begin = builder.load(first)
        last = minimum(builder, builder.add(begin, builder.load(size)), total)
        error = builder.call(run, [frame, begin, last])
        finished = builder.icmp_signed("==", last, total)
        with builder.if_then(builder.or_(finished, cgutils.is_not_null(builder, error))):
            builder.ret(error)
        spent, count = lap(builder, before), builder.sub(last, begin)
        shares = _shares(builder, spent, count, builder.sub(total, last))
        tells = builder.icmp_signed(">=", spent, i64(_PROBE))
        pays = builder.icmp_signed(">=", shares, i64(1))
        with builder.if_then(builder.and_(tells, pays), likely=False):
            cost = builder.udiv(spent, count)
            builder.ret(builder.call(fan_out, [frame, run, last, total, memory, shares, cost]))
        # A chunk takes at most a fraction of the slices, because later slices may cost more than the measured ones.
        limit = builder.udiv(total, i64(_CHUNKS))
        builder.store(_next_size(builder, count, spent, limit, target=2 * _PROBE), size)
        builder.store(last, first)


def _shares(builder: ir.IRBuilder, spent: Any, count: Any, rest: Any) -> Any:
    """Return the cost of *rest* slices in units of `_SHARE`, at most a million, if *count* slices took *spent*."""
    double = ir.DoubleType()
    spent, count, rest = (builder.uitofp(value, double) for value in (spent, count, rest))
    shares = builder.fdiv(builder.fmul(spent, rest), builder.fmul(count, double(_SHARE)))
    most = double(1e6)
    return builder.fptoui(builder.select(builder.fcmp_ordered("<", shares, most), shares, most), I64)


def count_threads(builder: ir.IRBuilder, frame: Any) -> Any:
    """Return the number of threads of XLA's pool, 1 if there is no pool."""
    threads = cgutils.alloca_once_value(builder, i64(1))
    api, context = (load(builder, frame, abi.CALL_FRAME, name) for name in ("api", "ctx"))
    error = call_api(builder, api, "ThreadPool_NumThreads", abi.NUM_THREADS_ARGS, ctx=context, num_threads=threads)
    with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
        destroy_error(builder, api, error)
        builder.store(i64(1), threads)
    return builder.load(threads)


# fan_out: run slices in several threads.


def _emit_fan_out(module: ir.Module, work: ir.Function, task: ir.Function) -> ir.Function:
    function, builder = new_function(module, "fan_out", FAN_OUT, linkage="external")
    frame, run, first, last, memory, helpers, cost = function.args
    helpers = minimum(builder, helpers, builder.sub(builder.sub(last, first), i64(1)))  # the caller runs a slice itself
    helpers = minimum(builder, helpers, builder.sub(count_threads(builder, frame), i64(1)))
    with builder.if_then(builder.icmp_signed("<", helpers, i64(1)), likely=False):
        builder.ret(builder.call(run, [frame, first, last]))
    threads = builder.add(helpers, i64(1))
    nbytes = builder.add(i64(_HEADER_SIZE), builder.mul(threads, i64(_SLOT_SIZE)))
    state = call_symbol(builder, "malloc", POINTER, nbytes)
    with builder.if_then(cgutils.is_null(builder, state), likely=False):
        builder.ret(builder.call(run, [frame, first, last]))
    lock = allocate(builder)
    with builder.if_then(cgutils.is_null(builder, lock), likely=False):
        call_symbol(builder, "free", VOID, state)
        builder.ret(builder.call(run, [frame, first, last]))
    acquire(builder, lock)  # so that `_wait` blocks until `_finish` releases it

    limit = builder.udiv(builder.sub(last, first), builder.mul(threads, i64(_CHUNKS)))
    limit = maximum(builder, limit, i64(1))
    size = builder.udiv(i64(_CHUNK), maximum(builder, cost, i64(1)))
    size = maximum(builder, minimum(builder, size, limit), i64(1))
    values = {"next": first, "done": first, "references": threads, "errors": i64(0), "last": last}
    values |= {"size": size, "limit": limit, "frame": frame, "run": run, "lock": lock, "memory": memory}
    values["slots"] = builder.gep(state, [i64(_HEADER_SIZE)])
    for name, value in values.items():
        store(builder, state, _STATE, name, value)

    api, context = (load(builder, frame, abi.CALL_FRAME, name) for name in ("api", "ctx"))
    with cgutils.for_range(builder, helpers, intp=I64):
        arguments = {"ctx": context, "task": builder.bitcast(task, POINTER), "data": state}
        error = call_api(builder, api, "ThreadPool_Schedule", abi.SCHEDULE_ARGS, **arguments)
        with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
            destroy_error(builder, api, error)
            _drop(builder, state)
    builder.call(work, [state])
    _wait(builder, state)
    error = _first_error(builder, state, api)
    _drop(builder, state)
    builder.ret(error)
    return function


def _wait(builder: ir.IRBuilder, state: Any) -> None:
    """Wait for the chunks of other threads: yield at first, because chunks are short, then sleep."""
    last = load(builder, state, _STATE, "last", I64)
    rounds = cgutils.alloca_once_value(builder, i64(0))
    after = builder.append_basic_block("after_wait")
    with _loop(builder):
        done = builder.load_atomic(address_of_word(builder, state, _STATE, "done"), "acquire", 8)
        with builder.if_then(builder.icmp_signed("==", done, last)):
            builder.branch(after)
        with builder.if_then(builder.icmp_signed("==", builder.load(rounds), i64(_YIELDS)), likely=False):
            acquire(builder, load(builder, state, _STATE, "lock"))
            builder.branch(after)
        builder.store(builder.add(builder.load(rounds), i64(1)), rounds)
        call_symbol(builder, "sched_yield", I32)
    builder.position_at_end(after)


def _first_error(builder: ir.IRBuilder, state: Any, api: Any) -> Any:
    """Return the error that a serial run of the batch would have returned, or null; destroy the other errors.

    Chunks are taken in order and run to their end, so all slices before the first failure have run.
    """
    kept = cgutils.alloca_once_value(builder, NULL)
    lowest = cgutils.alloca_once_value(builder, load(builder, state, _STATE, "last", I64))
    slots = load(builder, state, _STATE, "slots")
    with cgutils.for_range(builder, load(builder, state, _STATE, "errors", I64), intp=I64) as loop:
        slot = builder.gep(slots, [builder.mul(loop.index, i64(_SLOT_SIZE))])
        first, error = load(builder, slot, _SLOT, "first", I64), load(builder, slot, _SLOT, "error")
        other = cgutils.alloca_once_value(builder, error)
        with builder.if_then(builder.icmp_signed("<", first, builder.load(lowest))):
            builder.store(builder.load(kept), other)
            builder.store(error, kept)
            builder.store(first, lowest)
        unwanted = builder.load(other)
        with builder.if_then(cgutils.is_not_null(builder, unwanted)):
            destroy_error(builder, api, unwanted)
    return builder.load(kept)


# work(state), run by each thread, and task(state), which XLA calls in the threads of its pool.


def _emit_work(module: ir.Module) -> ir.Function:
    function, builder = new_function(module, "work", _TASK)
    (state,) = function.args
    last, limit = (load(builder, state, _STATE, name, I64) for name in ("last", "limit"))
    size = cgutils.alloca_once_value(builder, load(builder, state, _STATE, "size", I64))
    before = cgutils.alloca_once_value(builder, clock(builder))
    with _loop(builder):
        count = builder.load(size)
        begin = builder.atomic_rmw("add", address_of_word(builder, state, _STATE, "next"), count, "monotonic")
        with builder.if_then(builder.icmp_signed(">=", begin, last)):
            builder.ret_void()
        # The caller returns, and the frame ends, once all chunks are done: read it only with an unfinished chunk.
        frame = load(builder, state, _STATE, "frame")
        run = load(builder, state, _STATE, "run", RUN.as_pointer())
        end = minimum(builder, builder.add(begin, count), last)
        error = builder.call(run, [frame, begin, end])
        finished = cgutils.alloca_once_value(builder, builder.sub(end, begin))
        with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
            skipped = _record(builder, state, begin, error)
            builder.store(builder.add(builder.load(finished), skipped), finished)
        _finish(builder, state, builder.load(finished))
        spent = lap(builder, before)
        taken = builder.sub(end, begin)
        memory = load(builder, state, _STATE, "memory", I64.as_pointer())
        builder.store_atomic(builder.udiv(spent, taken), memory, "monotonic", 8)
        builder.store(_next_size(builder, taken, spent, limit, target=_CHUNK), size)
    return function


def _record(builder: ir.IRBuilder, state: Any, begin: Any, error: Any) -> Any:
    """Store *error*, and end the distribution of chunks; return the number of slices that will not run.

    One slot for each thread suffices, because a thread finds no further chunk after its error.
    """
    index = builder.atomic_rmw("add", address_of_word(builder, state, _STATE, "errors"), i64(1), "monotonic")
    slot = builder.gep(load(builder, state, _STATE, "slots"), [builder.mul(index, i64(_SLOT_SIZE))])
    store(builder, slot, _SLOT, "first", begin)
    store(builder, slot, _SLOT, "error", error)
    last = load(builder, state, _STATE, "last", I64)
    following = builder.atomic_rmw("xchg", address_of_word(builder, state, _STATE, "next"), last, "monotonic")
    return maximum(builder, builder.sub(last, following), i64(0))


def _finish(builder: ir.IRBuilder, state: Any, count: Any) -> None:
    """Count slices as done. The thread that finishes the last slices releases the lock, and so wakes the caller."""
    before = builder.atomic_rmw("add", address_of_word(builder, state, _STATE, "done"), count, "acq_rel")
    last = load(builder, state, _STATE, "last", I64)
    with builder.if_then(builder.icmp_signed("==", builder.add(before, count), last)):
        release(builder, load(builder, state, _STATE, "lock"))


def _emit_task(module: ir.Module, work: ir.Function) -> ir.Function:
    function, builder = new_function(module, "task", _TASK)
    builder.call(work, function.args)
    _drop(builder, function.args[0])
    builder.ret_void()
    return function


def _drop(builder: ir.IRBuilder, state: Any) -> None:
    """Drop a reference to the state. The last holder, the caller or a task that starts late, frees the state."""
    before = builder.atomic_rmw("sub", address_of_word(builder, state, _STATE, "references"), i64(1), "acq_rel")
    with builder.if_then(builder.icmp_signed("==", before, i64(1)), likely=False):
        free(builder, load(builder, state, _STATE, "lock"))
        call_symbol(builder, "free", VOID, state)


# Helpers.


@contextmanager
def _loop(builder: ir.IRBuilder) -> Iterator[None]:
    """Emit an endless loop, which its body leaves by a return or a branch."""
    body = builder.append_basic_block("loop")
    builder.branch(body)
    builder.position_at_end(body)
    yield
    builder.branch(body)


def minimum(builder: ir.IRBuilder, one: Any, other: Any) -> Any:
    """Return the smaller number."""
    return builder.select(builder.icmp_signed("<", one, other), one, other)


def maximum(builder: ir.IRBuilder, one: Any, other: Any) -> Any:
    """Return the larger number."""
    return builder.select(builder.icmp_signed(">", one, other), one, other)


def clock(builder: ir.IRBuilder) -> Any:
    """Return a time in nanoseconds. On Linux it takes about 25 ns, without a system call."""
    with builder.goto_entry_block():
        timespec = builder.alloca(ir.ArrayType(I64, 2))  # on 64-bit systems
    call_symbol(builder, "clock_gettime", I32, ir.Constant(I32, time.CLOCK_MONOTONIC), timespec)
    seconds, nanoseconds = (builder.load(builder.gep(timespec, [i64(0), i64(part)])) for part in (0, 1))
    return builder.add(builder.mul(seconds, i64(1_000_000_000)), nanoseconds)


def lap(builder: ir.IRBuilder, before: Any) -> Any:
    """Return the nanoseconds since the time in variable *before*, at least 1; set *before* to the present time."""
    now = clock(builder)
    spent = builder.sub(now, builder.load(before))
    builder.store(now, before)
    return maximum(builder, spent, i64(1))


def _next_size(builder: ir.IRBuilder, count: Any, spent: Any, limit: Any, *, target: int) -> Any:
    """Return the number of slices, 1 to *limit*, that take *target* nanoseconds if *count* of them took *spent*."""
    size = builder.udiv(builder.mul(count, i64(target)), spent)
    size = minimum(builder, size, builder.mul(count, i64(_GROWTH)))
    return maximum(builder, minimum(builder, size, limit), i64(1))
