"""Build the XLA FFI handler of a kernel, as LLVM IR.

The handler is emitted directly: no type inference, no C compiler. LLVM compiles it in a tenth of a second, once for all
processes where it is kept on disk (`machine_code`). It decodes the call frame, checks it against the types
that the kernel was compiled for, and calls the kernel (`callee`) once for each slice of a batch. The interpreter is not
involved, unless the kernel raises (`status`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock

from ..ffi import abi
from ..ffi.registry import Handler
from .arguments import Argument, Slices
from .callee import Callee
from .debugging.debug import HandlerObserver
from .machine.frame import I32, I64, POINTER, Buffer, Frame, answer_handshake, create_error, i64, load
from .machine.lock import held
from .machine.machine_code import NAME, load_module, pointer_to
from .threads import parallel

#: Part of every target's name: raise it when the emitted code does something else.
HANDLER_VERSION = 6


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
) -> Handler:
    """Build the handler that calls *callee*.

    Args:
      callee: the kernel's code.
      arguments: where the kernel's parameters come from.
      kernel: the kernel's name, for messages.
      place: file and line of its definition, for messages.
      lock: address of a lock (`native.lock`) to hold during a call, for code that must not run twice at once.
      debug: whether to check what the kernel does to its arrays (`native.debug`).
      ordered: whether the slices of a batch must run once each and in order. Others may run at the same time, on XLA's
        thread pool (`native.parallel`), where there is no lock.
      keep: whether to keep the machine code on disk for later processes.

    Returns:
      The handler; its machine code and the kernel's live as long as it does.
    """
    observer = None
    if debug:
        observer = HandlerObserver(arguments, kernel, place, once=ordered, out_of_bounds=callee.out_of_bounds)
    pooled = not ordered and lock is None and parallel.SUPPORTED
    return _HandlerBuilder(callee, arguments, kernel, lock, observer, pooled, keep).build()


class _HandlerBuilder:
    """Emits two functions: ``handler(frame)`` checks a call, ``run(frame, first, last)`` runs slices of its batch."""

    def __init__(
        self,
        callee: Callee,
        arguments: Sequence[Argument],
        kernel: str,
        lock: int | None,
        observer: HandlerObserver | None,
        pooled: bool,
        keep: bool,
    ) -> None:
        self.callee = callee
        self.arguments = arguments
        self.kernel = kernel
        self.lock = lock
        self.observer = observer
        self.pooled = pooled
        self.keep = keep
        self.context = callee.context
        self.module = self.context.create_module(NAME)
        self.buffers = [argument for argument in arguments if argument.is_buffer]
        self.attributes = [argument for argument in arguments if not argument.is_buffer]

    def build(self) -> Handler:
        self._emit_handler(self._emit_run())
        code = load_module(self.context.codegen(), self.module, keep=self.keep)
        return Handler(code.address_of(NAME), (code, self.callee.keep_alive, self.observer))

    def _function(self, name: str, parameters: Sequence[Any]) -> tuple[ir.Function, ir.IRBuilder]:
        function = ir.Function(self.module, ir.FunctionType(POINTER, parameters), name)
        # Most of a handler is straight loads: optimising for size halves the time to build it and costs no time to run.
        function.attributes.add("optsize")
        return function, ir.IRBuilder(function.append_basic_block("entry"))

    def _decode(self, frame: Frame) -> list[Buffer]:
        return [getattr(frame, argument.source)(argument.index) for argument in self.buffers]

    # The handler: the handshake, the checks, and one call of `run` for the whole batch.

    def _emit_handler(self, run: ir.Function) -> None:
        function, builder = self._function(NAME, [POINTER])
        (pointer,) = function.args
        extension = load(builder, pointer, abi.CALL_FRAME, "extension_start")
        with builder.if_then(cgutils.is_not_null(builder, extension), likely=False):
            answer_handshake(builder, pointer, extension, ir.Constant(I32, 0))
        frame = Frame(builder, pointer)
        self._emit_count_checks(builder, frame)
        buffers = self._decode(frame)
        batch_rank = builder.sub(buffers[0].rank, i64(self.buffers[0].ndim)) if buffers else i64(0)
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
        """Emit ``run_all(frame, total)``: the whole batch, under the lock. It is held for no longer than that."""
        function, builder = self._function(f"{NAME}_run_all", [POINTER, I64])
        function.linkage = "internal"
        builder.ret(self._call_run(builder, run, *function.args))
        return function

    def _emit_batch(self, builder: ir.IRBuilder, pointer: Any, run: ir.Function, total: Any) -> Any:
        """Run a batch of several slices, on XLA's thread pool if that pays; return the error."""
        memory = cgutils.add_global_variable(self.module, I64, f"{NAME}_memory")
        memory.linkage, memory.initializer = "internal", i64(0)
        run_batch = pointer_to(builder, parallel.batch_runner(), parallel.RUN_BATCH.as_pointer())
        return builder.call(run_batch, [pointer, run, total, memory])

    def _reject(self, builder: ir.IRBuilder, frame: Frame, condition: Any, text: str) -> None:
        with builder.if_then(condition, likely=False):
            message = self.context.insert_const_string(self.module, f"xlakernel: {self.kernel}: {text}")
            code = ir.Constant(I32, abi.ERROR_CODES["INVALID_ARGUMENT"])
            builder.ret(create_error(builder, frame.api, message, code))

    def _emit_count_checks(self, builder: ir.IRBuilder, frame: Frame) -> None:
        expected = [sum(a.source == source for a in self.arguments) for source in ("input", "output", "attribute")]
        wrong = [
            builder.icmp_signed("!=", found, i64(count)) for found, count in zip(frame.counts(), expected, strict=True)
        ]
        text = "compiled for {} inputs, {} outputs and {} attributes; the call has other numbers of them"
        self._reject(builder, frame, _any(builder, wrong), text.format(*expected))
        for attribute in self.attributes:
            what = f"attribute {attribute.index} is not"
            kind, dtype = frame.attribute(attribute.index)
            other_kind = builder.icmp_signed("!=", kind, ir.Constant(I32, abi.ATTR_TYPES["array"]))
            self._reject(builder, frame, other_kind, f"{what} an array")
            other_dtype = builder.icmp_signed("!=", dtype, ir.Constant(I32, abi.DATA_TYPES[attribute.dtype]))
            self._reject(builder, frame, other_dtype, f"{what} {attribute.dtype}")
            size, _ = frame.array_attribute(attribute.index)
            other_size = builder.icmp_signed("!=", size, i64(attribute.size))
            self._reject(builder, frame, other_size, f"{what} of size {attribute.size}")

    def _emit_type_checks(self, builder: ir.IRBuilder, frame: Frame, buffers: list[Buffer], batch_rank: Any) -> None:
        wrong = [builder.icmp_signed("<", batch_rank, i64(0))]
        for argument, buffer in zip(self.buffers, buffers, strict=True):
            dtype = ir.Constant(I32, abi.DATA_TYPES[argument.dtype])
            wrong.append(builder.icmp_signed("!=", buffer.dtype, dtype))
            extra = builder.sub(buffer.rank, i64(argument.ndim))
            wrong.append(builder.icmp_signed("!=", extra, batch_rank))
        text = "the call's buffers differ in dtype or rank from those that the kernel was compiled for: "
        described = ", ".join(f"{a.source} {a.index} {a.content}" for a in self.buffers)
        self._reject(builder, frame, _any(builder, wrong), text + described)

    def _emit_batch_size(self, builder: ir.IRBuilder, frame: Frame, buffers: list[Buffer], batch_rank: Any) -> Any:
        """Return the number of slices, after checking that the buffers agree on it."""
        total = cgutils.alloca_once_value(builder, i64(1))
        wrong = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(1), 0))
        with cgutils.for_range(builder, batch_rank, intp=I64) as loop:
            extent = self._batch_extent(builder, buffers, loop.index)
            builder.store(builder.mul(builder.load(total), extent), total)
            for argument, buffer in zip(self.buffers, buffers, strict=True):
                own = builder.load(builder.gep(buffer.dims, [loop.index]))
                differs = builder.icmp_signed("!=", own, extent)
                if argument.source == "input":
                    differs = builder.and_(differs, builder.icmp_signed("!=", own, i64(1)))
                builder.store(builder.or_(builder.load(wrong), differs), wrong)
        text = "the batch dimensions of the call's buffers differ; an input has those of the outputs, or 1"
        self._reject(builder, frame, builder.load(wrong), text)
        return builder.load(total)

    def _batch_extent(self, builder: ir.IRBuilder, buffers: list[Buffer], axis: Any) -> Any:
        """Return the extent of a batch axis: what any buffer has there, 1 standing for "the same in each slice"."""
        extent: Any = i64(1)
        for buffer in buffers:
            own = builder.load(builder.gep(buffer.dims, [axis]))
            extent = builder.select(builder.icmp_signed("==", own, i64(1)), extent, own)
        return extent

    # run(frame, first, last): the kernel on slices first … last - 1 of the flattened batch.

    def _emit_run(self) -> ir.Function:
        function, builder = self._function(f"{NAME}_run", [POINTER, I64, I64])
        # A call without a batch should not pay for the address that a batch needs of this.
        function.attributes.add("alwaysinline")
        function.linkage = "internal"
        pointer, first, last = function.args
        frame = Frame(builder, pointer)
        buffers = self._decode(frame)
        batch_rank = builder.sub(buffers[0].rank, i64(self.buffers[0].ndim)) if buffers else i64(0)
        arrays = [
            Slices(builder, argument, buffer, batch_rank)
            for argument, buffer in zip(self.buffers, buffers, strict=True)
        ]
        prepared = self.callee.prepare(builder, frame, dict(zip(self.buffers, arrays, strict=True)), self.attributes)
        with cgutils.for_range_slice(builder, first, last, i64(1), intp=I64) as (index, _):
            self._emit_offsets(builder, buffers, arrays, batch_rank, index)
            self.callee.call(builder, frame, prepared)
        builder.ret(ir.Constant(POINTER, None))
        return function

    def _emit_offsets(
        self, builder: ir.IRBuilder, buffers: list[Buffer], arrays: list[Slices], batch_rank: Any, index: Any
    ) -> None:
        """Set each array's byte offset to where slice *index* of the flattened batch begins."""
        remaining = cgutils.alloca_once(builder, I64)
        builder.store(index, remaining)
        for array in arrays:
            array.rewind(builder)
        with cgutils.for_range(builder, batch_rank, intp=I64) as loop:  # from the last batch axis to the first
            axis = builder.sub(builder.sub(batch_rank, loop.index), i64(1))
            extent = self._batch_extent(builder, buffers, axis)
            rest = builder.load(remaining)
            quotient = builder.udiv(rest, extent)
            coordinate = builder.sub(rest, builder.mul(quotient, extent))
            builder.store(quotient, remaining)
            for array in arrays:
                array.advance(builder, axis, coordinate)


def _any(builder: ir.IRBuilder, conditions: Sequence[Any]) -> Any:
    result: Any = ir.Constant(ir.IntType(1), 0)
    for condition in conditions:
        result = builder.or_(result, condition)
    return result
