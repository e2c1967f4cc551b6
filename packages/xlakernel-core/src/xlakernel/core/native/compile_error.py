"""What Numba says of a kernel that it cannot compile, as our errors: ours first, then all that Numba says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from numba.core.errors import NumbaError

from ..errors import CompileError, ReadOnlyInputError

#: (pattern in what Numba says, what to do about it) pairs.
Hints = Sequence[tuple[str, str]]

_ZERO_D = (
    r"0d, C\) with \d+ indices|0d, C\), int64",
    "A 0-d array is read with x[()] and written with out[()] = value.",
)


def compile_error(kernel: str, error: Exception, hints: Hints, *, writes_to_input: bool) -> CompileError:
    """Return what to raise where Numba cannot compile a kernel.

    Args:
      kernel: its name and the types of its parameters.
      error: what Numba raised.
      hints: what to do about some errors.
      writes_to_input: whether the kernel compiles once its inputs are writable.
    """
    said = _numba_says(error, (_ZERO_D, *hints))
    if writes_to_input:
        return ReadOnlyInputError(
            f"{kernel}: writes to an input{_place(str(error))}. Inputs are read-only, because JAX arrays never change. "
            "Write to an output instead, or make the input's memory an output's with input_output_aliases={input: "
            f"output}}. A helper that declares its signature must take read-only arrays.{said}"
        )
    return CompileError(f"{kernel}: Numba cannot compile the kernel{_reason(error)}.{said}")


def _numba_says(error: Exception, hints: Hints) -> str:
    """Return Numba's message, with what to do where that is known."""
    if not isinstance(error, NumbaError):
        return f" Numba failed with {type(error).__name__}: {error}"
    text = str(error)
    hint = next((found.expand(advice) for pattern, advice in hints if (found := re.search(pattern, text))), "")
    return f"{' ' if hint else ''}{hint} Numba says:\n{text}"


def _reason(error: Exception) -> str:
    """Return the line of Numba's message that says what is wrong, and where; Numba puts the pass before it."""
    if not isinstance(error, NumbaError):
        return ""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in ")]
    if not lines:
        return ""
    goes_on = lines[0].endswith(":") and len(lines) > 1  # "No implementation of function ... found for signature:"
    first = " ".join(lines[: 1 + goes_on])
    return f": {first.rstrip('.')}{_place(text)}"


def _place(text: str) -> str:
    """Return the file and line that Numba names first, the kernel's or a helper's."""
    found = re.search(r"\bat (\S[^\n]*) \((\d+)\)", text) or re.search(r'File "([^"]+)", line (\d+)', text)
    return f" ({found[1]}:{found[2]})" if found else ""
