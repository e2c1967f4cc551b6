"""Programs of one kernel or many, timed beside the same programs of peers: what is measured of each library's kernels.

A case that fails is reported and left out, and the marks that need it do not hold.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _harness import OURS, Mark, Part, ratio, time_beside

SIZE = 4096
UNROLLED, LOOP, STEPS = 200, 1000, 2000
XLA, BRAINEVENT, WARP = "jax.numpy", "brainevent", "warp.jax_kernel"
# A loop's value that an odd number of calls replaces is copied in each iteration, if no call works in its memory.
IN_PLACE, EAGER = ", in place", ", eager"

Binary = Callable[[Any, Any], Any]
#: name → what makes a function of two arrays; it may fail, as where a peer is not installed.
Makers = Mapping[str, Callable[[], Binary]]
#: name → what yields the parts of a measurement, for a number of rounds.
Measurements = Mapping[str, Callable[[int], Iterator[Part]]]


def one(function: Callable[..., Any]) -> Binary:
    """Return *function* with its result instead of a sequence of one."""

    def call(x: Any, y: Any) -> Any:
        result = function(x, y)
        return result[0] if isinstance(result, (tuple, list)) else result

    return call


def struct(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), jnp.float32)


# Programs


def single(step: Binary) -> Binary:
    """Return a program of one step."""
    return step


def unrolled(step: Binary) -> Binary:
    """Return a program of `UNROLLED` steps, one behind the other."""

    def program(x: Any, y: Any) -> Any:
        for _ in range(UNROLLED):
            x = jax.lax.optimization_barrier(step(x, y))
        return x

    return program


def looped(step: Binary, steps: int = LOOP) -> Binary:
    """Return a program that repeats a step in a ``fori_loop``."""
    return lambda x, y: jax.lax.fori_loop(0, steps, lambda _, value: step(value, y), x)


def thrice(pair: Binary) -> Binary:
    """Return a step of six kernels."""

    def step(x: Any, y: Any) -> Any:
        for _ in range(3):
            x = jax.lax.optimization_barrier(pair(x, y))
        return x

    return step


def xla_pair() -> Binary:
    return lambda x, y: jax.lax.optimization_barrier(x + y) - 1  # two kernels: nothing is fused over a barrier


# Timing them


def prepare(
    title: str, makers: Makers, program: Callable[[Binary], Binary], *, size: int = SIZE
) -> dict[str, functools.partial[Any]]:
    """Return the programs of the cases that work and give what XLA's gives; say of the others why not."""
    x, y = jnp.arange(size, dtype=jnp.float32), jnp.full(size, 2, jnp.float32)
    expected = jax.jit(program(makers[XLA]()))(x, y)
    cases: dict[str, functools.partial[Any]] = {}
    for name, make in makers.items():
        try:
            case = functools.partial(jax.jit(program(make())), x, y)
            np.testing.assert_allclose(case(), expected, rtol=1e-6)
        except Exception as error:  # noqa: BLE001  # whatever ails one, the others are measured
            said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            print(f"{title}: {name} is not measured: {said}")
        else:
            cases[name] = case
    return cases


def timed(
    cases: Mapping[str, Callable[[], Any]], per: int, calls: int, rounds: int, slow: Collection[str] = (BRAINEVENT,)
) -> dict[str, list[float]]:
    """Time programs of *per* steps, those of the slow by fewer calls; return seconds per step."""
    counts = {name: max(1, calls // 20) if name in slow else calls for name in cases}
    seconds = time_beside(cases, calls=counts, rounds=rounds)
    return {name: [value / per for value in values] for name, values in seconds.items()}


def over(seconds: Mapping[str, list[float]], name: str, peer: str) -> float | None:
    """Return how long *name* takes in terms of *peer*; None if one of both was not measured."""
    return ratio(seconds, name, peer) if {name, peer} <= seconds.keys() else None


def microseconds(seconds: Mapping[str, list[float]], name: str) -> float | None:
    """Return the median of *name*; None if it was not measured."""
    return statistics.median(seconds[name]) * 1e6 if name in seconds else None


def marks_over(title: str, seconds: Mapping[str, list[float]], peer: str, limits: Mapping[str, float]) -> list[Mark]:
    """Return marks of how long each name of *limits* takes in terms of one *peer*."""
    return [Mark(f"{title}: {name}, over {peer}", over(seconds, name, peer), most) for name, most in limits.items()]


def measure_six_kernels(pairs: Makers, rounds: int) -> Iterator[Part]:
    """Time a step of six kernels in a loop, as a simulation has it: pairs of kernels, the first of them ours."""
    title = f"six kernels a step, {STEPS} steps"
    cases = prepare(title, pairs, lambda pair: looped(thrice(pair), STEPS))
    seconds = timed(cases, STEPS, 1, rounds)
    yield Part(title, seconds, [Mark(f"{title}: a step", microseconds(seconds, next(iter(pairs))), 10, "µs")])


def measure_lowering(makers: Makers, rounds: int) -> dict[str, list[float]]:
    """Return the seconds that a new shape takes to lower, its kernels being compiled already."""
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for counted in range(rounds + 1):  # as in `time_beside`: the first compiles the kernels and is not counted
        for name, make in makers.items():
            shape = struct(10_007 + counted)
            start = time.perf_counter()
            jax.jit(make()).lower(shape, shape)
            if counted:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def measure_recording(makers: Makers, rounds: int) -> Iterator[Part]:
    """Time how long a new shape takes to lower, beside an addition of XLA's: ours are recorded meanwhile."""
    seconds = measure_lowering({**makers, XLA: lambda: lambda x, y: x + y}, rounds)
    marks = []
    for name in (name for name in makers if name.startswith(OURS)):
        beyond = statistics.median(ours - theirs for ours, theirs in zip(seconds[name], seconds[XLA], strict=True))
        marks.append(Mark(f"recording of {name}, beyond lowering jnp.add", beyond * 1e3, 5, "ms"))
    yield Part("lowering for a new shape", seconds, marks)


def collect(measurements: Measurements, device: jax.Device, rounds: int) -> list[Part]:
    """Measure on a device; a measurement that fails is one mark that does not hold."""
    found: list[Part] = []
    with jax.default_device(device):
        for name, measure in measurements.items():
            try:
                found.extend(measure(rounds))
            except Exception as error:  # noqa: BLE001  # the other parts are measured all the same
                print(f"{name}: it failed: {type(error).__name__}: {error}")
                found.append(Part(name, {}, [Mark(f"{name}: it failed", None, 0, "")]))
    return found
