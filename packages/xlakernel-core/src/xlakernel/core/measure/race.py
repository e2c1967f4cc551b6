"""Comparison of backends: their results first, then their times.

Backends are timed in turn, round by round, so that noise affects all of them alike.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..interrupts import is_cancelled, is_raised_by_handler
from .comparison import Agreement, CheckFailure, compare, compare_structs, default_settings
from .result import Measurement

_SHORTEST = 1e-7  # seconds; the least time that is assumed for a call, since a clock may show zero
_LONGEST = 500  # characters that are kept of an error


@dataclasses.dataclass(frozen=True)
class Pace:
    """Duration of a race.

    Attributes:
      rounds: the number of measurements of each backend.
      seconds: the duration of a measurement, in which the call is repeated.
      limit: the time in seconds after which no further round begins.
      handicap: a factor. A backend takes part in no round if its first timed call takes longer than *handicap* times
        that of the fastest backend.
    """

    rounds: int
    seconds: float
    limit: float = math.inf
    handicap: float = math.inf


def race(
    calls: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: jax.Device,
    pace: Pace,
    *,
    case: str = "",
    rtol: float | None = None,
) -> dict[str, Measurement]:
    """Compile a call with each backend, compare the results, and time the backends that agree.

    Args:
      calls: the function to call for each backend. Results are compared with those of the first backend that works.
      args: the arguments. Arrays become arguments of the compiled programs; all other values become constants.
      kwargs: the keywords, likewise.
      device: the device to run on.
      pace: the number and duration of the measurements.
      case: the name of the case, for the measurements.
      rtol: the allowed error of results (`Agreement`).

    Returns:
      A measurement for each backend, with its times or its problem (an error, or a difference of the results).
    """
    with default_settings():
        programs = {backend: _Program(call, args, kwargs, device) for backend, call in calls.items()}
        problems = _check(programs, Agreement(rtol))
        seconds, failures = _time({name: programs[name] for name in programs if name not in problems}, pace)
    problems |= failures
    return {
        name: Measurement(case, name, problem=problems[name])
        if name in problems
        else Measurement(case, name, tuple(seconds[name]))
        for name in calls
    }


class _Program:
    """A call compiled for a device; it donates none of its arguments."""

    def __init__(
        self, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], device: jax.Device
    ) -> None:
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.ndarray, jax.Array))]

        @jax.jit
        def program(arrays: list[Any]) -> Any:
            filled = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                filled[i] = array
            args, kwargs = jax.tree.unflatten(tree, filled)
            return call(*args, **kwargs)

        self._program = program
        self._arrays = jax.device_put([leaves[i] for i in places], device)
        self._device = device

    def run(self, calls: int) -> Any:
        """Run the program *calls* times, wait for the results, and return the last ones."""
        with jax.default_device(self._device):
            for _ in range(calls):
                results = self._program(self._arrays)
            return jax.block_until_ready(results)

    def time(self, calls: int) -> float:
        """Return the mean time of *calls* runs, in seconds."""
        start = time.perf_counter()
        self.run(calls)
        return (time.perf_counter() - start) / calls


def _check(programs: Mapping[str, _Program], agreement: Agreement) -> dict[str, str]:
    """Return the problems of the backends that raise an error or return different results.

    The results are freed on return, since the programs may need the memory when they are timed.
    """
    problems: dict[str, str] = {}
    expected: tuple[str, Any] | None = None
    for backend, program in programs.items():
        try:
            results = program.run(1)
            expected = expected or (backend, results)
            _compare(results, expected[1], agreement)
        except CheckFailure as difference:
            problems[backend] = f"its results differ from those of {expected and expected[0]!r}: {difference}"
        except Exception as error:  # noqa: BLE001  # any error disqualifies the backend
            problems[backend] = _explain(error)
    return problems


def _compare(results: Any, expected: Any, agreement: Agreement) -> None:
    """Raise `CheckFailure` if two backends do not agree in tree, types and values."""
    one, other = (str(jax.tree.structure(value)) for value in (results, expected))
    if one != other:
        raise CheckFailure(f"the tree is {one}, expected {other}.")
    compare_structs(results, expected, what="")
    compare(results, expected, agreement)


def _time(programs: Mapping[str, _Program], pace: Pace) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of a call for each backend and round, and the problems of the backends that fail meanwhile."""
    once: dict[str, float] = {}
    rounds: dict[str, list[float]] = {backend: [] for backend in programs}
    problems: dict[str, str] = {}

    def measure(backend: str, calls: int) -> float:
        try:
            return programs[backend].time(calls)
        except Exception as error:  # noqa: BLE001  # any error disqualifies the backend
            problems[backend] = _explain(error)
            return math.nan

    for backend in programs:
        once[backend] = measure(backend, 1)
    slowest = pace.handicap * max(min((once[name] for name in once if name not in problems), default=0.0), _SHORTEST)
    end = time.perf_counter() + pace.limit
    for _ in range(pace.rounds):
        if time.perf_counter() > end:
            break
        for backend in programs:
            if backend not in problems and once[backend] <= slowest:
                shortest = max(min([once[backend], *rounds[backend]]), _SHORTEST)
                rounds[backend].append(measure(backend, max(1, round(pace.seconds / shortest))))
    return {backend: rounds[backend] or [once[backend]] for backend in programs}, problems


def _explain(error: Exception) -> str:
    """Return an error as one line. A long line is cut in the middle, since compilers put the cause at either end.

    Raises:
      Exception: the error itself, if a signal handler raised it, for example because of a time limit.
    """
    if is_raised_by_handler(error) or is_cancelled(error):
        raise error
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
