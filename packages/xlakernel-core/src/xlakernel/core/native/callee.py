"""The code that a handler calls: a function compiled by Numba, or another entry point of a backend."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target

from ..ffi import abi
from .arguments import Argument, Slices
from .machine import gate
from .machine.frame import Frame, load, store
from .machine.machine_code import pointer_to
from .machine.status import emit_error, emit_exception_is_set
from .machine.upcall import emit_signals
from .threads import loops


class Callee(abc.ABC):
    """The code of a kernel, and the emission of its call."""

    #: The owner of the code, which lives as long as the handler.
    keep_alive: Any = None
    #: The end of debug mode's message for a write out of bounds.
    out_of_bounds = "at an index that is not checked."

    @property
    def context(self) -> Any:
        """The Numba context that compiles the handler."""
        return cpu_target.target_context

    @abc.abstractmethod
    def prepare(self, builder: ir.IRBuilder, frame: Frame, arrays: Mapping[Argument, Slices]) -> Any:
        """Emit the code that all slices of a batch share; the result is passed to `call`."""

    @abc.abstractmethod
    def call(self, builder: ir.IRBuilder, frame: Frame, prepared: Any) -> None:
        """Emit the call for the current slice of the arrays.

        Args:
          builder: where to emit. The emitted function returns an ``XLA_FFI_Error`` if the kernel fails.
          frame: the call frame.
          prepared: the result of `prepare`.
        """


class NumbaFunction(Callee):
    """A function that Numba compiled.

    Args:
      compiled: Numba's compile result.
      arguments: the buffers of the function's parameters, in order.
      kernel: the kernel's name, for messages.
      place: file and line of the kernel's definition, for messages.
      parallel: whether the function has parallel loops compiled for XLA's threads (`threads.prange`).
    """

    out_of_bounds = (
        "at an index that is not checked, as in a helper with a declared signature, in a ufunc or through a pointer."
    )

    def __init__(
        self, compiled: Any, arguments: Sequence[Argument], kernel: str, place: str, *, parallel: bool = False
    ) -> None:
        self.compiled = self.keep_alive = compiled
        # Numba's memory management (NRT) is enabled: the context of a function read from disk lacks it.
        self._context = compiled.target_context.subtarget(enable_nrt=True)
        self.arguments = arguments
        self.kernel = kernel
        self.place = place
        self.parallel = parallel

    @property
    def context(self) -> Any:
        """The context that compiled the function."""
        return self._context

    def prepare(self, builder: ir.IRBuilder, frame: Frame, arrays: Mapping[Argument, Slices]) -> Any:
        """Return the arrays, which are all that `call` needs."""
        return arrays

    def call(self, builder: ir.IRBuilder, frame: Frame, prepared: Any) -> None:
        """Emit a call by address in Numba's calling convention."""
        values = {argument: array.value(self.context, builder) for argument, array in prepared.items()}
        takes_gil = _takes_gil(self.compiled)
        if takes_gil:  # Numba's ``print`` crashes if a signal handler raises in it
            with gate.entered(builder, frame.api):
                error = emit_signals(builder, frame.api)
            with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
                builder.ret(error)
        in_gate = gate.entered(builder, frame.api) if takes_gil else nullcontext()
        with in_gate, self._region(builder, frame) as region:
            status, _ = self.context.call_conv.call_function(
                builder,
                self._function(builder),
                self.compiled.fndesc.restype,
                self.compiled.fndesc.argtypes,
                [values[argument] for argument in self.arguments],
            )
            failed = status.is_error
            if takes_gil:
                failed = builder.or_(failed, emit_exception_is_set(self.context, builder))
        if region is not None:
            error = load(builder, region, loops.REGION, "error")
            with builder.if_then(cgutils.is_not_null(builder, error), likely=False):
                builder.ret(error)
        with builder.if_then(failed, likely=False):
            builder.ret(emit_error(self.context, builder, status, frame.api, self.kernel, self.place))

    @contextmanager
    def _region(self, builder: ir.IRBuilder, frame: Frame) -> Iterator[Any]:
        """Set this thread's region, the state that parallel loops read (`loops`), and yield it; None without loops."""
        if not self.parallel:
            yield None
            return
        region = loops.new_region(builder)
        context = load(builder, frame.pointer, abi.CALL_FRAME, "ctx")
        texts = (self.context.insert_const_string(builder.module, text) for text in (self.kernel, self.place))
        for name, value in zip(("api", "ctx", "kernel", "place"), (frame.api, context, *texts), strict=True):
            store(builder, region, loops.REGION, name, value)
        exchange = pointer_to(builder, loops.exchange(), loops.EXCHANGE.as_pointer())
        before = builder.call(exchange, [region])
        yield region
        builder.call(exchange, [before])

    def _function(self, builder: ir.IRBuilder) -> Any:
        """Return a pointer to the function. Linking the function into the handler would take seven times as long."""
        description = self.compiled.fndesc
        address = self.compiled.library.get_pointer_to_function(description.llvm_func_name)
        kind = self.context.call_conv.get_function_type(description.restype, description.argtypes)
        return pointer_to(builder, address, kind.as_pointer())


def _takes_gil(compiled: Any) -> bool:
    """Return True if compiled code takes the GIL itself, as for ``print``; for exceptions the handler takes the GIL."""
    if hasattr(compiled, "takes_gil"):  # read from disk
        return bool(compiled.takes_gil)
    try:
        compiled.library._get_module_for_linking().get_function("numba_gil_ensure")
    except NameError:
        return False
    return True
