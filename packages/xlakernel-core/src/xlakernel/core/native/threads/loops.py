"""The parallel loops of a kernel on XLA's own thread pool, in place of Numba's threading layer.

Code that Numba compiles for ``prange`` calls three functions by their symbols: ``numba_parallel_for``, which is given
the schedule of a loop, one row of it for each thread that the loop was divided for; ``get_num_threads``; and
``get_thread_id``. `install` puts functions of this file in their place. They look up which call of XLA's the thread is
in, its `REGION`. In a call, the rows of the schedule go to XLA's pool as the slices of a batch do (`parallel`): the
calling thread takes part, so it cannot wait for a thread that does not come. Elsewhere they call Numba's own functions,
and a plain call of a parallel function runs as ever.

A row has the same number, and so the same part of the iterations and the same place for its reductions, whichever
thread runs it: the result does not depend on who was free.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ...ffi import abi
from ..machine import gate
from ..machine.frame import I32, I64, POINTER, i64, load, store
from ..machine.machine_code import NAME, MachineCode, load_module, pointer_to
from ..machine.status import new_kernel_error, report
from ..machine.upcall import Upcall, emit_upcall_inside
from . import parallel
from .parallel import clock, count_threads, external, lap, maximum, minimum, new_function

# What a thread runs of a call of XLA's, or of a loop in it. "api" and "ctx" are where a call frame has them, so that it
# can stand for one. *size*: the threads of the pool, 0 if not asked yet. *limit*: those of the loop that the thread
# works for, 0 outside of loops. *thread*: its number there. *error*: an ``XLA_FFI_Error`` that the caller gets.
# *kernel* and *place*: for the text of errors. The others describe a loop as Numba does.
_FIELDS = ("size", "limit", "api", "ctx", "thread", "error", "kernel", "place")
_LOOP = ("function", "arguments", "extents", "steps", "data", "dimensions", "arrays", "busy", "spent")
REGION = abi.Struct("region", {name: 8 * n for n, name in enumerate((*_FIELDS, *_LOOP))}, 8 * len(_FIELDS + _LOOP))
assert all(REGION[name] == abi.CALL_FRAME[name] for name in ("api", "ctx"))

#: ``exchange(region)``: set the region of this thread; return the one before.
EXCHANGE = ir.FunctionType(POINTER, [POINTER])

# Measurements of a loop: the nanoseconds of one iteration (a double; a handler serves arrays of every size), and the
# nanoseconds for which the next runs stay in one thread.
_MEMORY = abi.Struct("memory", {"cost": 0, "alone": 8}, 16)
MEMORY = ir.ArrayType(I64, 2)

# Nanoseconds. A loop that takes less stays in one thread.
_WORTH = 10_000
# If threads made a loop slower by this factor, because others want the cores, the next runs stay in one thread: for so
# many times, all together, what this run took.
_SLOWER, _PATIENCE = 2.0, 16
# Growth, at most, of the remembered cost after a run in several threads: an interrupted thread looks expensive.
_GROWTH = 1.125
# Nanoseconds. In a shorter run in one thread the iterations look expensive, too: most of it is the call.
_SHORT = 1_000
# Threads of a loop with more rows than threads, each of which takes a bit.
_MOST = 64

_NULL = ir.Constant(POINTER, None)
_VOID = ir.VoidType()
_DOUBLE = ir.DoubleType()
_COUNT = ir.FunctionType(I64, [])
PARALLEL_FOR = ir.FunctionType(_VOID, [POINTER] * 5 + [I64] * 3)
_BODY = ir.FunctionType(_VOID, [POINTER] * 4)
_SYMBOLS = {"numba_parallel_for": PARALLEL_FOR, "get_num_threads": _COUNT, "get_thread_id": _COUNT}
#: The gate (`gate`) as functions, for code that knows symbols alone.
ENTER, LEAVE = "xlakernel_enter_interpreter", "xlakernel_leave_interpreter"
#: ``record(exception)``, called inside the gate: give the thread's call an exception in Numba's form.
RECORD = "xlakernel_record_prange_error"


def _new_key() -> int:
    """Return a new key for values of threads, which machine code reads without the GIL."""
    allocate, create = ctypes.pythonapi.PyThread_tss_alloc, ctypes.pythonapi.PyThread_tss_create
    allocate.restype, allocate.argtypes = ctypes.c_void_p, []
    create.restype, create.argtypes = ctypes.c_int, [ctypes.c_void_p]
    key = allocate()
    if not key or create(key):
        raise MemoryError("xlakernel: the system has no more keys for values of threads")
    return int(key)


_key = functools.cache(_new_key)


def exchange() -> int:
    """Return the address of `EXCHANGE`."""
    code: MachineCode = install()
    return code.address_of(f"{NAME}_exchange")


@functools.cache  # which keeps the machine code alive
@global_compiler_lock
def install() -> MachineCode:
    """Put our functions in the place of Numba's, for all code that is linked from now on."""
    numba.get_num_threads()  # Numba adds its own when it starts its threads
    original = {symbol: llvm.address_of_symbol(symbol) for symbol in _SYMBOLS}
    module = cpu_target.target_context.create_module(NAME)
    change = _emit_exchange(module)
    _emit_thread_id(module, original["get_thread_id"])
    counted = _emit_num_threads(module, original["get_num_threads"])
    _emit_parallel_for(module, _emit_rows(module, change), counted, original["numba_parallel_for"])
    _emit_gate(module)
    _emit_record(module)
    code = load_module(cpu_target.target_context.codegen(), module, keep=True)
    for symbol in (*_SYMBOLS, ENTER, LEAVE, RECORD):
        llvm.add_symbol(symbol, code.address_of(f"{NAME}_{symbol}"))
    return code


