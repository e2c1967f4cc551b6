"""The description of Numba's CPU compiler and of the helpers that kernels call."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc
from numba.stencils.stencil import StencilFunc

from xlakernel.core.backend.native import (
    HANDLER_VERSION,
    Compiler,
    Declarations,
    Helper,
    declare,
    declared_signatures,
    dispatcher_parts,
    make_dispatcher,
    reduce_dispatcher,
)

_Options = Mapping[str, Any]


def environment() -> dict[str, object]:
    """Return the versions and settings that determine the machine code of all kernels."""
    config = numba.config
    return {
        "handler": HANDLER_VERSION,
        "numba": numba.__version__,
        "numpy": np.__version__,
        "llvmlite": llvmlite.__version__,
        "boundscheck": config.BOUNDSCHECK,
        "opt": str(config.OPT),
        "vectorize": (config.LOOP_VECTORIZE, config.SLP_VECTORIZE),
    }


def _njit(original: Any, function: types.FunctionType, options: _Options) -> Any:
    kind, _, locals_, own_options, compiler = dispatcher_parts(original)
    made = make_dispatcher(kind, function, locals_, {**own_options, **options}, compiler)
    return made, functools.partial(declare, signatures=declared_signatures(original))


def _vectorize(original: Any, function: types.FunctionType, options: _Options) -> Any:
    identity = "reorderable" if original.identity is None and original.reorderable else original.identity
    made = DUFunc(function, identity=identity, targetoptions=dict(original.targetoptions))
    return made, _finish_ufunc(original, list(original._dispatcher.overloads))


def _guvectorize(original: Any, function: types.FunctionType, options: _Options) -> Any:
    builder = original.gufunc_builder
    made = GUFunc(
        function,
        builder.signature,
        identity=original._identity,
        is_dynamic=original.is_dynamic,
        targetoptions=dict(builder.targetoptions),
        writable_args=builder.writable_args,
    )
    return made, _finish_ufunc(original, list(builder._sigs))


def _finish_ufunc(original: Any, signatures: list[Any]) -> Any:
    if not original._frozen:
        return None

    def finish(made: Any) -> None:
        for signature in signatures:
            made.add(signature)
        made.build_ufunc()
        made.disable_compile()

    return finish


def _cfunc(original: Any, function: types.FunctionType, options: _Options) -> Any:
    compiler, signature = original._compiler, original._sig
    arguments = (signature.args, signature.return_type), compiler.locals, dict(compiler.targetoptions)
    return _make_cfunc(function, *arguments, compiler.pipeline_class), lambda made: made.compile()


def _stencil(original: Any, function: types.FunctionType, options: _Options) -> Any:
    return _make_stencil(function, original.mode, original.options), None


def _make_cfunc(function: Any, signature: Any, locals_: Any, options: Any, compiler: Any) -> Any:
    return CFunc(function, signature, locals=locals_, options=options, pipeline_class=compiler)


def _reduce_cfunc(one: Any) -> tuple[Any, ...]:
    compiler, signature = one._compiler, (one._sig.args, one._sig.return_type)
    return _make_cfunc, (one._pyfunc, signature, compiler.locals, compiler.targetoptions, compiler.pipeline_class)


def _make_stencil(function: Any, mode: Any, options: Any) -> Any:
    return numba.stencil(mode, **options)(function)


def _reduce_stencil(one: Any) -> tuple[Any, ...]:
    return _make_stencil, (one.kernel_ir.func_id.func, one.mode, one.options)


_HELPERS = (
    Helper(Dispatcher, lambda one: one.py_func, _njit, reduce=reduce_dispatcher),
    Helper(DUFunc, lambda one: one._dispatcher.py_func, _vectorize),
    Helper(GUFunc, lambda one: one.gufunc_builder.py_func, _guvectorize),
    Helper(CFunc, lambda one: one._pyfunc, _cfunc, reduce=_reduce_cfunc),
    # The constructor reads the globals.
    Helper(StencilFunc, lambda one: one.kernel_ir.func_id.func, _stencil, filled=True, reduce=_reduce_stencil),
)

COMPILER = Compiler(
    "xlakernel-numba",
    "xlakernel.numba._export",
    Dispatcher,
    dispatcher_parts,
    make_dispatcher,
    lambda: Declarations(cpu_target),
    global_compiler_lock,
    _HELPERS,
    environment,
)
