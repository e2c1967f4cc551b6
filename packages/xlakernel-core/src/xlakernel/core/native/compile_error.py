"""Errors for kernels that Numba cannot compile: the cause and the advice first, then Numba's own message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from numba.core.errors import NumbaError

from ..errors import CompileError, ReadOnlyInputError

#: (pattern in Numba's message, advice) pairs.
Hints = Sequence[tuple[str, str]]

_ZERO_D = (
    r"0d, C\) with \d+ indices|0d, C\), int64",
    "A 0-d array is read with x[()] and written with out[()] = value.",
)


def compile_error(kernel: str, error: Exception, hints: Hints, *, writes_to_input: bool) -> CompileError:
    """Return the error for a kernel that Numba cannot compile.

    Args:
      kernel: its name and the types of its parameters.
      error: Numba's exception.
      hints: advice for some errors.
      writes_to_input: whether the kernel compiles if its inputs are writable.
    """
    message = _numba_message(error, (_ZERO_D, *hints))
    if writes_to_input:
        return ReadOnlyInputError(
            f"{kernel}: writes to an input{_place(str(error))}. Inputs are read-only, because JAX arrays never change. "
            "Write to an output instead, or give the input's memory to an output with input_output_aliases={input: "
            f"output}}. A helper that declares its signature must take read-only arrays.{message}"
        )
    return CompileError(f"{kernel}: Numba cannot compile the kernel{_reason(error)}.{message}")


def _numba_message(error: Exception, hints: Hints) -> str:
    """Return Numba's message, after the advice for it."""
    if not isinstance(error, NumbaError):
        return f" Numba failed with {type(error).__name__}: {error}"
    text = str(error)
    hint = next((found.expand(advice) for pattern, advice in hints if (found := re.search(pattern, text))), "")
    return f"{' ' if hint else ''}{hint} Numba says:\n{text}"


def _reason(error: Exception) -> str:
    """Return the cause and its place from Numba's message: the line after the name of the failed pass."""
    if not isinstance(error, NumbaError):
        return ""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in ")]
    if not lines:
        return ""
    continues = lines[0].endswith(":") and len(lines) > 1  # "No implementation of function ... found for signature:"
    first = " ".join(lines[: 1 + continues])
    return f": {first.rstrip('.')}{_place(text)}"


def _place(text: str) -> str:
    """Return the first file and line in Numba's message, those of the kernel or of a helper."""
    found = re.search(r"\bat (\S[^\n]*) \((\d+)\)", text) or re.search(r'File "([^"]+)", line (\d+)', text)
    return f" ({found[1]}:{found[2]})" if found else ""
