"""Errors for kernels that Numba cannot compile: the cause and the advice first, then Numba's own message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from numba.core.errors import NumbaError
from numba.core.types import Array

from ..errors import CompileError, ReadOnlyInputError
from ..interrupts import is_raised_by_handler

#: (pattern in Numba's message, advice) pairs.
Hints = Sequence[tuple[str, str]]

_HINTS = (
    (
        r"0d, C\) with \d+ indices|0d, C\), int64",
        "A 0-d array is read with x[()] and written with out[()] = value.",
    ),
    (
        r"getitem\)?>?\((?:float|int|uint|bool|complex)\w*, Tuple\(\)\)",
        "A number passed by keyword is a scalar, which is read by its name alone: pass it by position to read x[()].",
    ),
)


def is_of_numba(error: Exception) -> bool:
    """Return True if *error* comes from Numba's compiler, or from user code that the compiler calls (an overload).

    Other exceptions come from the system or from a signal handler.
    """
    return isinstance(error, NumbaError) or not (
        isinstance(error, OSError | MemoryError) or is_raised_by_handler(error)
    )


def compile_error(
    name: str, types: Mapping[str, Any], error: Exception, hints: Hints, compile_: Callable[[Sequence[Any]], Any]
) -> CompileError:
    """Return the error for a kernel that Numba cannot compile.

    Args:
      name: the kernel's name.
      types: the Numba types of its parameters.
      error: Numba's exception, for which `is_of_numba` is true.
      hints: advice for some errors.
      compile_: compiles the kernel for the given types of its parameters.

    Raises:
      Exception: *error* itself, if it is not Numba's and a second compilation succeeds. For example, another thread may
        have raised it in this thread.
    """
    if not isinstance(error, NumbaError) and _compiles(types.values(), compile_):
        raise error
    kernel = f"{name}({', '.join(f'{parameter}: {type_}' for parameter, type_ in types.items())})"
    message = _numba_message(error, (*_HINTS, *hints))
    writable = [type_.copy(readonly=False) if isinstance(type_, Array) else type_ for type_ in types.values()]
    if _compiles(writable, compile_):
        return ReadOnlyInputError(
            f"{kernel}: writes to an input{_place(str(error))}. Inputs are read-only, because JAX arrays never change. "
            "Write to an output instead, or give the input's memory to an output with input_output_aliases={input: "
            f"output}}. A helper that declares its signature must take read-only arrays.{message}"
        )
    return CompileError(f"{kernel}: Numba cannot compile the kernel{_reason(error)}.{message}")


def _compiles(types: Iterable[Any], compile_: Callable[[Sequence[Any]], Any]) -> bool:
    """Return True if the kernel compiles for these types."""
    try:
        compile_(list(types))
    except Exception as error:
        if not is_of_numba(error):
            raise
        return False
    return True


def _numba_message(error: Exception, hints: Hints) -> str:
    """Return the advice for Numba's message, if there is any, and then the message."""
    text = str(error)
    hint = next((found.expand(advice) for pattern, advice in hints if (found := re.search(pattern, text))), "")
    failed = f"Numba failed with {type(error).__name__}: {text}"
    said = f"Numba says:\n{text}" if isinstance(error, NumbaError) else failed
    return f"{' ' if hint else ''}{hint} {said}"


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
    """Return the first file and line that Numba's message names: a place in the kernel or in a helper."""
    found = re.search(r"\bat (\S[^\n]*) \((\d+)\)", text) or re.search(r'File "([^"]+)", line (\d+)', text)
    return f" ({found[1]}:{found[2]})" if found else ""
