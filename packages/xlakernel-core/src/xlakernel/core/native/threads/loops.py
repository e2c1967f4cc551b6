"""Parallel loops of kernels on XLA's own thread pool, in place of Numba's threading layer.

Code that Numba compiles for ``prange`` calls three functions by their symbols: ``numba_parallel_for``,
``get_num_threads`` and ``get_thread_id``. The first one takes the schedule of a loop, an array of ranges of iterations
with usually one row for each thread. `install` replaces the three by functions of this file, which look up the
thread's `REGION`, a description of the call from XLA that the thread runs. Inside such a call, the rows of the schedule
go to XLA's pool as the slices of a batch do (`pool`). The calling thread takes part, and never waits for a thread that
does not start. Outside of such calls, the functions call Numba's own, and a parallel function runs as usual.

A row has the same number in each call, and so the same iterations and the same slot for reductions, whichever thread
runs the row. The result therefore does not depend on which threads were free.
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
from ..machine.frame import I32, I64, NULL, POINTER, VOID, address_of_word, call_symbol, i64, load, store
from ..machine.machine_code import NAME, MachineCode, load_module, new_function, new_module, pointer_to
from ..machine.status import report
from ..machine.upcall import emit_upcall_inside
from . import pool
from .pool import clock, count_threads, lap, maximum, minimum

# A region: the call from XLA that a thread runs, or a loop in that call. *api* and *ctx* have the same offsets as in a
# call frame, so that a region can be passed as a frame. *size*: the number of the pool's threads, 0 if unknown.
# *limit*: the number of threads of the loop, 0 outside of loops. *thread*: the thread's number in the loop. *error*: an
# ``XLA_FFI_Error``. *kernel* and *place*: texts for messages. *units*: the number of parts that the loop's rows are
# divided into. *spent*: the nanoseconds of all parts. The other fields are Numba's parameters of a loop.
_FIELDS = ("size", "limit", "api", "ctx", "thread", "error", "kernel", "place")
_LOOP = ("function", "arguments", "extents", "steps", "data", "dimensions", "arrays", "units", "spent")
REGION = abi.Struct("region", {name: 8 * n for n, name in enumerate((*_FIELDS, *_LOOP))}, 8 * len(_FIELDS + _LOOP))
assert all(REGION[name] == abi.CALL_FRAME[name] for name in ("api", "ctx"))

#: ``exchange(region)``: set the region of this thread; return the previous one.
EXCHANGE = ir.FunctionType(POINTER, [POINTER])

# Measurements of a loop. *cost*: a double, the nanoseconds of one iteration; not of a run, because a handler serves
# arrays of every size. *patience*: the nanoseconds for which the next runs stay in one thread.
_MEMORY = abi.Struct("memory", {"cost": 0, "patience": 8}, 16)
MEMORY = ir.ArrayType(I64, 2)

# Nanoseconds. A shorter loop stays in one thread.
_WORTH = 10_000
# If several threads slow a loop down by _SLOWER, because other programs use the cores, the next runs stay in one thread
# until they have taken _PATIENCE times as long as the slow run.
_SLOWER, _PATIENCE = 2.0, 16
# Maximum growth of the stored cost by a run in several threads. An interruption may inflate the measured cost.
_GROWTH = 1.125
# Nanoseconds. A shorter run in one thread consists mostly of the call, which inflates the cost.
_SHORT = 1_000

_DOUBLE = ir.DoubleType()
_COUNT = ir.FunctionType(I64, [])
PARALLEL_FOR = ir.FunctionType(VOID, [POINTER] * 5 + [I64] * 3)
_BODY = ir.FunctionType(VOID, [POINTER] * 4)
_SYMBOLS = {"numba_parallel_for": PARALLEL_FOR, "get_num_threads": _COUNT, "get_thread_id": _COUNT}
#: The symbols of the gate's entry and exit.
ENTER, LEAVE = "xlakernel_enter_interpreter", "xlakernel_leave_interpreter"
#: The symbol of ``record(exception)``, called inside the gate: store an exception in the region of the thread.
RECORD = "xlakernel_record_prange_error"


def _new_key() -> int:
    """Return a new key of thread-local storage, which machine code reads without the GIL."""
    allocate, create = ctypes.pythonapi.PyThread_tss_alloc, ctypes.pythonapi.PyThread_tss_create
    allocate.restype, allocate.argtypes = ctypes.c_void_p, []
    create.restype, create.argtypes = ctypes.c_int, [ctypes.c_void_p]
    key = allocate()
    if not key or create(key):
        raise MemoryError("xlakernel: the system has no more keys of thread-local storage")
    return int(key)


_key = functools.cache(_new_key)


def exchange() -> int:
    """Return the address of `EXCHANGE`."""
    code: MachineCode = install()
    return code.address_of(f"{NAME}_exchange")


@functools.cache  # which keeps the machine code alive
@global_compiler_lock
def install() -> MachineCode:
    """Replace Numba's functions for all code that is linked from now on."""
    numba.get_num_threads()  # Numba adds its symbols when it starts its threads
    original = {symbol: llvm.address_of_symbol(symbol) for symbol in _SYMBOLS}
    module = new_module(cpu_target.target_context)
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
    return call_symbol(builder, "PyThread_tss_get", POINTER, pointer_to(builder, _key()))


