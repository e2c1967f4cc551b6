"""Description of Numba's CPU compiler, and of the kinds of helpers that kernels call, for `xlakernel.core`."""

from __future__ import annotations

from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc
from numba.stencils.stencil import StencilFunc

from xlakernel.core.backend.native import (
    HANDLER_VERSION,
    Compiler,
    Declarations,
    FunctionKind,
    declare,
    declared_signatures,
    dispatcher_parts,
    make_dispatcher,
)

from ._entry import without_entry


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


def _ufunc_parts(ufunc: Any) -> tuple[Any, ...]:
    identity = "reorderable" if ufunc.identity is None and ufunc.reorderable else ufunc.identity
    return ufunc._dispatcher.py_func, identity, dict(ufunc.targetoptions)


def _make_ufunc(function: Any, identity: Any, options: Any) -> Any:
    return DUFunc(function, identity=identity, targetoptions=options)


def _ufunc_signatures(ufunc: Any) -> list[Any] | None:
    return [found.signature for found in ufunc._dispatcher.overloads.values()] if ufunc._frozen else None


def _gufunc_parts(gufunc: Any) -> tuple[Any, ...]:
    builder = gufunc.gufunc_builder
    options = {
        "identity": gufunc._identity,
        "is_dynamic": gufunc.is_dynamic,
        "targetoptions": dict(builder.targetoptions),
        "writable_args": builder.writable_args,
    }
    return builder.py_func, builder.signature, options


def _make_gufunc(function: Any, signature: Any, options: Any) -> Any:
    return GUFunc(function, signature, **options)


def _gufunc_signatures(gufunc: Any) -> list[Any] | None:
    return list(gufunc.gufunc_builder._sigs) if gufunc._frozen else None


def _declare_ufunc(made: Any, signatures: list[Any] | None) -> Any:
    if signatures is not None:
        for signature in signatures:
            made.add(signature)
        made.build_ufunc()
        made.disable_compile()
    return made


def _cfunc_parts(callback: Any) -> tuple[Any, ...]:
    compiler, signature = callback._compiler, callback._sig
    types = signature.args, signature.return_type
    return callback._pyfunc, types, compiler.locals, dict(compiler.targetoptions), compiler.pipeline_class


def _make_cfunc(function: Any, signature: Any, locals_: Any, options: Any, compiler: Any) -> Any:
    return CFunc(function, signature, locals=locals_, options=options, pipeline_class=compiler)


def _compile_cfunc(made: Any, signatures: None) -> Any:
    made.compile()
    return made


def _stencil_parts(stencil: Any) -> tuple[Any, ...]:
    return stencil.kernel_ir.func_id.func, stencil.mode, dict(stencil.options)


def _make_stencil(function: Any, mode: Any, options: Any) -> Any:
    return numba.stencil(mode, **options)(function)


_NJIT = FunctionKind(Dispatcher, dispatcher_parts, make_dispatcher, declared_signatures, declare)
_HELPERS = (
    _NJIT,
    FunctionKind(DUFunc, _ufunc_parts, _make_ufunc, _ufunc_signatures, _declare_ufunc),
    FunctionKind(GUFunc, _gufunc_parts, _make_gufunc, _gufunc_signatures, _declare_ufunc),
    FunctionKind(CFunc, _cfunc_parts, _make_cfunc, declare=_compile_cfunc),
    FunctionKind(StencilFunc, _stencil_parts, _make_stencil, filled=True),  # numba.stencil reads globals at once
)

COMPILER = Compiler(
    "xlakernel-numba",
    "xlakernel.numba._export",
    _NJIT,
    _HELPERS,
    lambda: Declarations(cpu_target),
    global_compiler_lock._lock,
    CPUContext,
    environment,
    without_entry=without_entry,
)
