"""Machine code that replays launch plans. One function serves all plans; later processes read its code from disk.

``replay(frame, handler)`` performs a call from XLA according to the data at *handler*, which `encode` has written. XLA
passes only the frame to a handler, so each handler is a trampoline that loads the address of its data from a slot of a
table and calls ``replay``. Trampolines are loaded in pools, because one alone takes nearly as long as a pool. A call
takes no lock, allocates no memory on the heap and runs no Python, unless it fails.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ...ffi import abi
from ...native.machine import batch
from ...native.machine.frame import I32, I64, POINTER, Buffer, Frame, answer_handshake, field, get_stream, i64, load
from ...native.machine.machine_code import NAME, MachineCode, load_module, new_function, new_module, pointer_to
from ...native.machine.upcall import emit_upcall
from . import encode
from .cuda_abi import layout
from .steps import PERFORM, PERFORMERS, entry_at

#: Kinds of errors, passed as *what* to ``report``: there is no current device (*code*: the driver's error code); there
#: is no plan for the device (*code*: its ordinal); the call differs from the recorded one; the driver refused a step
#: (*code*: its error code).
NO_DEVICE, NO_PLAN, OTHER_CALL, REFUSED = range(4)

_HANDLER = ir.FunctionType(POINTER, [POINTER])
_REPLAY = ir.FunctionType(POINTER, [POINTER, POINTER])
#: ``report(frame, upcall, what, plan, step, code)``: return the ``XLA_FFI_Error`` of the `Reporter` with this `Upcall`.
_REPORT = ir.FunctionType(POINTER, [POINTER, POINTER, I64, I64, I64, I64])
#: ``check(plan, buffers, batch_rank, extents)``: store the extents of the batch and return the number of slices, or −1
#: if the arrays are not those that the plan was recorded for.
_CHECK = ir.FunctionType(I64, [POINTER, POINTER.as_pointer(), I64, I64.as_pointer()])
#: ``locate(plan, buffers, batch_rank, extents, slice, bases)``: store the addresses of a slice's arrays and of the
#: scratch blocks (temporary memory).
_LOCATE = ir.FunctionType(ir.VoidType(), [*_CHECK.args, I64, I64.as_pointer()])

_ARRAY, _STEP = layout(encode.ArrayEntry), layout(encode.StepEntry)
_PLAN, _TABLE = layout(encode.PlanEntry), layout(encode.HandlerEntry)
_NULL = ir.Constant(POINTER, None)
_POOL = 8

_free: list[tuple[int, Any]] = []  # unused trampolines; a used one stays in use, since XLA may call it at any time


def take_handler(entry: int) -> tuple[int, Any]:
    """Return the address of a handler that replays the `HandlerEntry` at *entry*, and the objects to keep alive."""
    while True:
        try:  # no lock: it would be taken both inside and around Numba's compiler lock, a deadlock
            address, (code, table, slot) = _free.pop()
        except IndexError:
            _free.extend(_compile_pool())
        else:
            table[slot] = entry
            return address, (code, table)


def routine(name: str) -> int:
    """Return the address of a routine: one of `PERFORMERS`, or ``replay``."""
    return int(_routines().address_of(f"{NAME}_{name}"))


@global_compiler_lock  # around the cache, so that one thread compiles and the others wait for it
@functools.cache
def _routines() -> MachineCode:
    context = cpu_target.target_context
    module = new_module(context)
    for name, emit in PERFORMERS.items():
        function, builder = new_function(module, name, PERFORM, linkage="external")
        builder.ret(emit(builder, *function.args))
    _emit_report(module)
    _emit_replay(module, _emit_check(module), _emit_locate(module))
    return load_module(context.codegen(), module, keep=True)


@global_compiler_lock
def _compile_pool() -> list[tuple[int, Any]]:
    """Return the addresses of new trampolines, each with its machine code, its table and its slot."""
    table = (ctypes.c_void_p * _POOL)()
    context = cpu_target.target_context
    module = new_module(context)
    names = [f"handler_{slot}" for slot in range(_POOL)]
    for slot, name in enumerate(names):
        function, builder = new_function(module, name, _HANDLER, linkage="external")
        replay = pointer_to(builder, routine("replay"), _REPLAY.as_pointer())
        entries = pointer_to(builder, ctypes.addressof(table), POINTER.as_pointer())
        entry = builder.load(builder.gep(entries, [i64(slot)]))
        builder.ret(builder.call(replay, [function.args[0], entry], tail=True))
    code = load_module(context.codegen(), module, keep=True)
    return [(code.address_of(f"{NAME}_{name}"), (code, table, slot)) for slot, name in enumerate(names)]


# report(frame, upcall, what, plan, step, code)


def _emit_report(module: ir.Module) -> None:
    """Emit ``report``, once for all errors: an upcall takes as many instructions as the rest of ``replay``."""
    function, builder = new_function(module, "report", _REPORT)
    frame, upcall, *arguments = function.args
    api = load(builder, frame, abi.CALL_FRAME, "api")
    builder.ret(emit_upcall(builder, upcall, [frame, *arguments], api))


# replay(frame, handler)


def _emit_replay(module: ir.Module, check: ir.Function, locate: ir.Function) -> None:
    """Emit ``replay``.

    ``replay`` answers a handshake, chooses the plan of the current device, compares the call with it, and performs
    all steps for each slice of the batch in order. The addresses of a slice are in ``bases``: those of the inputs, the
    outputs and the scratch blocks, then 0.
    """
    function, builder = new_function(module, "replay", _REPLAY, linkage="external")
    pointer, handler = function.args
    extension = load(builder, pointer, abi.CALL_FRAME, "extension_start")
    with builder.if_then(cgutils.is_not_null(builder, extension), likely=False):
        answer_handshake(builder, pointer, extension, ir.Constant(I32, abi.COMMAND_BUFFER_COMPATIBLE))
    frame = Frame(builder, pointer)
    plan = _emit_choice(builder, frame, handler)

    inputs, outputs, scratch = (load(builder, plan, _PLAN, f"{n}_count", I64) for n in ("input", "output", "scratch"))
    counts = zip(frame.counts(), (inputs, builder.add(outputs, scratch), i64(0)), strict=True)
    wrong = [builder.icmp_signed("!=", found, count) for found, count in counts]
    _refuse(builder, frame, handler, plan, functools.reduce(builder.or_, wrong))
    buffers = _all_buffers(builder, frame, inputs, builder.add(outputs, scratch))
    batch_rank = _batch_rank(builder, plan, buffers, builder.add(inputs, outputs))
    _refuse(builder, frame, handler, plan, builder.icmp_signed("<", batch_rank, i64(0)))
    extents = builder.alloca(I64, size=batch_rank)
    total = builder.call(check, [plan, buffers, batch_rank, extents])
    _refuse(builder, frame, handler, plan, builder.icmp_signed("<", total, i64(0)))

    stream = _emit_stream(builder, frame, handler)
    bases = builder.alloca(I64, size=builder.add(builder.add(inputs, builder.add(outputs, scratch)), i64(1)))
    with cgutils.for_range(builder, total, intp=I64) as index:
        builder.call(locate, [plan, buffers, batch_rank, extents, index.index, bases])
        steps = load(builder, plan, _PLAN, "steps", POINTER.as_pointer())
        with cgutils.for_range(builder, load(builder, plan, _PLAN, "step_count", I64), intp=I64) as number:
            step = builder.load(builder.gep(steps, [number.index]))
            perform = load(builder, step, _STEP, "perform", PERFORM.as_pointer())
            code = builder.call(perform, [step, bases, stream])
            with builder.if_then(cgutils.is_not_null(builder, code), likely=False):
                _report(builder, frame, handler, REFUSED, plan, number.index, builder.zext(code, I64))
    builder.ret(_NULL)


def _emit_choice(builder: ir.IRBuilder, frame: Frame, handler: Any) -> Any:
    """Return the plan for the current device; emit the report of an error if there is no plan."""
    plans = load(builder, handler, _TABLE, "plans")
    chosen = cgutils.alloca_once_value(builder, plans)
    kind = ir.FunctionType(I32, [I32.as_pointer()]).as_pointer()
    current_device = load(builder, handler, _TABLE, "current_device", kind)
    with builder.if_then(cgutils.is_not_null(builder, current_device), likely=False):
        answer = cgutils.alloca_once_value(builder, ir.Constant(I32, -1))
        code = builder.call(current_device, [answer])
        with builder.if_then(cgutils.is_not_null(builder, code), likely=False):
            _report(builder, frame, handler, NO_DEVICE, None, i64(0), builder.zext(code, I64))
        device = builder.sext(builder.load(answer), I64)
        builder.store(_NULL, chosen)
        with cgutils.for_range(builder, load(builder, handler, _TABLE, "plan_count", I64), intp=I64) as loop:
            plan = entry_at(builder, plans, _PLAN, loop.index)
            fits = builder.icmp_signed("==", load(builder, plan, _PLAN, "device", I64), device)
            builder.store(builder.select(fits, plan, builder.load(chosen)), chosen)
        with builder.if_then(cgutils.is_null(builder, builder.load(chosen)), likely=False):
            _report(builder, frame, handler, NO_PLAN, None, i64(0), device)
    return builder.load(chosen)


def _report(builder: ir.IRBuilder, frame: Frame, handler: Any, what: int, plan: Any, step: Any, code: Any) -> None:
    """Emit the return of an error."""
    number = i64(0) if plan is None else load(builder, plan, _PLAN, "number", I64)
    upcall = load(builder, handler, _TABLE, "report")
    report = builder.module.globals[f"{NAME}_report"]
    builder.ret(builder.call(report, [frame.pointer, upcall, i64(what), number, step, code]))


def _refuse(builder: ir.IRBuilder, frame: Frame, handler: Any, plan: Any, wrong: Any) -> None:
    with builder.if_then(wrong, likely=False):
        _report(builder, frame, handler, OTHER_CALL, plan, i64(0), i64(0))


def _all_buffers(builder: ir.IRBuilder, frame: Frame, inputs: Any, outputs: Any) -> Any:
    """Return an array on the stack of the ``XLA_FFI_Buffer`` pointers of the inputs, then of the outputs."""
    buffers = builder.alloca(POINTER, size=builder.add(inputs, outputs))
    parts = (("args", abi.ARGS, inputs, i64(0)), ("rets", abi.RETS, outputs, inputs))
    for part, struct, count, first in parts:
        found = load(builder, field(builder, frame.pointer, abi.CALL_FRAME, part), struct, part, POINTER.as_pointer())
        cgutils.raw_memcpy(builder, builder.gep(buffers, [first]), found, count, 8)
    return buffers


def _batch_rank(builder: ir.IRBuilder, plan: Any, buffers: Any, count: Any) -> Any:
    """Return the number of batch dimensions of the first array, 0 if there is no array."""
    rank = cgutils.alloca_once_value(builder, i64(0))
    with builder.if_then(builder.icmp_signed(">", count, i64(0))):
        own = load(builder, load(builder, plan, _PLAN, "arrays"), _ARRAY, "rank", I64)
        found = load(builder, builder.load(buffers), abi.BUFFER, "rank", I64)
        builder.store(builder.sub(found, own), rank)
    return builder.load(rank)


def _emit_stream(builder: ir.IRBuilder, frame: Frame, handler: Any) -> Any:
    stream = cgutils.alloca_once_value(builder, load(builder, handler, _TABLE, "stream"))
    fixed = cgutils.is_not_null(builder, load(builder, handler, _TABLE, "fixed_stream", I64))
    with builder.if_then(builder.not_(fixed), likely=True):
        error, found = get_stream(builder, frame.api, load(builder, frame.pointer, abi.CALL_FRAME, "ctx"))
        with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
            builder.ret(error)
        builder.store(found, stream)
    return builder.load(stream)


# check(plan, buffers, batch_rank, extents)


def _emit_check(module: ir.Module) -> ir.Function:
    """Emit ``check``."""
    function, builder = new_function(module, "check", _CHECK)
    plan, buffers, batch_rank, extents = function.args
    inputs, outputs, scratch = (load(builder, plan, _PLAN, f"{n}_count", I64) for n in ("input", "output", "scratch"))
    arrays = builder.add(inputs, outputs)
    with cgutils.for_range(builder, batch_rank, intp=I64) as axis:
        builder.store(i64(1), builder.gep(extents, [axis.index]))
    with cgutils.for_range(builder, arrays, intp=I64) as loop:
        buffer = Buffer(builder, builder.load(builder.gep(buffers, [loop.index])))
        entry = entry_at(builder, load(builder, plan, _PLAN, "arrays"), _ARRAY, loop.index)
        _check_slice(builder, buffer, entry, batch_rank)
        with cgutils.for_range(builder, batch_rank, intp=I64) as axis:
            own, place = builder.load(builder.gep(buffer.dims, [axis.index])), builder.gep(extents, [axis.index])
            builder.store(batch.join(builder, builder.load(place), own), place)

    total = cgutils.alloca_once_value(builder, i64(1))
    with cgutils.for_range(builder, batch_rank, intp=I64) as axis:
        extent = builder.load(builder.gep(extents, [axis.index]))
        builder.store(builder.mul(builder.load(total), extent), total)
        with cgutils.for_range(builder, arrays, intp=I64) as loop:
            buffer = Buffer(builder, builder.load(builder.gep(buffers, [loop.index])))
            own = builder.load(builder.gep(buffer.dims, [axis.index]))
            is_input = builder.icmp_signed("<", loop.index, inputs)
            _fail(builder, batch.differs(builder, own, extent, is_input))
    sizes = load(builder, plan, _PLAN, "scratch", I64.as_pointer())
    with cgutils.for_range(builder, scratch, intp=I64) as loop:
        buffer = Buffer(builder, builder.load(builder.gep(buffers, [builder.add(arrays, loop.index)])))
        _fail(builder, builder.icmp_signed("!=", buffer.dtype, ir.Constant(I32, abi.DATA_TYPES["uint8"])))
        _fail(builder, builder.icmp_signed("!=", buffer.rank, i64(1)))
        size = builder.load(builder.gep(sizes, [loop.index]))
        _fail(builder, builder.icmp_signed("<", builder.load(buffer.dims), size))
    builder.ret(builder.load(total))
    return function


def _check_slice(builder: ir.IRBuilder, buffer: Buffer, entry: Any, batch_rank: Any) -> None:
    """Fail unless the buffer's dtype, rank and last dimensions are the recorded array's."""
    rank = load(builder, entry, _ARRAY, "rank", I64)
    dtype = builder.trunc(load(builder, entry, _ARRAY, "dtype", I64), I32)
    _fail(builder, builder.icmp_signed("!=", buffer.dtype, dtype))
    _fail(builder, builder.icmp_signed("!=", buffer.rank, builder.add(batch_rank, rank)))
    extents = load(builder, entry, _ARRAY, "extents", I64.as_pointer())
    with cgutils.for_range(builder, rank, intp=I64) as axis:
        found = builder.load(builder.gep(buffer.dims, [builder.add(batch_rank, axis.index)]))
        _fail(builder, builder.icmp_signed("!=", found, builder.load(builder.gep(extents, [axis.index]))))


def _fail(builder: ir.IRBuilder, wrong: Any) -> None:
    with builder.if_then(wrong, likely=False):
        builder.ret(i64(-1))


# locate(plan, buffers, batch_rank, extents, slice, bases)


def _emit_locate(module: ir.Module) -> ir.Function:
    """Emit ``locate``.

    An array's base is its address plus the sum, over the batch axes, of the slice's coordinate times the axis's stride
    in bytes.
    """
    function, builder = new_function(module, "locate", _LOCATE)
    plan, buffers, batch_rank, extents, index, bases = function.args
    inputs, outputs, scratch = (load(builder, plan, _PLAN, f"{n}_count", I64) for n in ("input", "output", "scratch"))
    arrays = builder.add(inputs, outputs)
    count = builder.add(arrays, scratch)
    with cgutils.for_range(builder, count, intp=I64) as loop:
        data = load(builder, builder.load(builder.gep(buffers, [loop.index])), abi.BUFFER, "data", I64)
        builder.store(data, builder.gep(bases, [loop.index]))
    builder.store(i64(0), builder.gep(bases, [count]))
    with builder.if_then(builder.icmp_signed(">", batch_rank, i64(0)), likely=False):
        strides = builder.alloca(I64, size=arrays)
        with cgutils.for_range(builder, arrays, intp=I64) as loop:
            entry = entry_at(builder, load(builder, plan, _PLAN, "arrays"), _ARRAY, loop.index)
            builder.store(load(builder, entry, _ARRAY, "nbytes", I64), builder.gep(strides, [loop.index]))

        def extent_of(axis: Any) -> Any:
            return builder.load(builder.gep(extents, [axis]))

        with (
            batch.coordinates(builder, index, batch_rank, extent_of) as (axis, coordinate),
            cgutils.for_range(builder, arrays, intp=I64) as loop,
        ):
            base, stride = (builder.gep(values, [loop.index]) for values in (bases, strides))
            dims = Buffer(builder, builder.load(builder.gep(buffers, [loop.index]))).dims
            batch.advance(builder, base, stride, builder.load(builder.gep(dims, [axis])), coordinate)
    builder.ret_void()
    return function