def _current(builder: ir.IRBuilder) -> Any:
    return builder.call(external(builder, "PyThread_tss_get", POINTER, [POINTER]), [pointer_to(builder, _key())])


def _emit_exchange(module: ir.Module) -> ir.Function:
    function, builder = new_function(module, "exchange", EXCHANGE, linkage="external")
    before = _current(builder)
    key = pointer_to(builder, _key())
    builder.call(external(builder, "PyThread_tss_set", I32, [POINTER, POINTER]), [key, function.args[0]])
    builder.ret(before)
    return function


def _original(builder: ir.IRBuilder, address: int, kind: ir.FunctionType, *arguments: Any) -> Any:
    return builder.call(pointer_to(builder, address, kind.as_pointer()), arguments)


def _emit_thread_id(module: ir.Module, original: int) -> None:
    _, builder = new_function(module, "get_thread_id", _COUNT, linkage="external")
    region = _current(builder)
    with builder.if_then(cgutils.is_null(builder, region)):
        builder.ret(_original(builder, original, _COUNT))
    builder.ret(load(builder, region, REGION, "thread", I64))


def _emit_num_threads(module: ir.Module, original: int) -> ir.Function:
    """Emit what says how many threads a loop is divided for: those of the pool, if Numba's setting allows as many."""
    function, builder = new_function(module, "get_num_threads", _COUNT, linkage="external")
    region = _current(builder)
    with builder.if_then(cgutils.is_null(builder, region)):
        builder.ret(_original(builder, original, _COUNT))
    limit = load(builder, region, REGION, "limit", I64)
    with builder.if_then(builder.icmp_signed(">", limit, i64(0))):
        builder.ret(limit)
    with builder.if_then(builder.icmp_signed("==", load(builder, region, REGION, "size", I64), i64(0)), likely=False):
        store(builder, region, REGION, "size", count_threads(builder, region))
    size = load(builder, region, REGION, "size", I64)
    builder.ret(maximum(builder, minimum(builder, size, _original(builder, original, _COUNT)), i64(1)))
    return function