def _emit_exchange(module: ir.Module) -> ir.Function:
    function, builder = new_function(module, "exchange", EXCHANGE, linkage="external")
    before = _current(builder)
    call_symbol(builder, "PyThread_tss_set", I32, pointer_to(builder, _key()), function.args[0])
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
    """Emit the number of threads that a loop is divided among: those of the pool, at most Numba's setting."""
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
    """Emit ``numba_parallel_for(function, arguments, extents, steps, data, dimensions, arrays, threads)``.

    *function* is the body of the loop, with the parameters of a generalised ufunc: the addresses of its arrays, of
    which the first is the schedule; the extents, of which the first is the number of rows; the strides of the arrays
    from row to row; and *data*. If *threads* is 0, as in loops compiled by `prange`, *data* is the loop's `MEMORY`.

    The rows are divided into units, at most one for each thread. If there are more rows than threads, as with
    ``numba.parallel_chunksize``, unit u consists of the rows u, u + units, u + 2 units, … These rows run with the
    thread number u.
    """
    function, builder = new_function(module, "numba_parallel_for", PARALLEL_FOR, linkage="external")
    body, arguments, extents, steps, data, dimensions, arrays, asked = function.args
    unused = cgutils.add_global_variable(module, I64, f"{NAME}_unused")  # static: the pool may write to it later
    unused.linkage, unused.initializer = "internal", i64(0)
    region = _current(builder)
    with builder.if_then(cgutils.is_null(builder, region)):
        _original(builder, original, PARALLEL_FOR, *function.args)
        builder.ret_void()
    with builder.if_then(cgutils.is_not_null(builder, load(builder, region, REGION, "error")), likely=False):
        builder.ret_void()  # an earlier loop has failed
    total = builder.load(builder.bitcast(extents, I64.as_pointer()))
    threads = builder.call(counted, [])
    units = minimum(builder, threads, total)
    job = new_region(builder)
    values = {name: load(builder, region, REGION, name) for name in ("api", "ctx", "kernel", "place")}
    values |= {"size": load(builder, region, REGION, "size", I64), "limit": threads, "data": data}
    values |= {"function": body, "arguments": arguments, "extents": extents, "steps": steps}
    for name, value in {**values, "dimensions": dimensions, "arrays": arrays, "units": units}.items():
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
    patience = load(builder, memory, _MEMORY, "patience", I64)
    crowded = builder.icmp_signed(">", patience, i64(0))
    single = builder.icmp_signed("<=", units, i64(1))
    with builder.if_else(builder.or_(single, builder.or_(light, crowded))) as (in_this_thread, in_the_pool):
        with in_this_thread:
            store(builder, region, REGION, "error", builder.call(rows, [job, i64(0), units]))
            spent = load(builder, job, REGION, "spent", I64)
            store(builder, memory, _MEMORY, "patience", maximum(builder, builder.sub(patience, spent), i64(0)))
            reliable = builder.icmp_signed(">=", spent, i64(_SHORT))
            growth = builder.select(reliable, _DOUBLE(float("inf")), _DOUBLE(1))
            _remember(builder, memory, spent, iterations, growth)
        with in_the_pool:
            run = pointer_to(builder, pool.routine("fan_out"), pool.FAN_OUT.as_pointer())
            before = cgutils.alloca_once_value(builder, clock(builder))
            error = builder.call(run, [job, rows, i64(0), units, unused, builder.sub(units, i64(1)), i64(0)])
            store(builder, region, REGION, "error", error)
            spent = lap(builder, before)
            _remember(builder, memory, load(builder, job, REGION, "spent", I64), iterations, _DOUBLE(_GROWTH))
            limit = builder.fmul(work, _DOUBLE(_SLOWER))
            slower = builder.fcmp_ordered(">", builder.sitofp(spent, _DOUBLE), limit)
            with builder.if_then(builder.and_(slower, known), likely=False):
                store(builder, memory, _MEMORY, "patience", builder.mul(spent, i64(_PATIENCE)))
    builder.ret_void()


