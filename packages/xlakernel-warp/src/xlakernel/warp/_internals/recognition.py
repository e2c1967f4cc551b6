"""Recognition of Warp's objects: an unfamiliar one is an error, never a guess."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Unrecognised(Exception):
    """An object of Warp's differs from those of the versions that this package supports."""


def recognising(what: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator for a function that reads *what* of Warp: if that fails, it raises `Unrecognised`."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def read(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            try:
                return function(*args, **options)
            except (AttributeError, TypeError, ValueError, ctypes.ArgumentError) as error:
                raise Unrecognised(f"{what}: {error}") from error

        return read

    return decorate
