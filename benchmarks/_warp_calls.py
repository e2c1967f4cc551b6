"""What calls of Warp kernels cost on the CPU and on a GPU, beside Warp's own `jax_kernel` and `jax_callable`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import warp
from _harness import OURS, Part
from _kernels import add_kernel as numba_add_kernel
from _programs import (
    EAGER,
    IN_PLACE,
    LOOP,
    SIZE,
    UNROLLED,
    WARP,
    XLA,
    Binary,
    Makers,
    Measurements,
    looped,
    marks_over,
    measure_recording,
    measure_six_kernels,
    one,
    prepare,
    single,
    timed,
    unrolled,
    xla_pair,
)
from _warp_kernels import add_into_kernel, add_kernel, both_kernels, decrement_kernel

from xlakernel.numba import numba_kernel
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

# Two interfaces to one way of running: Warp's own, and that of the other packages here.
KERNEL, BY_OUTS, NUMBA = f"{OURS}, jax_kernel", f"{OURS}, warp_kernel", f"{OURS}, numba_kernel"
CALLABLE, ONE_BY_ONE, WARP_CALLABLE = f"{OURS}, jax_callable", f"{OURS}, kernel by kernel", "warp.jax_callable"


def our_add() -> Binary:
    return one(jax_kernel(add_kernel))


def our_add_by_outs(aliases: Mapping[int, int] | None = None) -> Binary:
    return one(warp_kernel(add_kernel, outs=lambda x, y: x, input_output_aliases=aliases))


def pair_of(wrap: Callable[..., Any]) -> Binary:
    """Return a step of two kernels, each wrapped by our `jax_kernel` or by Warp's."""
    add, decrement = wrap(add_kernel), wrap(decrement_kernel)
    return lambda x, y: decrement(*add(x, y))[0]


# Peers are looked up when they are made: Warp's run on the CPU from Warp 1.16 on.
ADDERS: Makers = {
    KERNEL: our_add,
    BY_OUTS: our_add_by_outs,
    XLA: lambda: jnp.add,
    WARP: lambda: one(warp.jax_kernel(add_kernel)),
}
ADDERS_IN_PLACE: Makers = {
    KERNEL + IN_PLACE: lambda: one(jax_kernel(add_into_kernel, in_out_argnames=["x"])),
    BY_OUTS + IN_PLACE: lambda: our_add_by_outs({0: 0}),
    WARP + IN_PLACE: lambda: one(warp.jax_kernel(add_into_kernel, in_out_argnames=["x"])),
}
CPU_ADDERS: Makers = {**ADDERS, NUMBA: lambda: numba_kernel(numba_add_kernel, outs=lambda x, y: x)}
PAIRS: Makers = {
    CALLABLE: lambda: one(jax_callable(both_kernels)),
    ONE_BY_ONE: lambda: pair_of(jax_kernel),
    XLA: xla_pair,
    WARP_CALLABLE: lambda: one(warp.jax_callable(both_kernels)),
}


def with_eager(cases: Mapping[str, functools.partial[jax.Array]]) -> dict[str, functools.partial[jax.Array]]:
    """Return the jitted calls, and our wrappers called as they are."""
    eager = {name: ADDERS[name] for name in (KERNEL, BY_OUTS) if name in cases}
    return {**cases, **{name + EAGER: functools.partial(make(), *cases[name].args) for name, make in eager.items()}}


# On the CPU


def measure_small_kernel(size: int, rounds: int) -> Iterator[Part]:
    """Time one small kernel, in a loop and as a program of its own."""
    title = f"{size} floats, an iteration of a loop"
    cases = prepare(title, CPU_ADDERS, looped, size=size)
    seconds = timed(cases, LOOP, 20, rounds, slow=[WARP])
    yield Part(title, seconds, marks_over(title, seconds, WARP, {KERNEL: 1 / 50, BY_OUTS: 1 / 50}))
    title = f"{size} floats, a call"
    cases = prepare(title, CPU_ADDERS, single, size=size)
    yield Part(title, timed(with_eager(cases), 1, 5000, rounds, slow=[WARP]), [])


def on_cpu(size: int) -> Measurements:
    """Return what is measured on the CPU, with vectors of *size* floats."""
    return {"one kernel": functools.partial(measure_small_kernel, size)}


# On a GPU


def measure_one_kernel(rounds: int) -> Iterator[Part]:
    """Time one kernel: unrolled in a program, in a loop, and as a program of its own."""
    title = f"one kernel of {SIZE} floats, unrolled"
    seconds = timed(prepare(title, ADDERS, unrolled), UNROLLED, 20, rounds)
    yield Part(title, seconds, marks_over(title, seconds, WARP, {KERNEL: 1, BY_OUTS: 1}))
    title = f"one kernel of {SIZE} floats, an iteration of a loop"
    seconds = timed(prepare(title, {**ADDERS, **ADDERS_IN_PLACE}, looped), LOOP, 3, rounds)
    yield Part(title, seconds, marks_over(title, seconds, WARP, {KERNEL: 1 / 3, BY_OUTS: 1 / 3}))
    title = f"one kernel of {SIZE} floats, a call"
    yield Part(title, timed(with_eager(prepare(title, ADDERS, single)), 1, 1000, rounds), [])


def measure_callable(rounds: int) -> Iterator[Part]:
    """Time a function that launches two kernels, beside its two kernels."""
    for what, program, steps, calls, limits in (
        ("unrolled", unrolled, UNROLLED, 10, {}),
        ("an iteration of a loop", looped, LOOP, 3, {CALLABLE: 1 / 3}),
    ):
        title = f"two kernels, {what}"
        seconds = timed(prepare(title, PAIRS, program), steps, calls, rounds)
        yield Part(title, seconds, marks_over(title, seconds, WARP_CALLABLE, limits))


SIXES: Makers = {
    KERNEL: lambda: pair_of(jax_kernel),
    XLA: xla_pair,
    WARP: lambda: pair_of(warp.jax_kernel),
}
RECORDED: Makers = {
    **{name: ADDERS[name] for name in (KERNEL, BY_OUTS, WARP)},
    **{name: PAIRS[name] for name in (CALLABLE, WARP_CALLABLE)},
}
ON_GPU: Measurements = {
    "one kernel": measure_one_kernel,
    "six kernels": functools.partial(measure_six_kernels, SIXES),
    "callable": measure_callable,
    "recording": functools.partial(measure_recording, RECORDED),
}
