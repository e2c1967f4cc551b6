"""The arguments of `check_kernel`, checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ._subject import Array, as_arrays
from ._table import CHECKS, NAMES


def expect(is_allowed: bool, name: str, value: Any, allowed: str) -> None:
    """Raise `ArgumentError` with the value of the argument *name* unless it is allowed."""
    if not is_allowed:
        raise ArgumentError(f"check_kernel: {name} is {_shown(value)}; allowed: {allowed}")


def check_functions(fn: Any, reference: Any, arguments: int, static: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` unless *fn* and *reference* can be called, *fn* without arguments if there are none."""
    lambdas = "Give a wrapped kernel, or an operator in a lambda: check_kernel(lambda x: op(x, outs=...), x)."
    expect(callable(fn), "fn", fn, f"a function of arrays. {lambdas}")
    expect(
        reference is None or callable(reference),
        "reference",
        reference,
        "a function that computes what fn should. Write reference=lambda *args: the_result, or leave it out.",
    )
    if not arguments and (needed := [name for name in _needed(fn) if name not in static]):
        raise ArgumentError(
            f"check_kernel: there are no arguments to call {getattr(fn, '__name__', 'fn')} on, which needs "
            f"{', '.join(needed)}. Give arrays after the function: check_kernel(fn, x, y)."
        )


def check_tolerances(**tolerances: Any) -> None:
    """Raise `ArgumentError` unless all are None or finite numbers that are not negative."""
    for name, value in tolerances.items():
        is_number = hasattr(value, "__float__") and np.ndim(value) == 0
        expect(
            value is None or (is_number and math.isfinite(value) and value >= 0),
            name,
            value,
            "a finite number from 0 up, or None for what the dtype allows.",
        )


def static_of(static: Any) -> dict[str, Any]:
    """Return *static* as keyword arguments; raise `ArgumentError` unless it maps names to values."""
    static = {} if static is None else static
    is_mapping = isinstance(static, Mapping) and all(isinstance(name, str) for name in static)
    expect(is_mapping, "static", static, 'a mapping from keyword arguments to values. Write static={"name": value}.')
    return dict(static)


def reasons_of(skip: Any, kernel: str) -> dict[str, str]:
    """Return the reason of each check that is to be skipped.

    Raises:
      ArgumentError: if *skip* is no mapping, has a name that is no check, or an empty reason.
    """
    skip = {} if skip is None else skip
    allowed = 'a mapping from checks to reasons. Write skip={"grad": "the reason"}.'
    expect(isinstance(skip, Mapping), "skip", skip, allowed)
    for name, reason in skip.items():
        if name not in NAMES:
            raise ArgumentError(f"check_kernel: skip has {name!r}; allowed: {', '.join(NAMES)}.")
        if not isinstance(reason, str) or not reason.strip():
            raise ArgumentError(
                f"check_kernel: skip[{name!r}] is {reason!r}; say in a sentence why {kernel} is not checked for that."
            )
    named = {check.name: skip.get(check.name, skip.get(check.family)) for check in CHECKS.values()}
    return {name: reason for name, reason in named.items() if reason is not None}


def samples_of(given: Any, inputs: Sequence[Array], what: str) -> tuple[tuple[Array, ...], ...]:
    """Return argument lists as arrays that fit *inputs*: in shape for ``"samples"``, in rank for ``"zero_size"``.

    Raises:
      ArgumentError: if it is no sequence of argument lists, or one does not fit.
    """
    shown = "jnp.zeros(0)" if what == "zero_size" else "x2"
    allowed = f"a sequence of argument lists. Write {what}=[({shown},)]."
    expect(isinstance(given, (list, tuple)), what, given, allowed)
    for number, sample in enumerate(given):
        expect(isinstance(sample, (list, tuple)), f"{what}[{number}]", sample, allowed)
    return tuple(_fitting(sample, inputs, what, number) for number, sample in enumerate(given))


def _fitting(sample: Sequence[Any], inputs: Sequence[Array], what: str, number: int) -> tuple[Array, ...]:
    arrays = as_arrays(sample)
    exact = what == "samples"
    same = len(arrays) == len(inputs) and all(
        a.dtype == b.dtype and (a.shape == b.shape if exact else a.ndim == b.ndim)
        for a, b in zip(arrays, inputs, strict=True)
    )
    if not same:
        raise ArgumentError(
            f"check_kernel: {what}[{number}] is {_shapes(arrays)}; expected the {'shapes' if exact else 'ranks'} and "
            f"dtypes of the arguments, {_shapes(inputs)}."
        )
    return arrays


def _shapes(arrays: Sequence[Array]) -> str:
    return ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in arrays) or "no arrays"


def _shown(value: Any) -> str:
    """Return *value* for a message: an array by its shape, anything else as it prints, unless that is long."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array, {value.dtype}{list(value.shape)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the positional parameters without a default; none if the function has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]
