"""Compilation of kernels whose parallel loops run on XLA's pool and report exceptions.

Numba calls each loop through a wrapper that takes and releases the GIL, and its body through a wrapper that drops
exceptions (numba/numba issue 2811). Both wrappers are replaced while a kernel is compiled for a handler: the loop is
then called through `loops` directly, and its body passes the exception to `loops.RECORD`. This applies only to
dispatchers that handlers alone call (`copies.functions.is_own`).

LLVM resolves the functions of `loops` by symbols, also in code that is read from disk. `loops.install` must therefore
have run before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, event
from numba.core.compiler_lock import global_compiler_lock
from numba.np.ufunc import parallel, wrappers

from ..copies.functions import is_own
from ..machine.frame import I32, I64, POINTER, VOID, call_symbol, i64
from ..machine.status import emit_exception
from . import loops


@contextmanager
def on_xla_threads() -> Iterator[None]:
    """Make Numba compile parallel loops for XLA's threads in this context, in functions that only handlers call."""
    active: list[Any] = []  # the dispatchers being compiled, innermost last
    original_body, original_kernel = wrappers._GufuncWrapper.gen_loop_body, parallel.build_gufunc_kernel

    class Compilations(event.Listener):  # type: ignore[misc]  # Numba has no stubs
        def on_start(self, event: Any) -> None:
            active.append(event.data["dispatcher"])

        def on_end(self, event: Any) -> None:
            active.pop()

    def is_ours() -> bool:
        return bool(active) and is_own(active[-1])

    def gen_loop_body(self: Any, *args: Any) -> Any:
        return (_gen_recording_body if is_ours() else original_body)(self, *args)

    def build_gufunc_kernel(*args: Any) -> Any:
        return (_build_kernel if is_ours() else original_kernel)(*args)

    with global_compiler_lock, event.install_listener("numba:compile", Compilations()):
        loops.install()
        wrappers._GufuncWrapper.gen_loop_body, parallel.build_gufunc_kernel = gen_loop_body, build_gufunc_kernel
        try:
            yield
        finally:
            wrappers._GufuncWrapper.gen_loop_body, parallel.build_gufunc_kernel = original_body, original_kernel


def _build_kernel(library: Any, context: Any, info: Any, signature: Any, dimensions: int) -> Any:
    """Build the call of a loop's threads, as Numba's ``build_gufunc_kernel`` does, but without the GIL.

    Numba does not use the parameter *data* of a loop. Here *data* is the `loops.MEMORY` of the loop.
    """
    kernel_library = context.codegen().create_library("xlakernel_loop")
    module = kernel_library.create_ir_module("xlakernel_loop")
    body_type = ir.FunctionType(VOID, [POINTER.as_pointer(), I64.as_pointer(), I64.as_pointer(), POINTER])
    function = ir.Function(module, body_type, f".kernel.{id(info.env)}_{info.name}")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    memory = cgutils.add_global_variable(module, loops.MEMORY, f".memory.{info.name}")
    memory.linkage, memory.initializer = "internal", ir.Constant(loops.MEMORY, None)
    body = cgutils.get_or_insert_function(module, body_type, info.name)
    run = cgutils.get_or_insert_function(module, loops.PARALLEL_FOR, "numba_parallel_for")
    given = (body, *function.args[:3], memory)
    counts = (dimensions, len(signature.args), 0)
    builder.call(run, [*(builder.bitcast(value, POINTER) for value in given), *map(i64, counts)])
    builder.ret_void()
    kernel_library.add_linking_library(info.library)
    kernel_library.add_ir_module(module)
    kernel_library.add_linking_library(library)
    return wrappers._wrapper_info(library=kernel_library, name=function.name, env=info.env)


def _gen_recording_body(wrapper: Any, builder: ir.IRBuilder, python: Any, function: Any, args: Any) -> Any:
    signature, convention = wrapper.signature, wrapper.context.call_conv
    status, _ = convention.call_function(builder, function, signature.return_type, signature.args, args)
    with builder.if_then(status.is_error, likely=False):
        entered = call_symbol(builder, loops.ENTER, I32)
        with builder.if_then(builder.icmp_signed("!=", entered, ir.Constant(I32, 0))):
            gil = python.gil_ensure()
            exception = emit_exception(wrapper.context, builder, python, status)
            call_symbol(builder, loops.RECORD, VOID, exception)
            python.decref(exception)  # Py_DecRef, which takes NULL
            python.gil_release(gil)
            call_symbol(builder, loops.LEAVE, VOID)
    return status.code, status.is_error
