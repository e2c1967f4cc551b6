"""Levels of ``jax.vmap`` around a function that is evaluated later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._compat import align_axes


@dataclasses.dataclass(frozen=True)
class Level:
    """One level of ``jax.vmap``.

    Attributes:
      axes: for each input, its mapped axis; None for an input without a mapped axis.
      size: the size of the batch, an int, or symbolic under `jax.export`.
    """

    axes: tuple[int | None, ...]
    size: Any


def map_levels(run: Callable[..., Any], levels: Sequence[Level]) -> Callable[..., Any]:
    """Return *run* under *levels* of ``jax.vmap``, given innermost first."""
    for level in levels:
        run = _map_level(run, level)
    return run


def _map_level(run: Callable[..., Any], level: Level) -> Callable[..., Any]:
    mapped = jax.vmap(run, in_axes=level.axes, axis_size=level.size)
    return lambda *arguments: mapped(*align_axes(arguments, level.axes))


def slice_shape(shape: Sequence[Any], index: int, levels: Sequence[Level]) -> tuple[Any, ...]:
    """Return *shape*, that of input *index*, without its mapped axes; *levels* are given innermost first."""
    extents = list(shape)
    for level in reversed(levels):
        if (axis := level.axes[index]) is not None:
            del extents[axis]
    return tuple(extents)
