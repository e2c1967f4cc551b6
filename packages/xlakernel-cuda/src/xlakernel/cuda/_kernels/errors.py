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
    writes = _compiles_with_writable_inputs(function, signature)
    return native.compile_error(f"{name}({given})", error, _HINTS, writes_to_input=writes)


def _compiles_with_writable_inputs(function: Any, signature: Sequence[Any]) -> bool:
    """Return True if the kernel compiles once its inputs are writable."""
    writable = tuple(t.copy(readonly=False) if isinstance(t, types.Array) else t for t in signature)
    try:
        # Any architecture will do: only the types matter.
        cuda.compile(function, writable, device=False, abi="numba", output="ptx", cc=(9, 0))
    except Exception:  # noqa: BLE001  # the first error is reported
        return False
    return writable != tuple(signature)
