"""Quantities, arrays with a unit, as weights and operands.

Quantities of saiunit and brainunit are recognized by their attributes, and no library of units is imported. A quantity
has a ``mantissa``, an array, and a ``unit``. ``unit * unit`` is a unit, ``array * unit`` a quantity, and
``quantity.in_unit(unit)`` a conversion. Operators and compiled functions get the mantissas only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from xlakernel.core.backend import is_raised_by_handler
from xlakernel.core.errors import DtypeError, InputError

from .._immutable import ImmutablePytree

_Method = TypeVar("_Method", bound=Callable[..., Any])


def is_quantity(value: Any) -> bool:
    """Return True if *value* has a mantissa and a unit."""
    return not isinstance(value, jax.Array) and hasattr(value, "mantissa") and hasattr(value, "unit")


def split(value: Any) -> tuple[Any, Any]:
    """Return the mantissa and the unit of a quantity, or of a matrix with such weights; of others, *value* and None."""
    if isinstance(value, jax.Array):
        return value, None
    if isinstance(value, ImmutablePytree):
        return value._without_unit()
    return (value.mantissa, value.unit) if is_quantity(value) else (value, None)


def joined(value: Any, *units: Any) -> Any:
    """Return *value*, an array or a matrix, times the *units*; those that are None are left out."""
    unit = None
    for factor in units:
        if factor is not None:
            unit = factor if unit is None else unit * factor
    if unit is None:
        return value
    return value._with_unit(unit) if isinstance(value, ImmutablePytree) else value * unit


def linear(method: _Method) -> _Method:
    """Return *method*, which is linear in the weights of its matrix, for all matrices: results have their unit."""

    @functools.wraps(method)
    def keeping(matrix: Any, *args: Any, **keywords: Any) -> Any:
        if not hasattr(getattr(matrix, "data", None), "unit"):  # costs less than `split`
            return method(matrix, *args, **keywords)
        matrix, unit = split(matrix)
        return joined(method(matrix, *args, **keywords), unit)

    return cast(_Method, keeping)


def bilinear(method: _Method) -> _Method:
    """Return *method*, a product of its first two arguments, for quantities too: results have the product of units."""

    @functools.wraps(method)
    def multiplying(first: Any, second: Any, **keywords: Any) -> Any:
        (first, of_first), (second, of_second) = split(first), split(second)
        return joined(method(first, second, **keywords), of_first, of_second)

    return cast(_Method, multiplying)


def unitless(method: _Method) -> _Method:
    """Return *method*, whose results are positions or counts, for matrices whose weights have a unit too."""

    @functools.wraps(method)
    def without(matrix: Any, *args: Any, **keywords: Any) -> Any:
        return method(split(matrix)[0], *args, **keywords)

    return cast(_Method, without)


def in_unit(caller: str, what: str, value: Any, unit: Any) -> Any:
    """Return *value*, a quantity or a matrix, converted to *unit* and without it; unchanged if neither has a unit.

    Raises:
      DtypeError: if *value* has a unit and *unit* is None, or the reverse; or if the units are not compatible.
    """
    mantissa, own = split(value)
    if own is None and (unit is None or _is_zero(mantissa)):
        return value
    if own is None or unit is None:
        expected = "none, as the other values have none" if unit is None else f"{unit}, or a unit that converts to it"
        raise DtypeError(
            f"{caller}: {what} has {'no unit' if own is None else f'the unit {own}'}; expected {expected}. Multiply "
            "numbers by a unit, x * unit; take numbers from a quantity by q.in_unit(unit).mantissa."
        )
    is_matrix = isinstance(value, ImmutablePytree)
    try:
        converted = (value.data if is_matrix else value).in_unit(unit).mantissa
    except Exception as error:  # each library of units has an exception of its own
        if is_raised_by_handler(error):
            raise
        raise DtypeError(
            f"{caller}: {what} has the unit {own}; expected {unit}, or a unit that converts to it. Convert it, or set "
            "another unit, q.mantissa * unit."
        ) from error
    return mantissa._with_data(converted) if is_matrix else converted


def check_plain(caller: str, what: str, value: Any) -> None:
    """Raise `InputError` if *value* is a quantity, because units would be lost."""
    if is_quantity(value):
        raise InputError(
            f"{caller}: {what} is a quantity with the unit {value.unit}, which is not supported here; expected an "
            "array. Quantities may be the weights and operands of products, and the weights of a matrix for methods "
            "that are linear in them. Take the numbers, q.in_unit(unit).mantissa, and multiply the result by its unit."
        )


def _is_zero(value: Any) -> bool:
    """Return True for the number 0 of Python, which is the same in all units."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