def _count_iterations(builder: ir.IRBuilder, arguments: Any, steps: Any, total: Any) -> Any:
    """Return the number of iterations of a schedule with *total* rows, at least 1.

    A row has the first index of each dimension, then the last index of each. In a row without iterations, some last
    index is less than its first index.
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
    """Store the cost of an iteration after a run of *spent* nanoseconds, at most *growth* times the previous cost.

    If two calls store a cost at the same time, one value is lost.
    """
    before = load(builder, memory, _MEMORY, "cost", _DOUBLE)
    cost = builder.fdiv(builder.sitofp(spent, _DOUBLE), iterations)
    most = builder.fmul(before, growth)
    too_much = builder.and_(builder.fcmp_ordered(">", cost, most), builder.fcmp_ordered(">", before, _DOUBLE(0)))
    store(builder, memory, _MEMORY, "cost", builder.select(too_much, most, cost))


def _emit_rows(module: ir.Module, change: ir.Function) -> ir.Function:
    """Emit ``rows(job, first, last)``: run the units first … last - 1 of a loop in this thread."""
    function, builder = new_function(module, "rows", pool.RUN)
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
    builder.store(i64(1), extents)  # the body is called for one row at a time
    region = new_region(builder)
    for name in ("api", "ctx", "kernel", "place", "size", "limit"):
        store(builder, region, REGION, name, load(builder, job, REGION, name))
    body = load(builder, job, REGION, "function", _BODY.as_pointer())
    data = load(builder, job, REGION, "data")
    units = load(builder, job, REGION, "units", I64)
    started = cgutils.alloca_once_value(builder, clock(builder))
    before = builder.call(change, [region])

    def finish(result: Any) -> None:
        builder.call(change, [before])
        spent = address_of_word(builder, job, REGION, "spent")
        builder.atomic_rmw("add", spent, lap(builder, started), "monotonic")
        builder.ret(result)

    with cgutils.for_range_slice(builder, first, last, i64(1), intp=I64) as (unit, _):
        store(builder, region, REGION, "thread", unit)
        with cgutils.for_range_slice(builder, unit, total, units, intp=I64) as (row, _):
            with cgutils.for_range(builder, arrays, intp=I64) as loop:
                step = builder.mul(builder.load(builder.gep(steps, [loop.index])), row)
                address = builder.add(builder.load(builder.gep(source, [loop.index])), step)
                builder.store(address, builder.gep(arguments, [loop.index]))
            pointers = [builder.bitcast(values, POINTER) for values in (arguments, extents, steps)]
            builder.call(body, [*pointers, data])
            error = load(builder, region, REGION, "error")
            with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
                finish(error)
    finish(NULL)
    return function


def new_region(builder: ir.IRBuilder) -> Any:
    """Return a zeroed region on the stack."""
    assert REGION.nbytes is not None
    with builder.goto_entry_block():
        region = builder.bitcast(builder.alloca(ir.ArrayType(I64, REGION.nbytes // 8)), POINTER)
    cgutils.memset(builder, region, i64(REGION.nbytes), 0)
    return region


def _emit_gate(module: ir.Module) -> None:
    _, builder = new_function(module, ENTER, ir.FunctionType(I32, []), linkage="external")
    builder.ret(builder.zext(gate.enter(builder), I32))
    _, builder = new_function(module, LEAVE, ir.FunctionType(VOID, []), linkage="external")
    gate.leave(builder)
    builder.ret_void()


def _emit_record(module: ir.Module) -> None:
    function, builder = new_function(module, RECORD, ir.FunctionType(VOID, [POINTER]), linkage="external")
    region = _current(builder)
    # A nested loop may have failed before.
    with builder.if_then(cgutils.is_null(builder, load(builder, region, REGION, "error"))):
        api = load(builder, region, REGION, "api")
        error = emit_upcall_inside(builder, _describe, [region, function.args[0]], api)
        store(builder, region, REGION, "error", error)
    builder.ret_void()


def _describe(region: int, unpacked: int) -> int | None:
    """Return a new ``XLA_FFI_Error`` for the exception at address *unpacked*."""
    api, kernel, place = (
        ctypes.c_void_p.from_address(region + REGION[name]).value or 0 for name in ("api", "kernel", "place")
    )
    return report(api, unpacked, kernel, place)