def _emit_parallel_for(module: ir.Module, rows: ir.Function, counted: ir.Function, original: int) -> None:
    """Emit what runs a loop: ``(function, arguments, extents, steps, data, dimensions, arrays, threads)``.

    The function is called as one of NumPy's generalised ones: with the addresses of its arrays, the first of which is
    the schedule; the extents, the first of which is the number of rows; and the bytes from row to row of each array.
    *data* is the `MEMORY` of the loop where *threads* is 0, as `prange` compiles it; else it is the function's own.
    """
    function, builder = new_function(module, "numba_parallel_for", PARALLEL_FOR, linkage="external")
    body, arguments, extents, steps, data, dimensions, arrays, asked = function.args
    nowhere = cgutils.add_global_variable(module, I64, f"{NAME}_nowhere")  # for `parallel`, whose tasks may be late
    nowhere.linkage, nowhere.initializer = "internal", i64(0)
    region = _current(builder)
    with builder.if_then(cgutils.is_null(builder, region)):
        _original(builder, original, PARALLEL_FOR, *function.args)
        builder.ret_void()
    with builder.if_then(cgutils.is_not_null(builder, load(builder, region, REGION, "error")), likely=False):
        builder.ret_void()  # a loop before has failed: the call has no result
    total = builder.load(builder.bitcast(extents, I64.as_pointer()))
    threads = builder.call(counted, [])
    job = new_region(builder)
    values = {name: load(builder, region, REGION, name) for name in ("api", "ctx", "kernel", "place")}
    values |= {"size": load(builder, region, REGION, "size", I64), "limit": threads, "data": data}
    values |= {"function": body, "arguments": arguments, "extents": extents, "steps": steps}
    for name, value in {**values, "dimensions": dimensions, "arrays": arrays}.items():
        store(builder, job, REGION, name, value)

    memory = cgutils.alloca_once_value(builder, data)
    iterations = cgutils.alloca_once_value(builder, total)
    with builder.if_else(builder.icmp_signed("==", asked, i64(0))) as (ours, numbas):
        with ours:
            builder.store(_count_iterations(builder, arguments, steps, total), iterations)
        with numbas:
            builder.store(builder.bitcast(builder.alloca(MEMORY), POINTER), memory)
            cgutils.memset(builder, builder.load(memory), i64(8 * MEMORY.count), 0)
    memory, iterations = builder.load(memory), builder.sitofp(builder.load(iterations), _DOUBLE)
    work = builder.fmul(load(builder, memory, _MEMORY, "cost", _DOUBLE), iterations)
    known = builder.fcmp_ordered(">", work, _DOUBLE(0))
    light = builder.and_(known, builder.fcmp_ordered("<=", work, _DOUBLE(_WORTH)))
    patience = load(builder, memory, _MEMORY, "alone", I64)
    crowded = builder.icmp_signed(">", patience, i64(0))
    single = builder.icmp_signed("<=", minimum(builder, threads, total), i64(1))
    with builder.if_else(builder.or_(single, builder.or_(light, crowded))) as (in_this_thread, in_the_pool):
        with in_this_thread:
            store(builder, region, REGION, "error", builder.call(rows, [job, i64(0), total]))
            spent = load(builder, job, REGION, "spent", I64)
            store(builder, memory, _MEMORY, "alone", maximum(builder, builder.sub(patience, spent), i64(0)))
            tells = builder.icmp_signed(">=", spent, i64(_SHORT))
            growth = builder.select(tells, _DOUBLE(float("inf")), _DOUBLE(1))
            _remember(builder, memory, spent, iterations, growth)
        with in_the_pool:
            # With a chunk size there are more rows than threads: each thread takes one of 64 places.
            most = builder.select(builder.icmp_signed(">", total, threads), i64(_MOST), threads)
            helpers = builder.sub(minimum(builder, threads, most), i64(1))
            run = pointer_to(builder, parallel.fan_out(), parallel.FAN_OUT.as_pointer())
            before = cgutils.alloca_once_value(builder, clock(builder))
            error = builder.call(run, [job, rows, i64(0), total, nowhere, helpers, i64(0)])
            store(builder, region, REGION, "error", error)
            spent = lap(builder, before)
            _remember(builder, memory, load(builder, job, REGION, "spent", I64), iterations, _DOUBLE(_GROWTH))
            limit = builder.fmul(work, _DOUBLE(_SLOWER))
            slower = builder.fcmp_ordered(">", builder.sitofp(spent, _DOUBLE), limit)
            with builder.if_then(builder.and_(slower, known), likely=False):
                store(builder, memory, _MEMORY, "alone", builder.mul(spent, i64(_PATIENCE)))
    builder.ret_void()


