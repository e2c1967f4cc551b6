"""`Poisson` and `Normal`: random inputs. A run draws them before it calls the functions of the neurons."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple


class Poisson(NamedTuple):
    """A field of the inputs: for each neuron and step, an integer from a Poisson distribution.

    Several numbers are drawn at once, which is faster than `poisson` in the neuron's function. The mean is the same in
    all steps. For a mean that changes, give the means as an input, and call `poisson` in the function.

    Args:
      mean: the mean of the distribution, a number or an array ``(size,)``, rounded to float32; see `poisson`. For
        spikes at *rate* Hz and a step of *step* ms, the mean is ``rate * step / 1000``.
    """

    mean: Any


class Normal(NamedTuple):
    """A field of the inputs with a float32 from a normal distribution for each neuron and step.

    Args:
      mean: the mean of the distribution, a number or an array ``(size,)``.
      deviation: the standard deviation, a number or an array ``(size,)``.
    """

    mean: Any = 0.0
    deviation: Any = 1.0


#: The *draw* (see `normal`) of the first random input. Smaller draws are left to the neurons' functions.
FIRST_DRAW = 1 << 31


def noise_of(inputs: Any) -> Any:
    """Return the parameters of the random inputs as a named tuple, or None if there are none."""
    values: dict[str, Any] = {}
    for name, value in zip(getattr(inputs, "_fields", ()), inputs or (), strict=False):
        if isinstance(value, Poisson | Normal):
            values |= {f"{parameter}_of_{name}": part for parameter, part in value._asdict().items()}
    return _kind(tuple(values))(**values) if values else None


@functools.cache
def _kind(names: tuple[str, ...]) -> Any:
    return NamedTuple("Noise", [(name, float) for name in names])  # type: ignore[misc]  # mypy asks for a literal list
