"""Results of a benchmark: as objects, a table, JSON and a chart."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingDependencyError


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The times of one backend for one case.

    Attributes:
      case: the case's name.
      backend: the backend's name.
      seconds: the time of a call, one value for each round; empty if there is a problem.
      problem: the error that was raised, or the difference of the results; None if the backend was timed.
    """

    case: str
    backend: str
    seconds: tuple[float, ...] = ()
    problem: str | None = None

    @property
    def median(self) -> float:
        """The median of the rounds, in seconds; NaN if there is a problem."""
        return statistics.median(self.seconds) if self.seconds else math.nan


@dataclasses.dataclass(frozen=True)
class BenchmarkResult:
    """The times of an operator's backends on one device.

    ``print`` shows a table of medians, each with its smallest and largest round. A star marks the fastest backend.

    Attributes:
      operator: the operator's name.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      device: the kind of device, as JAX names it.
      date: the day, as in 2026-01-31.
      versions: the installed versions, by distribution.
      measurements: one measurement for each case and backend, ordered by case and then by backend.
    """

    operator: str
    platform: str
    device: str
    date: str
    versions: Mapping[str, str]
    measurements: tuple[Measurement, ...]

    @property
    def cases(self) -> list[str]:
        """The names of the cases."""
        return list(dict.fromkeys(found.case for found in self.measurements))

    @property
    def backends(self) -> list[str]:
        """The names of the backends."""
        return list(dict.fromkeys(found.backend for found in self.measurements))

    def __getitem__(self, key: tuple[str, str]) -> Measurement:
        """Return the measurement of ``(case, backend)``.

        Args:
          key: both names, as in ``result["n=1000", "numba"]``.

        Raises:
          KeyError: if there is no such measurement; the message lists cases and backends.
        """
        for found in self.measurements:
            if (found.case, found.backend) == key:
                return found
        raise KeyError(
            f"{self.operator}: there is no measurement of {key!r}; expected [case, backend], of the cases {self.cases} "
            f"and the backends {self.backends}"
        )

    def fastest(self, case: str) -> str | None:
        """Return the backend with the smallest median; None if no backend could be timed.

        Args:
          case: the case's name.

        Raises:
          KeyError: if there is no such case.
        """
        timed = [found for backend in self.backends if (found := self[case, backend]).seconds]
        return min(timed, key=lambda found: found.median).backend if timed else None

    def __str__(self) -> str:
        header = [f"{self.operator}, {self.platform} ({self.device}), µs a call", *self.backends]
        rows = [[case, *(self._cell(case, backend) for backend in self.backends)] for case in self.cases]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows]]
        return "\n".join([*lines, *self._problems()])

    def _problems(self) -> list[str]:
        """Return a line for each problem of a backend, with the names of its cases."""
        cases: dict[str, list[str]] = {}
        for found in self.measurements:
            if found.problem is not None:
                cases.setdefault(f"{found.backend}: {found.problem}", []).append(found.case)
        return [f"{problem} ({', '.join(names)})" for problem, names in cases.items()]

    def _cell(self, case: str, backend: str) -> str:
        found = self[case, backend]
        if not found.seconds:
            return "not timed"
        low, middle, high = map(_microseconds, (min(found.seconds), found.median, max(found.seconds)))
        star = " *" if backend == self.fastest(case) else ""
        return f"{middle} ({low} … {high}){star}"

    def save(self, path: str | Path) -> Path:
        """Write a JSON file with every round of every measurement.

        Args:
          path: the file.

        Returns:
          The path.
        """
        path = Path(path)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", "utf-8")
        return path

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the medians over the cases, a line for each backend, with bars from the smallest to the largest round.

        Args:
          path: the file to write, in the format of its ending; None: no file.

        Returns:
          The `matplotlib.figure.Figure`.

        Raises:
          MissingDependencyError: if matplotlib, the extra ``xlakernel-core[plot]``, is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            from xlakernel.command.install import install_command

            raise MissingDependencyError(
                "BenchmarkResult.plot: matplotlib is not installed. Install it with "
                f"`{install_command('core', 'plot')}`."
            ) from error
        figure = Figure(figsize=(1.6 + 1.1 * max(3, len(self.cases)), 3.6), layout="constrained")
        axes = figure.subplots()
        for backend in self.backends:
            timed = [m for m in self.measurements if m.backend == backend and m.seconds]
            middle = np.array([m.median for m in timed]) * 1e6
            low, high = (np.array([edge(m.seconds) for m in timed]) * 1e6 for edge in (min, max))
            places = [self.cases.index(m.case) for m in timed]
            axes.errorbar(places, middle, [middle - low, high - middle], marker="o", capsize=3, label=backend)
        axes.set(yscale="log", ylabel="µs a call", title=f"{self.operator}, {self.platform} ({self.device})")
        axes.set_xticks(range(len(self.cases)), self.cases)
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure


def _microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
