"""Timing the backends that are right, for ``backend="auto"``: in turn, and not for long.

All of them see the same weather. It takes `_LIMIT` seconds, and the round that has begun then.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from .benchmark_program import Program

_ROUNDS = 7
_ROUND = 0.01  # seconds that a round of one backend takes at least
_LIMIT = 1.0  # seconds for all rounds of all backends; one that has begun is finished
_HOPELESS = 10.0  # times the quickest: who takes so long is timed once
_LONGEST = 500  # characters of an error that are remembered


def explain(error: Exception) -> str:
    """Return an error on one line: what a compiler says may be long."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


class _Failure(Exception):
    """A program that ran before did not run again."""

    def __init__(self, backend: str, problem: str) -> None:
        super().__init__(backend, problem)
        self.backend = backend
        self.problem = problem


def race_of_sound(programs: dict[str, Program], problems: dict[str, str]) -> dict[str, float]:
    """Return the seconds of a call of each program; one that fails becomes a problem, and the others start anew."""
    while True:
        try:
            return _race(programs)
        except _Failure as failure:
            problems[failure.backend] = failure.problem
            del programs[failure.backend]


def _time(backend: str, program: Program, calls: int) -> float:
    try:
        return program.time(calls)
    except Exception as error:
        raise _Failure(backend, explain(error)) from error


def _race(programs: Mapping[str, Program]) -> dict[str, float]:
    """Return the seconds of a call of each program, which all ran before."""
    first = {backend: _time(backend, program, 1) for backend, program in programs.items()}
    quickest = min(first.values(), default=0.0)
    running = [backend for backend in programs if first[backend] <= _HOPELESS * quickest]
    calls = {backend: max(1, round(_ROUND / max(first[backend], 1e-7))) for backend in running}
    rounds: dict[str, list[float]] = {backend: [] for backend in running}
    end = time.perf_counter() + _LIMIT
    for _ in range(_ROUNDS):
        if time.perf_counter() > end:
            break
        for backend in running:
            rounds[backend].append(_time(backend, programs[backend], calls[backend]))
    return {backend: statistics.median(rounds.get(backend) or [first[backend]]) for backend in programs}
