"""Build the XLA FFI handler of a compiled Numba function, as LLVM IR.

The handler is emitted directly: no type inference, no C compiler, 30 to 60 ms. It decodes the call frame, checks it
against the types that the kernel was compiled for, wraps the buffers as arrays, and calls the kernel by its address,
once for each slice of a batch. The interpreter is not involved, unless the kernel raises (`status`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock

from ..ffi import abi
from ..ffi.registry import Handler
from . import parallel
from .arguments import Argument, Slices, load_element
from .debug import HandlerObserver
from .frame import I32, I64, POINTER, Buffer, Frame, answer_handshake, create_error, i64, load
from .lock import held
from .prange import counter
from .status import emit_error, emit_recorded_error

#: Part of every name: raise it when the emitted code changes.
HANDLER_VERSION = 2


@global_compiler_lock
def build_handler(
    compiled: Any,
    arguments: Sequence[Argument],
    *,
    kernel: str,
    place: str,
    lock: int | None = None,
    record: str | None = None,
    debug: bool = False,
    ordered: bool = False,
    concurrent: bool = True,
) -> Handler:
    """Build the handler that calls *compiled*.

    Args:
      compiled: Numba's compile result for the kernel.
      arguments: where the kernel's parameters come from, in the kernel's order.
      kernel: the kernel's name, for messages.
      place: file and line of its definition, for messages.
      lock: address of a lock (`native.lock`) to hold during a call, for code that must not run twice at once.
      record: key under which the kernel's loops report their exceptions (`native.prange`). It takes a lock too: only
        then is a failure known to be this call's.
      debug: whether to check what the kernel does to its arrays (`native.debug`).
      ordered: whether the slices of a batch must run once each and in order.
      concurrent: whether they may run at the same time, on XLA's thread pool (`native.parallel`), where they need no
        order and no lock.

    Returns:
      The handler; its machine code and the kernel's live as long as it does.
    """
    observer = HandlerObserver(arguments, kernel, place, once=ordered) if debug else None
    pooled = concurrent and not ordered and lock is None and parallel.SUPPORTED
    return _HandlerBuilder(compiled, arguments, kernel, place, lock, record, observer, pooled).build()


_numbers = itertools.count()


class _HandlerBuilder:
    """Emits two functions: ``handler(frame)`` checks a call, ``run(frame, first, last)`` runs slices of its batch."""

    def __init__(
        self,
        compiled: Any,
        arguments: Sequence[Argument],
        kernel: str,
        place: str,
        lock: int | None,
        record: str | None,
        observer: HandlerObserver | None,
        pooled: bool,
    ) -> None:
        self.compiled = compiled
        self.arguments = arguments
        self.kernel = kernel
        self.place = place
        self.lock = lock
        self.record = record
        self.observer = observer
        self.pooled = pooled
        self.context = compiled.target_context
        self.symbol = f"xlakernel_handler_{next(_numbers)}"
        self.module = self.context.create_module(self.symbol)
        self.buffers = [argument for argument in arguments if argument.is_buffer]
        self.attributes = [argument for argument in arguments if not argument.is_buffer]

    def build(self) -> Handler:
        library = self.context.codegen().create_library(self.symbol)
        self._emit_handler(self._emit_run())
        library.add_ir_module(self.module)
        library.finalize()
        return Handler(library.get_pointer_to_function(self.symbol), (library, self.compiled, self.observer))

    def _function(self, name: str, parameters: Sequence[Any]) -> tuple[ir.Function, ir.IRBuilder]:
        function = ir.Function(self.module, ir.FunctionType(POINTER, parameters), name)
        # Most of a handler is straight loads: optimising for size halves the time to build it and costs no time to run.
        function.attributes.add("optsize")
        return function, ir.IRBuilder(function.append_basic_block("entry"))

    def _decode(self, frame: Frame) -> list[Buffer]:
        return [getattr(frame, argument.source)(argument.index) for argument in self.buffers]

    # The handler: the handshake, the checks, and one call of `run` for the whole batch.

    def _emit_handler(self, run: ir.Function) -> None:
        function, builder = self._function(self.symbol, [POINTER])
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
        function, builder = self._function(f"{self.symbol}_run_all", [POINTER, I64])
        function.linkage = "internal"
        builder.ret(self._call_run(builder, run, *function.args))
        return function

    def _emit_batch(self, builder: ir.IRBuilder, pointer: Any, run: ir.Function, total: Any) -> Any:
        """Run a batch of several slices, on XLA's thread pool if that pays; return the error."""
        memory = cgutils.add_global_variable(self.module, I64, f"{self.symbol}_memory")
        memory.linkage, memory.initializer = "internal", i64(0)
        run_batch = builder.inttoptr(i64(parallel.batch_runner()), parallel.RUN_BATCH.as_pointer())
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
            kind, dtype, _ = frame.attribute(attribute.index)
            other_kind = builder.icmp_signed("!=", kind, ir.Constant(I32, abi.ATTR_TYPE_SCALAR))
            self._reject(builder, frame, other_kind, f"attribute {attribute.index} is not a scalar")
            other_dtype = builder.icmp_signed("!=", dtype, ir.Constant(I32, abi.DATA_TYPES[attribute.dtype]))
            self._reject(builder, frame, other_dtype, f"attribute {attribute.index} is not {attribute.dtype}")

    def _emit_type_checks(self, builder: ir.IRBuilder, frame: Frame, buffers: list[Buffer], batch_rank: Any) -> None:
        wrong = [builder.icmp_signed("<", batch_rank, i64(0))]
        for argument, buffer in zip(self.buffers, buffers, strict=True):
            dtype = ir.Constant(I32, abi.DATA_TYPES[argument.dtype])
            wrong.append(builder.icmp_signed("!=", buffer.dtype, dtype))
            extra = builder.sub(buffer.rank, i64(argument.ndim))
            wrong.append(builder.icmp_signed("!=", extra, batch_rank))
        text = "the call's buffers differ in dtype or rank from those that the kernel was compiled for: "
        described = ", ".join(f"{a.source} {a.index} {a.dtype}[{a.ndim}d]" for a in self.buffers)
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
        function, builder = self._function(f"{self.symbol}_run", [POINTER, I64, I64])
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
        scalars = {argument: self._attribute_value(builder, frame, argument) for argument in self.attributes}
        callee = self._declare_kernel()
        with cgutils.for_range_slice(builder, first, last, i64(1), intp=I64) as (index, _):
            self._emit_offsets(builder, buffers, arrays, batch_rank, index)
            before = self._failures(builder) if self.record is not None else None
            values = dict(scalars)
            values.update((array.argument, array.value(self.context, builder)) for array in arrays)
            status, _ = self.context.call_conv.call_function(
                builder,
                callee,
                self.compiled.fndesc.restype,
                self.compiled.fndesc.argtypes,
                [values[argument] for argument in self.arguments],
            )
            with builder.if_then(status.is_error, likely=False):
                builder.ret(emit_error(self.context, builder, status, frame.api, self.kernel, self.place))
            if self.record is not None:
                with builder.if_then(builder.icmp_signed("!=", self._failures(builder), before), likely=False):
                    builder.ret(
                        emit_recorded_error(self.context, builder, frame.api, self.record, self.kernel, self.place)
                    )
        builder.ret(ir.Constant(POINTER, None))
        return function

    def _failures(self, builder: ir.IRBuilder) -> Any:
        """Load the count of exceptions that the kernel's loops have recorded."""
        assert self.record is not None
        address = i64(ctypes.addressof(counter(self.record)))
        return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "acquire", 8)

    def _declare_kernel(self) -> ir.Function:
        """Declare the kernel under a name of its address: linking its code instead takes seven times as long."""
        description = self.compiled.fndesc
        address = self.compiled.library.get_pointer_to_function(description.llvm_func_name)
        name = f"xlakernel_kernel_{address:x}"
        llvm.add_symbol(name, address)
        kind = self.context.call_conv.get_function_type(description.restype, description.argtypes)
        return ir.Function(self.module, kind, name)

    def _attribute_value(self, builder: ir.IRBuilder, frame: Frame, argument: Argument) -> Any:
        _, _, pointer = frame.attribute(argument.index)
        return load_element(self.context, builder, argument.type, pointer)

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
