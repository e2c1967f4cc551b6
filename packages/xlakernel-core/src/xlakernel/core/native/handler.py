"""Construction of the XLA FFI handler of a kernel, as LLVM IR.

The handler is emitted directly, without type inference or a C compiler. LLVM compiles it in a tenth of a second, once
for all processes if the code is stored on disk (`machine_code`). A handler decodes the call frame, checks that it has
the types that the kernel was compiled for, and calls the kernel (`callee`) once for each slice of a batch. Outside of
debug mode, it enters the interpreter only if the kernel raises (`status`) or itself needs Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock

from ..ffi import abi
from ..ffi.registry import Handler
from .arguments import Argument, Slices
from .callee import Callee
from .debugging.observer import HandlerObserver
from .machine import batch
from .machine.frame import I32, I64, NULL, POINTER, Buffer, Frame, answer_handshake, create_error, i64, load
from .machine.lock import held
from .machine.machine_code import NAME, load_module, new_function, new_module, pointer_to
from .threads import pool

#: Part of the name of every target (registered handler). Increase it when the behaviour of the emitted code changes.
HANDLER_VERSION = 7


@global_compiler_lock
def build_handler(
    callee: Callee,
    arguments: Sequence[Argument],
    *,
    kernel: str,
    place: str,
    lock: int | None = None,
    debug: bool = False,
    ordered: bool = False,
    keep: bool = False,
    attribute_nbytes: int | None = None,
) -> Handler:
    """Build the handler that calls *callee*.

    Args:
      callee: the kernel's code.
      arguments: the buffers of the kernel's parameters.
      kernel: the kernel's name, for messages.
      place: file and line of its definition, for messages.
      lock: address of a lock (`machine.lock`) to hold during a call, for code that must not run twice at once.
      debug: whether to check the kernel's use of its arrays (`native.debugging`).
      ordered: whether the slices of a batch must run in order, and each only once. Otherwise, and without a lock, they
        may run at the same time, on XLA's thread pool (`threads.pool`).
      keep: whether to store the machine code on disk for later processes.
      attribute_nbytes: size of the call's only attribute, an array of bytes for the callee; None: no attribute.

    Returns:
      The handler, which keeps its machine code and the kernel's alive.
    """
    observer = None
    if debug:
        observer = HandlerObserver(arguments, kernel, place, once=ordered, out_of_bounds=callee.out_of_bounds)
    pooled = not ordered and lock is None and pool.SUPPORTED
    return _HandlerBuilder(callee, arguments, kernel, lock, observer, pooled, keep, attribute_nbytes).build()


@dataclasses.dataclass
class _HandlerBuilder:
    """Emits ``handler(frame)``, which checks a call, and ``run(frame, first, last)``, which runs slices of a batch."""

    callee: Callee
    arguments: Sequence[Argument]
    kernel: str
    lock: int | None
    observer: HandlerObserver | None
    pooled: bool
    keep: bool
    attribute_nbytes: int | None

    def __post_init__(self) -> None:
        self.context = self.callee.context
        self.module = new_module(self.context)

    def build(self) -> Handler:
        self._emit_handler(self._emit_run())
        code = load_module(self.context.codegen(), self.module, keep=self.keep)
        return Handler(code.address_of(NAME), (code, self.callee.keep_alive, self.observer))

    def _decode(self, frame: Frame) -> list[Buffer]:
        return [getattr(frame, argument.source)(argument.index) for argument in self.arguments]

    def _batch_rank(self, builder: ir.IRBuilder, buffers: list[Buffer]) -> Any:
        return builder.sub(buffers[0].rank, i64(self.arguments[0].ndim)) if buffers else i64(0)

    # The handler: the handshake, the checks, and one call of `run` for the whole batch.

    def _emit_handler(self, run: ir.Function) -> None:
        function, builder = new_function(self.module, "", ir.FunctionType(POINTER, [POINTER]), linkage="external")
        (pointer,) = function.args
        extension = load(builder, pointer, abi.CALL_FRAME, "extension_start")
        with builder.if_then(cgutils.is_not_null(builder, extension), likely=False):
            answer_handshake(builder, pointer, extension, ir.Constant(I32, 0))
        frame = Frame(builder, pointer)
        self._emit_count_checks(builder, frame)
        buffers = self._decode(frame)
        batch_rank = self._batch_rank(builder, buffers)
        self._emit_type_checks(builder, frame, buffers, batch_rank)
        total = self._emit_batch_size(builder, frame, buffers, batch_rank)
        if self.observer is not None:
            builder.ret(self.observer.emit_call(builder, self._emit_run_all(run), pointer, total))
        else:
            if self.pooled:
                with builder.if_then(builder.icmp_signed(">", total, i64(1)), likely=False):
                    builder.ret(self._emit_batch(builder, pointer, run, total))
            builder.ret(self._call_run(builder, run, pointer, total))

    def _call_run(self, builder: ir.IRBuilder, run: ir.Function, pointer: Any, total: Any) -> Any:
        with contextlib.nullcontext() if self.lock is None else held(builder, self.lock):
            return builder.call(run, [pointer, i64(0), total])

    def _emit_run_all(self, run: ir.Function) -> ir.Function:
        """Emit ``run_all(frame, total)``, which runs the whole batch and holds the lock only for that time."""
        function, builder = new_function(self.module, "run_all", ir.FunctionType(POINTER, [POINTER, I64]))
        builder.ret(self._call_run(builder, run, *function.args))
        return function

    def _emit_batch(self, builder: ir.IRBuilder, pointer: Any, run: ir.Function, total: Any) -> Any:
        """Emit the run of a batch with several slices, on XLA's thread pool if that pays; return the error."""
        memory = cgutils.add_global_variable(self.module, I64, f"{NAME}_memory")
        memory.linkage, memory.initializer = "internal", i64(0)
        run_batch = pointer_to(builder, pool.routine("run_batch"), pool.RUN_BATCH.as_pointer())
        return builder.call(run_batch, [pointer, run, total, memory])

    def _reject(self, builder: ir.IRBuilder, frame: Frame, condition: Any, text: str) -> None:
        with builder.if_then(condition, likely=False):
            message = self.context.insert_const_string(self.module, f"xlakernel: {self.kernel}: {text}")
            code = ir.Constant(I32, abi.ERROR_CODES["INVALID_ARGUMENT"])
            builder.ret(create_error(builder, frame.api, message, code))

    def _emit_count_checks(self, builder: ir.IRBuilder, frame: Frame) -> None:
        expected = [sum(a.source == source for a in self.arguments) for source in ("input", "output")]
        expected.append(int(self.attribute_nbytes is not None))
        wrong = [
            builder.icmp_signed("!=", found, i64(count)) for found, count in zip(frame.counts(), expected, strict=True)
        ]
        text = "compiled for {} inputs, {} outputs and {} attributes; the call has other numbers of them"
        self._reject(builder, frame, _any(builder, wrong), text.format(*expected))
        if self.attribute_nbytes is not None:
            attribute = frame.attribute()
            wrong = [
                builder.icmp_signed("!=", attribute.kind, ir.Constant(I32, abi.ATTR_TYPES["array"])),
                builder.icmp_signed("!=", attribute.dtype, ir.Constant(I32, abi.DATA_TYPES["uint8"])),
                builder.icmp_signed("!=", attribute.size, i64(self.attribute_nbytes)),
            ]
            text = f"the attribute of the call is not an array of {self.attribute_nbytes} uint8"
            self._reject(builder, frame, _any(builder, wrong), text)

    def _emit_type_checks(self, builder: ir.IRBuilder, frame: Frame, buffers: list[Buffer], batch_rank: Any) -> None:
        wrong = [builder.icmp_signed("<", batch_rank, i64(0))]
        for argument, buffer in zip(self.arguments, buffers, strict=True):
            dtype = ir.Constant(I32, abi.DATA_TYPES[argument.dtype])
            wrong.append(builder.icmp_signed("!=", buffer.dtype, dtype))
            extra = builder.sub(buffer.rank, i64(argument.ndim))
            wrong.append(builder.icmp_signed("!=", extra, batch_rank))
        text = "the call's buffers differ in dtype or rank from those that the kernel was compiled for: "
        described = ", ".join(f"{a.source} {a.index} {a.content}" for a in self.arguments)
        self._reject(builder, frame, _any(builder, wrong), text + described)

    def _emit_batch_size(self, builder: ir.IRBuilder, frame: Frame, buffers: list[Buffer], batch_rank: Any) -> Any:
        """Return the number of slices, after a check that the buffers agree on it."""
        total = cgutils.alloca_once_value(builder, i64(1))
        wrong = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(1), 0))
        with cgutils.for_range(builder, batch_rank, intp=I64) as loop:
            extent = self._batch_extent(builder, buffers, loop.index)
            builder.store(builder.mul(builder.load(total), extent), total)
            for argument, buffer in zip(self.arguments, buffers, strict=True):
                own = builder.load(builder.gep(buffer.dims, [loop.index]))
                is_input = ir.Constant(ir.IntType(1), argument.source == "input")
                differs = batch.differs(builder, own, extent, is_input)
                builder.store(builder.or_(builder.load(wrong), differs), wrong)
        text = "the batch dimensions of the call's buffers differ; an input has those of the outputs, or 1"
        self._reject(builder, frame, builder.load(wrong), text)
        return builder.load(total)

    def _batch_extent(self, builder: ir.IRBuilder, buffers: list[Buffer], axis: Any) -> Any:
        extent: Any = i64(1)
        for buffer in buffers:
            extent = batch.join(builder, extent, builder.load(builder.gep(buffer.dims, [axis])))
        return extent

    # run(frame, first, last): call the kernel for the slices first … last - 1 of the flattened batch.

    def _emit_run(self) -> ir.Function:
        function, builder = new_function(self.module, "run", pool.RUN)
        # Batches take the address of this function, so that LLVM might not inline it into calls without a batch.
        function.attributes.add("alwaysinline")
        pointer, first, last = function.args
        frame = Frame(builder, pointer)
        buffers = self._decode(frame)
        batch_rank = self._batch_rank(builder, buffers)
        arrays = [
            Slices(builder, argument, buffer, batch_rank)
            for argument, buffer in zip(self.arguments, buffers, strict=True)
        ]
        prepared = self.callee.prepare(builder, frame, dict(zip(self.arguments, arrays, strict=True)))
        with cgutils.for_range_slice(builder, first, last, i64(1), intp=I64) as (index, _):
            self._emit_offsets(builder, buffers, arrays, batch_rank, index)
            self.callee.call(builder, frame, prepared)
        builder.ret(NULL)
        return function

    def _emit_offsets(
        self, builder: ir.IRBuilder, buffers: list[Buffer], arrays: list[Slices], batch_rank: Any, index: Any
    ) -> None:
        """Move each array to slice *index* of the flattened batch."""
        for array in arrays:
            array.rewind(builder)
        extent_of = functools.partial(self._batch_extent, builder, buffers)
        with batch.coordinates(builder, index, batch_rank, extent_of) as (axis, coordinate):
            for array in arrays:
                array.advance(builder, axis, coordinate)


def _any(builder: ir.IRBuilder, conditions: Sequence[Any]) -> Any:
    result: Any = ir.Constant(ir.IntType(1), 0)
    for condition in conditions:
        result = builder.or_(result, condition)
    return result
