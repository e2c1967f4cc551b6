"""What Numba CUDA says when it cannot compile a kernel, as our errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from numba import cuda
from numba.core.errors import NumbaError
from numba.cuda import types

from xlakernel.core.errors import CompileError, ReadOnlyInputError

_HINTS = (
    (r"0d, C\) with \d+ indices|0d, C\), int64", "A 0-d array is read with x[()] and written with out[()] = value."),
    (r"Untyped global name '(\w+)'.*<class 'function'>", r"Decorate \1 with cuda.jit(device=True)."),
    (r"Untyped global name '(\w+)'.*<class 'xlakernel", r"\1 is a wrapped kernel, which only Python can call."),
)


def compile_error(name: str, dispatcher: Any, signature: Sequence[Any], error: Exception) -> CompileError:
    """Return what to raise where *dispatcher* cannot be compiled for *signature*."""
    parameters = inspect.signature(dispatcher.py_func).parameters
    given = ", ".join(f"{parameter}: {type_}" for parameter, type_ in zip(parameters, signature, strict=True))
    if _compiles_with_writable_inputs(dispatcher, signature):
        return ReadOnlyInputError(
            f"{name}({given}): writes to an input. Inputs are read-only, because JAX arrays never change. Write to an "
            "output instead, or make the input's memory an output's with input_output_aliases={input: output}. A "
            f"helper that declares its signature must take read-only arrays.{_numba_says(error)}"
        )
    return CompileError(f"{name}({given}): Numba cannot compile the kernel.{_numba_says(error)}")


def _compiles_with_writable_inputs(dispatcher: Any, signature: Sequence[Any]) -> bool:
    """Whether that the inputs are read-only is all that is wrong with the kernel."""
    writable = tuple(t.copy(readonly=False) if isinstance(t, types.Array) else t for t in signature)
    try:
        # For any architecture: whether it compiles is a matter of its types.
        cuda.compile(dispatcher.py_func, writable, device=False, abi="numba", output="ptx", cc=(9, 0))
    except Exception:  # noqa: BLE001  # whatever it is, the first error tells
        return False
    return writable != tuple(signature)


def _numba_says(error: Exception) -> str:
    """Return Numba's message, with what to do where that is known."""
    if not isinstance(error, NumbaError):
        return f" Numba failed with {type(error).__name__}: {error}"
    text = str(error)
    hint = next((found.expand(advice) for pattern, advice in _HINTS if (found := re.search(pattern, text))), "")
    return f"{' ' if hint else ''}{hint} Numba says:\n{text}"
