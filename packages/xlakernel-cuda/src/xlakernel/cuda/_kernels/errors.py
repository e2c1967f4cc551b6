"""Conversion of Numba CUDA's compile errors to xlakernel's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from numba import cuda
from numba.cuda import types

from xlakernel.core.backend import native
from xlakernel.core.errors import CompileError

_HINTS = (
    (r"Untyped global name '(\w+)'.*<class 'function'>", r"Decorate \1 with cuda.jit(device=True)."),
    (r"Untyped global name '(\w+)'.*<class 'xlakernel", r"\1 is a wrapped kernel, which only Python can call."),
)


def compile_error(name: str, function: Any, signature: Sequence[Any], error: Exception) -> CompileError:
    """Return the exception to raise when Numba fails to compile the kernel *function* for *signature*."""
    parameters = inspect.signature(function).parameters
    given = ", ".join(f"{parameter}: {type_}" for parameter, type_ in zip(parameters, signature, strict=True))
    writable = tuple(t.copy(readonly=False) if isinstance(t, types.Array) else t for t in signature)
    # An error that does not come again, such as the exception of a signal handler, is none of the kernel.
    writes = _compiles(function, writable) and not _compiles(function, signature)
    return native.compile_error(f"{name}({given})", error, _HINTS, writes_to_input=writes)


def _compiles(function: Any, signature: Sequence[Any]) -> bool:
    try:
        # Any architecture will do: only the types matter.
        cuda.compile(function, tuple(signature), device=False, abi="numba", output="ptx", cc=(9, 0))
    except Exception:  # noqa: BLE001  # the first error is reported
        return False
    return True
