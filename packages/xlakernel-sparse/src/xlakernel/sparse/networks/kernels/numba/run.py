"""The function that makes a run on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from xlakernel.numba import numba_kernel

from ...layout import Layout
from ...model.plastic_projections import Plastic
from ...model.populations import Part, functions_of
from .simulation import has_threads, simulation


def run(
    outs: Sequence[Any],
    *,
    parts: tuple[Part, ...],
    plastic: tuple[Plastic, ...],
    layout: Layout,
    every: int,
    is_random: bool,
) -> Callable[..., Any]:
    """Return a function that makes a run; its inputs and results are the parameters of the kernel in `simulation`."""
    functions = tuple(functions_of(part, layout.receptors, is_random) for part in parts)
    sources = max(part.inputs.random for part in parts)
    rules = tuple((one.number, one.functions) for one in plastic)
    of_run = simulation(functions, len(layout.receptors), sources, layout.wide, rules, has_threads(layout))
    kernel = numba_kernel(of_run, tuple(outs))
    return functools.partial(
        kernel,
        segments=layout.segments,
        width=layout.width,
        target_bits=layout.target_bits,
        row_bits=layout.row_bits,
        every=every,
    )
