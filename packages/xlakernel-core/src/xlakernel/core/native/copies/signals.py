"""Handling of signals where a kernel runs Python: before an ``objmode`` block, and in ``print``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import cgutils, types, typing
from numba.core.lowering import Lower
from numba.core.pythonapi import PythonAPI

from ..machine.frame import I32, call_symbol


@contextlib.contextmanager
def signals_before_python() -> Iterator[None]:
    """In this context, Numba handles pending signals before a kernel runs Python. Numba's compiler lock must be held.

    Before an ``objmode`` block, and in ``print``, Numba's code calls Python functions that load constants and convert
    variables. If a signal handler raises in these functions (Ctrl-C, a time limit), Numba loses the exception, raises
    another one, or uses the null pointer that they return.
    """
    lower_block, lower_print = Lower._lower_call_ObjModeDispatcher, Lower.lower_print

    def lower_block_after_signals(self: Any, *arguments: Any) -> Any:
        _handle_signals(self)
        return lower_block(self, *arguments)

    Lower._lower_call_ObjModeDispatcher, Lower.lower_print = lower_block_after_signals, _lower_print
    try:
        yield
    finally:
        Lower._lower_call_ObjModeDispatcher, Lower.lower_print = lower_block, lower_print


def _handle_signals(lower: Any) -> None:
    """Emit the handling of pending signals; the function returns an error if a handler raises."""
    lower.init_pyapi()
    gil = lower.pyapi.gil_ensure()
    raised = cgutils.is_not_null(lower.builder, call_symbol(lower.builder, "PyErr_CheckSignals", I32))
    lower.pyapi.gil_release(gil)
    _return_exception_if(lower, raised)


def _return_exception_if(lower: Any, raised: Any) -> None:
    with lower.builder.if_then(raised, likely=False):
        lower.call_conv.return_exc(lower.builder)


def _lower_print(lower: Any, inst: Any) -> None:
    """Emit a ``print``, as `Lower.lower_print` does; it ends where a conversion or a signal handler raises."""
    _handle_signals(lower)
    context, builder, pyapi = lower.context, lower.builder, lower.pyapi
    signature = lower.fndesc.calltypes[inst]
    function = context.typing_context.resolve_value_type(print)
    items = list(signature.args)
    for i, constant in inst.consts.items():
        if isinstance(constant, str):
            items[i] = types.literal(constant)
    values = lower.fold_call_args(function, signature, list(inst.args), inst.vararg, {})
    gil = pyapi.gil_ensure()
    with _checked_conversions():
        for i, (item, value) in enumerate(zip(items, values, strict=True)):
            with builder.if_then(cgutils.is_null(builder, pyapi.err_occurred()), likely=True):
                context.get_function("print_item", typing.signature(types.none, item))(builder, [value])
                pyapi.print_string(" " if i < len(items) - 1 else "\n")
    if not items:
        pyapi.print_string("\n")
    raised = cgutils.is_not_null(builder, pyapi.err_occurred())
    pyapi.gil_release(gil)
    _return_exception_if(lower, raised)


@contextlib.contextmanager
def _checked_conversions() -> Iterator[None]:
    """In this context, Numba emits tests for null pointers in ``print``, and keeps the exception of a conversion.

    Constants are read from the kernel's environment. Unpickling runs Python, where a signal handler can raise, and
    Numba does not test the result.
    """
    replaced = ("print_object", "err_write_unraisable", "serialize_object", "unserialize")
    before = {name: getattr(PythonAPI, name) for name in replaced}

    def print_object(self: Any, obj: Any) -> None:
        builder = self.builder
        # A tuple is made even if the conversion of an item raises.
        converted = builder.and_(cgutils.is_not_null(builder, obj), cgutils.is_null(builder, self.err_occurred()))
        with builder.if_then(converted, likely=True):
            text = self.object_str(obj)
            with builder.if_then(cgutils.is_not_null(builder, text), likely=True):
                encoded = self.string_as_string(text)
                with builder.if_then(cgutils.is_not_null(builder, encoded), likely=True):  # null for lone surrogates
                    self.sys_write_stdout(self.context.insert_const_string(self.module, "%s"), encoded)
                self.decref(text)

    def keep(self: Any, obj: Any) -> None:
        """Emit nothing: the exception stays set."""

    def serialize_object(self: Any, obj: Any) -> Any:
        pickled = before["serialize_object"](self, obj)
        objects[pickled] = obj
        return pickled

    def unserialize(self: Any, pickled: Any) -> Any:
        environment = self.context.get_env_manager(self.builder)
        constant = environment.read_const(environment.add_const(objects[pickled]))
        self.incref(constant)
        return constant

    objects: dict[Any, Any] = {}  # by the LLVM value of the pickled object
    instead = (print_object, keep, serialize_object, unserialize)
    try:
        for name, function in zip(replaced, instead, strict=True):
            setattr(PythonAPI, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(PythonAPI, name, function)