def _count_iterations(builder: ir.IRBuilder, arguments: Any, steps: Any, total: Any) -> Any:
    """Return the iterations of a schedule of *total* rows, at least 1.

    A row has the first index of each dimension, then the last index of each; a row without work has a last one that is
    smaller than the first.
    """
    schedule = builder.load(builder.bitcast(arguments, I64.as_pointer().as_pointer()))
    dimensions = builder.udiv(builder.load(builder.bitcast(steps, I64.as_pointer())), i64(16))
    result, position = (cgutils.alloca_once_value(builder, i64(0)) for _ in range(2))
    with cgutils.for_range(builder, total, intp=I64):
        product = cgutils.alloca_once(builder, I64)
        builder.store(i64(1), product)
        with cgutils.for_range(builder, dimensions, intp=I64) as axis:
            start = builder.add(builder.load(position), axis.index)
            first, last = (
                builder.load(builder.gep(schedule, [index])) for index in (start, builder.add(start, dimensions))
            )
            extent = maximum(builder, builder.add(builder.sub(last, first), i64(1)), i64(0))
            builder.store(builder.mul(builder.load(product), extent), product)
        builder.store(builder.add(builder.load(result), builder.load(product)), result)
        builder.store(builder.add(builder.load(position), builder.mul(dimensions, i64(2))), position)
    return maximum(builder, builder.load(result), i64(1))


def _remember(builder: ir.IRBuilder, memory: Any, spent: Any, iterations: Any, growth: Any) -> None:
    """Store the cost of an iteration after a run of *spent* nanoseconds, at most *growth* times the one before.

    Two calls may write at the same time, and one of the numbers is lost.
    """
    before = load(builder, memory, _MEMORY, "cost", _DOUBLE)
    cost = builder.fdiv(builder.sitofp(spent, _DOUBLE), iterations)
    most = builder.fmul(before, growth)
    too_much = builder.and_(builder.fcmp_ordered(">", cost, most), builder.fcmp_ordered(">", before, _DOUBLE(0)))
    store(builder, memory, _MEMORY, "cost", builder.select(too_much, most, cost))


def _emit_rows(module: ir.Module, change: ir.Function) -> ir.Function:
    """Emit ``rows(job, first, last)``: the rows first … last - 1 of a loop's schedule, in this thread."""
    function, builder = new_function(module, "rows", parallel.RUN)
    job, first, last = function.args
    dimensions, arrays = (load(builder, job, REGION, name, I64) for name in ("dimensions", "arrays"))
    source, extents_of_all, steps = (
        builder.bitcast(load(builder, job, REGION, name), I64.as_pointer())
        for name in ("arguments", "extents", "steps")
    )
    extents = builder.alloca(I64, size=builder.add(dimensions, i64(1)))
    arguments = builder.alloca(I64, size=arrays)
    nbytes = builder.mul(builder.add(dimensions, i64(1)), i64(8))
    cgutils.raw_memcpy(builder, extents, extents_of_all, nbytes, 1)
    total = builder.load(extents)
    builder.store(i64(1), extents)  # row by row: each has its number
    region = new_region(builder)
    for name in ("api", "ctx", "kernel", "place", "size", "limit"):
        store(builder, region, REGION, name, load(builder, job, REGION, name))
    many = builder.icmp_signed(">", total, load(builder, job, REGION, "limit", I64))
    body = load(builder, job, REGION, "function", _BODY.as_pointer())
    data = load(builder, job, REGION, "data")
    started = cgutils.alloca_once_value(builder, clock(builder))

    def add_time() -> None:
        builder.atomic_rmw("add", _number(builder, job, "spent"), lap(builder, started), "monotonic")

    with cgutils.for_range_slice(builder, first, last, i64(1), intp=I64) as (row, _):
        with cgutils.for_range(builder, arrays, intp=I64) as loop:
            step = builder.mul(builder.load(builder.gep(steps, [loop.index])), row)
            address = builder.add(builder.load(builder.gep(source, [loop.index])), step)
            builder.store(address, builder.gep(arguments, [loop.index]))
        store(builder, region, REGION, "thread", row)
        with builder.if_then(many, likely=False):
            store(builder, region, REGION, "thread", _take_place(builder, job))
        before = builder.call(change, [region])
        pointers = [builder.bitcast(values, POINTER) for values in (arguments, extents, steps)]
        builder.call(body, [*pointers, data])
        builder.call(change, [before])
        with builder.if_then(many, likely=False):
            _leave_place(builder, job, load(builder, region, REGION, "thread", I64))
        error = load(builder, region, REGION, "error")
        with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
            add_time()
            builder.ret(error)
    add_time()
    builder.ret(_NULL)
    return function


