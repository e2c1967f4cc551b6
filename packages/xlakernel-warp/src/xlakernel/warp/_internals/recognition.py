"""Checks that Warp's internal objects are as expected: an unknown form raises an error."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Unrecognised(Exception):
    """An internal object of Warp differs from those of the versions that this package supports."""


def recognising(what: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator for a function that reads an internal object, *what*: if that fails, raise `Unrecognised`."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def read(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            try:
                return function(*args, **options)
            except (AttributeError, TypeError, ValueError, ctypes.ArgumentError) as error:
                raise Unrecognised(f"{what}: {error}") from error

        return read

    return decorate
