"""Wrappers that are called with a kernel or used as a decorator with options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

_Kernel = TypeVar("_Kernel", contravariant=True)
_Wrapped = TypeVar("_Wrapped", covariant=True)
_Options = ParamSpec("_Options")


class Wrapper(Protocol[_Kernel, _Options, _Wrapped]):
    """The type of a function that `as_decorator` returns, called with a kernel or with options alone."""

    @overload
    def __call__(self, kernel: _Kernel, /, *args: _Options.args, **options: _Options.kwargs) -> _Wrapped: ...
    @overload
    def __call__(self, /, *args: _Options.args, **options: _Options.kwargs) -> Callable[[_Kernel], _Wrapped]: ...


def as_decorator(
    wrap: Callable[Concatenate[_Kernel, _Options], _Wrapped],
) -> Wrapper[_Kernel, _Options, _Wrapped]:
    """Return a function that calls *wrap* if the first argument, a kernel, is given, and else returns a decorator."""
    call = cast("Callable[..., Any]", wrap)
    signature = inspect.signature(wrap)
    kernel = next(iter(signature.parameters))

    @functools.wraps(wrap)
    def either(*args: Any, **options: Any) -> Any:
        if args or kernel in options:
            return call(*args, **options)
        try:  # report wrong options at the line that gives them, not at the decorated kernel
            signature.bind(None, **options)
        except TypeError as error:
            raise TypeError(f"{wrap.__name__}(): {error}") from None
        return lambda kernel: call(kernel, **options)

    return cast("Wrapper[_Kernel, _Options, _Wrapped]", either)
