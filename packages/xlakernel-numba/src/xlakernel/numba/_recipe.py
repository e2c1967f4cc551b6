"""What Numba's dispatchers for the CPU are made of."""

from __future__ import annotations

from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from xlakernel.core.native import Compiler, implementations_in


def _parts(dispatcher: Any) -> tuple[Any, ...]:
    compiler = dispatcher._compiler.pipeline_class
    return type(dispatcher), dispatcher.py_func, dispatcher.locals, dict(dispatcher.targetoptions), compiler


def _dispatcher(kind: Any, function: Any, locals_: Any, options: Any, compiler: Any) -> Any:
    return kind(function, locals=locals_, targetoptions=options, pipeline_class=compiler)


COMPILER = Compiler(
    "xlakernel-numba",
    "xlakernel.numba._export",
    Dispatcher,
    _parts,
    _dispatcher,
    implementations_in(cpu_target.typing_context),
    global_compiler_lock,
)
