"""Derivatives by central differences, with estimates of their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..measure.comparison import Array, double, largest

# The error of a function's value, in units of its relative precision.
_ROUNDINGS = 4
# Steps of `refined_difference`: the ratio of consecutive steps, and the least number of steps.
_RATIO, _FEWEST_STEPS = 4.0, 4

#: A function of a list of arrays, in double precision if possible, that returns a list of arrays.
Exact = Callable[[list[Array]], list[Array]]


class Estimate(NamedTuple):
    """The derivative of an output along a direction, with estimated errors.

    *moves* is True for elements that a step changes. For other elements, the error bounds the derivative.
    """

    values: Array
    errors: Array
    moves: Array


class _Central(NamedTuple):
    """A derivative with one step; *moves* is True for the elements that the step changes."""

    values: Array
    rounding: Array
    moves: Array


def difference(exact: Exact, inputs: Sequence[Array], number: int, direction: Array, epsilon: float) -> list[Estimate]:
    """Return the derivative of each output along *direction* of input *number*.

    The step fits the largest input element that *direction* moves. The error estimate covers rounding, not truncation.

    Args:
      exact: the function.
      inputs: the point at which the derivative is taken.
      number: the input that moves.
      direction: an array of the shape of this input.
      epsilon: the relative precision of *exact*.
    """
    found = _central(exact, inputs, number, direction, epsilon, _usual_size(inputs[number], direction))
    return [Estimate(one.values, one.rounding, one.moves) for one in found]


def refined_difference(
    exact: Exact, inputs: Sequence[Array], number: int, direction: Array, epsilon: float
) -> list[Estimate]:
    """Return the derivative as `difference` does, but choose for each output element the step with the smallest error.

    The steps decrease from the usual step to a step that fits the smallest input element that *direction* moves. The
    error estimate is the rounding error plus the change from the previous step.
    """
    sizes = np.abs(inputs[number])
    moving = sizes[(direction != 0) & (sizes > 0)]
    usual = _usual_size(inputs[number], direction)
    steps = math.ceil(math.log(usual / float(moving.min(initial=1.0)), _RATIO)) + 2
    tried = [
        _central(exact, inputs, number, direction, epsilon, usual / _RATIO**k) for k in range(max(_FEWEST_STEPS, steps))
    ]
    return [_best(of_output) for of_output in zip(*tried, strict=True)]


def _best(tried: Sequence[_Central]) -> Estimate:
    """Return, for each element, the value with the smallest estimated error; the first step has no estimate."""
    values, rounding, moves = (np.stack(arrays) for arrays in zip(*tried, strict=True))
    # The largest step bounds the derivative of an element that no step changes.
    rounding = np.where(moves.any(axis=0), rounding, rounding[0])
    with np.errstate(invalid="ignore"):
        errors = np.abs(np.diff(values, axis=0)) + rounding[1:]
    lost = ~moves[1:] & moves.any(axis=0)  # the step is too small for the element
    errors = np.where(np.isfinite(errors) & ~lost, errors, np.inf)
    chosen = errors.argmin(axis=0)[None]
    value, error = (np.take_along_axis(array, chosen, 0)[0] for array in (values[1:], errors))
    return Estimate(value, error, np.asarray(moves.any(axis=0)))


def _usual_size(x: Array, direction: Array) -> float:
    return max(1.0, largest(np.where(direction != 0, x, 0)))


def _central(
    exact: Exact, inputs: Sequence[Array], number: int, direction: Array, epsilon: float, size: float
) -> list[_Central]:
    """Return the derivatives by a step that balances the errors of rounding and of truncation for inputs of *size*."""
    step = float(np.cbrt(epsilon)) * size / max(1e-30, float(np.abs(direction).max(initial=0.0)))
    moved = [x.astype(double(x.dtype)) for x in inputs]
    above, below = (
        [
            y.astype(double(y.dtype))
            for y in exact([x + sign * step * direction if i == number else x for i, x in enumerate(moved)])
        ]
        for sign in (1, -1)
    )
    return [_of_output(a, b, epsilon, step) for a, b in zip(above, below, strict=True)]


def _of_output(above: Any, below: Any, epsilon: float, step: float) -> _Central:
    with np.errstate(invalid="ignore", over="ignore"):
        rounding = _ROUNDINGS * epsilon * np.maximum(np.abs(above), np.abs(below)) / step
        moves = above != below
        rounding = np.where(moves | np.isfinite(rounding), rounding, 0)
        return _Central(np.where(moves, above - below, 0) / (2 * step), rounding, moves)  # inf - inf would be NaN