def _take_place(builder: ir.IRBuilder, job: Any) -> Any:
    """Return a number that no other thread of the loop has now: there are as many as threads."""
    busy = _number(builder, job, "busy")
    place = cgutils.alloca_once(builder, I64)
    again, after = builder.append_basic_block("take_place"), builder.append_basic_block("placed")
    builder.branch(again)
    builder.position_at_end(again)
    seen = builder.load_atomic(busy, "monotonic", 8)
    free = builder.cttz(builder.not_(seen), ir.Constant(ir.IntType(1), 0))
    builder.store(free, place)
    result = builder.cmpxchg(busy, seen, builder.or_(seen, builder.shl(i64(1), free)), "acquire", "monotonic")
    builder.cbranch(builder.extract_value(result, 1), after, again)
    builder.position_at_end(after)
    return builder.load(place)


def _leave_place(builder: ir.IRBuilder, job: Any, place: Any) -> None:
    builder.atomic_rmw("and", _number(builder, job, "busy"), builder.not_(builder.shl(i64(1), place)), "release")


def _number(builder: ir.IRBuilder, job: Any, name: str) -> Any:
    """Return the address of a number in the job, for atomic operations."""
    return builder.bitcast(builder.gep(job, [i64(REGION[name])]), I64.as_pointer())


def new_region(builder: ir.IRBuilder) -> Any:
    """Return a region on the stack, all 0."""
    assert REGION.nbytes is not None
    with builder.goto_entry_block():
        region = builder.bitcast(builder.alloca(ir.ArrayType(I64, REGION.nbytes // 8)), POINTER)
    cgutils.memset(builder, region, i64(REGION.nbytes), 0)
    return region


def _emit_gate(module: ir.Module) -> None:
    _, builder = new_function(module, ENTER, ir.FunctionType(I32, []), linkage="external")
    builder.ret(builder.zext(gate.enter(builder), I32))
    _, builder = new_function(module, LEAVE, ir.FunctionType(_VOID, []), linkage="external")
    gate.leave(builder)
    builder.ret_void()


def _emit_record(module: ir.Module) -> None:
    function, builder = new_function(module, RECORD, ir.FunctionType(_VOID, [POINTER]), linkage="external")
    region = _current(builder)
    # A loop inside of this one may have failed before.
    with builder.if_then(cgutils.is_null(builder, load(builder, region, REGION, "error"))):
        api = load(builder, region, REGION, "api")
        error = emit_upcall_inside(builder, _new_error.address, [region, function.args[0]], api)
        store(builder, region, REGION, "error", error)
    builder.ret_void()


def _describe(region: int, unpacked: int | None) -> int | None:
    """Return a new XLA_FFI_Error for the exception at address *unpacked*."""
    api, kernel, place = (
        ctypes.c_void_p.from_address(region + REGION[name]).value or 0 for name in ("api", "kernel", "place")
    )
    texts = ctypes.string_at(kernel), ctypes.string_at(place)
    if not unpacked:
        return new_kernel_error(api, RuntimeError("unknown error"), *texts)
    return report(api, unpacked, *texts)


_new_error = Upcall(_describe, ctypes.c_void_p, ctypes.c_void_p)
