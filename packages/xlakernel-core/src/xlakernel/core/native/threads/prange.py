"""Compiling kernels whose parallel loops run on XLA's pool and say what they raised.

Numba calls each loop through a wrapper that takes the GIL, to release it again, and its body through another one that
drops exceptions (numba/numba issue 2811). Both are replaced while a kernel of ours is compiled: the first one goes
straight to the loop's threads (`loops`), and the second one hands the exception to `loops.RECORD`, which gives it to
the call that the thread works for. It is for the dispatchers that only our handlers call (`own_copies`).

LLVM finds the functions behind this by symbols, and the code that is kept on disk refers to them: `loops.install` must
have run before such code is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, event
from numba.core.compiler_lock import global_compiler_lock
from numba.np.ufunc import parallel, wrappers

from ..machine.frame import I32, I64, POINTER, i64
from ..machine.status import emit_exception
from ..own_copies import is_own
from . import loops


@contextmanager
def on_xla_threads() -> Iterator[None]:
    """Compile the parallel loops of functions that only handlers call for XLA's threads; report what they raise."""
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
    """Build what calls a loop's threads, as Numba's ``build_gufunc_kernel`` does but for the GIL.

    In place of the unused *data* it hands over what is remembered of the loop.
    """
    kernel_library = context.codegen().create_library("xlakernel_loop")
    module = kernel_library.create_ir_module("xlakernel_loop")
    body_type = ir.FunctionType(ir.VoidType(), [POINTER.as_pointer(), I64.as_pointer(), I64.as_pointer(), POINTER])
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
        entered = _call(builder, loops.ENTER, I32)
        with builder.if_then(builder.icmp_signed("!=", entered, ir.Constant(I32, 0))):
            gil = python.gil_ensure()
            exception = emit_exception(wrapper.context, builder, python, status)
            _call(builder, loops.RECORD, ir.VoidType(), exception)
            python.decref(exception)  # Py_DecRef, which takes NULL
            python.gil_release(gil)
            _call(builder, loops.LEAVE, ir.VoidType())
    return status.code, status.is_error


def _call(builder: ir.IRBuilder, symbol: str, returns: Any, *args: Any) -> Any:
    kind = ir.FunctionType(returns, [argument.type for argument in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, symbol), args)
