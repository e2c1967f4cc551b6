"""Comparing the backends of an operator: what `XLACustomKernel.benchmark` runs."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from ._compat import is_tracing
from .benchmark_program import BenchmarkCase, Program
from .benchmark_result import BenchmarkResult, Measurement
from .config import check_platform, use_backend
from .difference import Difference, compare
from .errors import ArgumentError, BackendNotFoundError, XLAKernelError
from .versions import versions


def default_platform() -> str:
    """Return the platform of JAX's default device."""
    return {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")


def measure(
    op: Any,
    call: Callable[..., Any],
    cases: Iterable[BenchmarkCase] | None,
    *,
    platform: str | None,
    backends: Sequence[str] | None,
    rounds: int,
    seconds: float,
    rtol: float | None,
) -> BenchmarkResult:
    """Time *call* with each backend of *op*; `XLACustomKernel.benchmark` has the arguments."""
    if platform is None:
        platform = default_platform()
    check_platform(platform, op.name)
    if cases is None:
        if op.benchmark_data is None:
            raise ArgumentError(
                f"{op.name}: benchmark: there are no cases. Pass a list of BenchmarkCase(name, args, kwargs), or set a "
                "function that makes them with def_benchmark_data."
            )
        cases = op.benchmark_data(platform=platform)
    cases = _checked_cases(op, cases, needs_outs=call is op)
    _check_numbers(op, rounds, seconds, rtol)
    if isinstance(backends, str):
        raise ArgumentError(f"{op.name}: benchmark: backends is {backends!r}; expected names, as [{backends!r}].")
    if is_tracing():
        raise ArgumentError(
            f"{op.name}: benchmark: it was called inside jax.jit or another transformation of JAX, where nothing can "
            "be timed. Call it outside."
        )
    chosen = list(dict.fromkeys(op.available_backends(platform) if backends is None else backends))
    for backend in chosen:
        op.entry(platform, backend)  # or an error that says what there is
    if not chosen:
        raise BackendNotFoundError(f"{op.name}: benchmark: there is no kernel for platform {platform!r}.")
    try:
        device = jax.local_devices(backend=platform)[0]
    except RuntimeError as error:
        raise ArgumentError(f"{op.name}: benchmark: JAX has no device of platform {platform!r} here.") from error
    # What the others are compared with comes first: plain JAX, if there is any.
    order = sorted(chosen, key=lambda backend: backend != "jax")
    measurements: list[Measurement] = []
    for case in cases:
        programs: dict[str, Program] = {}
        found: dict[str, Measurement] = {}
        expected = None
        for backend in order:
            program = Program(call, case, device, partial(use_backend, **{platform: backend}))
            start = time.perf_counter()
            try:
                results = program.run(1)
                took = time.perf_counter() - start
                expected = (backend, results) if expected is None else expected
                compare(results, *expected, rtol, advice=". Pass rtol= if both are right")
            except (XLAKernelError, jax.errors.JaxRuntimeError, Difference) as error:
                found[backend] = Measurement(case.name, backend, problem=f"{type(error).__name__}: {error}")
            else:
                programs[backend] = program
                found[backend] = Measurement(case.name, backend, first_call=took)
        for backend, timed in _time(programs, rounds, seconds).items():
            found[backend] = dataclasses.replace(found[backend], seconds=tuple(timed))
        measurements += [found[backend] for backend in chosen]
    return BenchmarkResult(
        operator=op.name,
        platform=platform,
        device=device.device_kind,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=versions(),
        measurements=tuple(measurements),
    )


def _checked_cases(op: Any, cases: Iterable[Any], *, needs_outs: bool) -> list[BenchmarkCase]:
    found = list(cases)
    for case in found:
        if not isinstance(case, BenchmarkCase):
            raise ArgumentError(
                f"{op.name}: benchmark: a case is {case!r}; expected BenchmarkCase(name, args, kwargs)."
            )
        if needs_outs and "outs" not in case.kwargs:
            raise ArgumentError(
                f"{op.name}: benchmark: the case {case.name!r} calls the operator itself, and does not say what comes "
                'out. Give it the keyword, BenchmarkCase(name, args, {"outs": ...}), or give the operator a function '
                "that says so, with def_call."
            )
    names = [case.name for case in found]
    if not names or len(set(names)) < len(names):
        got = names or "no case"
        raise ArgumentError(f"{op.name}: benchmark: expected cases of different names; got {got}.")
    return found


def _check_numbers(op: Any, rounds: Any, seconds: Any, rtol: Any) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 1:
        raise ArgumentError(f"{op.name}: benchmark: rounds is {rounds!r}; expected an integer of 1 or more.")
    for what, value in (("seconds", seconds), ("rtol", rtol)):
        if what == "rtol" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not value >= 0:
            raise ArgumentError(f"{op.name}: benchmark: {what} is {value!r}; expected a number of at least 0.")


def _time(programs: Mapping[str, Program], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Time the programs in turn, so that all see the same weather; return seconds for a call, round by round."""
    calls = {}
    for backend, program in programs.items():
        calls[backend] = max(1, round(seconds / max(program.time(3), 1e-7)))
    found: dict[str, list[float]] = {backend: [] for backend in programs}
    for _ in range(rounds):
        for backend, program in programs.items():
            found[backend].append(program.time(calls[backend]))
    return found
