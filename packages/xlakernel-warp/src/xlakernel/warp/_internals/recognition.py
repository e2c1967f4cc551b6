"""Checks that Warp's internal objects are as expected: an unknown form raises an error."""

from __future__ import annotations

import ctypes
import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Unrecognised(Exception):
    """An internal object of Warp differs from those of the versions that this package supports."""


def is_of_warp(error: Exception) -> bool:
    """Return True if code of Warp or xlakernel raised *error*; False for other code, such as a handler of a signal.

    If other code raises during a call of Warp, Warp raises again, with its own message but the original traceback.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0] if frames else ""
    return isinstance(error, Unrecognised) or package in ("warp", "xlakernel")


def recognising(what: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator for a function that reads an internal object, *what*; its errors become `Unrecognised`."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def read(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            try:
                return function(*args, **options)
            except (AttributeError, TypeError, ValueError, ctypes.ArgumentError) as error:
                raise Unrecognised(f"{what}: {error}") from error

        return read

    return decorate
