"""Conversion of Numba CUDA's compile errors to xlakernel's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from numba import cuda

from xlakernel.core.backend import native
from xlakernel.core.errors import CompileError

_HINTS = (
    (r"Untyped global name '(\w+)'.*<class 'function'>", r"Decorate \1 with cuda.jit(device=True)."),
    (r"Untyped global name '(\w+)'.*<class 'xlakernel", r"\1 is a wrapped kernel, which only Python can call."),
    (
        r"No launch config set",
        "Code that depends on the launch configuration (numba.cuda.launchconfig) is not supported, since a kernel is "
        "compiled once for all launches: give it the number of threads as a constant.",
    ),
)


def compile_error(name: str, function: Any, signature: Sequence[Any], error: Exception) -> CompileError:
    """Return the exception to raise when Numba fails to compile the kernel *function* for *signature*."""

    def compile_(types: Sequence[Any]) -> Any:
        # Any architecture will do: only the types matter.
        return cuda.compile(function, tuple(types), device=False, abi="numba", output="ptx", cc=(9, 0))

    given = dict(zip(inspect.signature(function).parameters, signature, strict=True))
    return native.compile_error(name, given, error, _HINTS, compile_)
