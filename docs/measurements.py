"""The tables of the performance page, from the files in ``benchmarks/results``; `conf.py` puts them in.

A page says by comments where they belong: ``<!-- results: SUITE -->`` for what a suite measured, machine by machine;
``<!-- results: overview -->`` for a row for each file; ``<!-- results: losses -->`` for every missed target.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_PLACE = re.compile(r"^<!-- results: (\w+) -->$", re.MULTILINE)
_UNITS = {"x": "×"}


class ResultsError(ValueError):
    """What was measured and what is to be shown do not fit together."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What one suite measured on one machine: a file.

    Attributes:
      path: the file.
      machine: processor, GPU, versions and date, as the benchmarks describe them.
      microseconds: smallest, median and largest value by part and case.
      marks: what must hold, with what was measured.
      tables: other tables: by title, the cells of each row by column.
    """

    path: Path
    machine: Mapping[str, Any]
    microseconds: Mapping[str, Mapping[str, Mapping[str, float]]]
    marks: Sequence[Mapping[str, Any]]
    tables: Mapping[str, Mapping[str, Mapping[str, str]]] = dataclasses.field(default_factory=dict)

    @property
    def suite(self) -> str:
        """The name that files of the suite begin with."""
        return self.path.stem.partition("-")[0]

    @property
    def hardware(self) -> str:
        """What it was measured on: the GPUs, or the processor."""
        # The benchmarks name a file after the processor and its cores, or after the GPUs.
        if "cores-" not in self.path.stem and "gpu" in self.machine:
            gpu = self.machine["gpu"]
            count = f"{gpu['count']} × " if gpu["count"] > 1 else ""
            return f"{count}{gpu['name']}, driver {gpu['driver']}"
        return f"{self.machine['processor']}, {self.machine['cores']} cores"

    @property
    def title(self) -> str:
        """The hardware and Python's version, which tell the files of a suite apart."""
        return f"{self.hardware}, Python {self.machine['python'].rpartition('.')[0]}"

    @property
    def lost(self) -> list[Mapping[str, Any]]:
        """The marks that do not hold."""
        return [mark for mark in self.marks if not mark["holds"]]

    @property
    def score(self) -> str:
        """How many marks hold."""
        return f"{len(self.marks) - len(self.lost)} of {len(self.marks)}"


def read(folder: Path = RESULTS) -> list[Result]:
    """Return what has been measured, in the order of the files' names."""
    found = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        tables = content.get("tables", {})
        found.append(Result(path, content["machine"], content["microseconds"], content["marks"], tables))
    return found


def show(text: str, results: Sequence[Result], page: Path) -> str:
    """Return the Markdown of a page with the tables in their places.

    Args:
      text: its Markdown.
      results: what was measured.
      page: its path, from which charts are linked.

    Raises:
      ResultsError: if a suite was measured and has no place in the page, or has one and was not measured.
    """
    suites = {result.suite for result in results}
    places = set(_PLACE.findall(text)) - {"overview", "losses"}
    if suites != places:
        raise ResultsError(
            f"{page.name}: there are results of {sorted(suites - places)} that it has no place for, and places for "
            f"{sorted(places - suites)} without results. A place is a line `<!-- results: SUITE -->`."
        )

    def fill(place: re.Match[str]) -> str:
        if place[1] == "overview":
            return _overview(results)
        if place[1] == "losses":
            return _losses(results)
        return "\n\n".join(_section(result, page) for result in results if result.suite == place[1])

    return _PLACE.sub(fill, text)


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, and without an exponent.

    Example:
      >>> number(0.0012345), number(12.345), number(123456.7)
      ('0.001235', '12.35', '123457')
    """
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a table in Markdown; the columns *right* hold numbers."""
    rules = ["---:" if i in right else "---" for i in range(len(header))]
    lines = [header, rules, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _overview(results: Sequence[Result]) -> str:
    rows = [(result.suite, result.score, result.machine["date"], result.title) for result in results]
    return table(("suite", "targets reached", "date", "machine"), rows, right=[1, 2])


def _losses(results: Sequence[Result]) -> str:
    # What was measured comes first, where a narrow screen shows it.
    rows = [(*_mark(mark)[:3], result.suite, result.title) for result in results for mark in result.lost]
    if not rows:
        return "All targets are reached in all files."
    return table(("missed target", "measured", "at most", "suite", "machine"), rows, right=[1, 2])


def _mark(mark: Mapping[str, Any]) -> tuple[str, str, str, str]:
    unit = _UNITS.get(mark["unit"], mark["unit"])
    value, limit = (
        "not measured" if amount is None else f"{number(amount)} {unit}".strip()
        for amount in (mark["value"], mark["limit"])
    )
    return mark["name"], value, limit, "reached" if mark["holds"] else "**missed**"


def _section(result: Result, page: Path) -> str:
    """Return what a file tells: where and when, the marks, the times, and the chart."""
    path = Path(os.path.relpath(result.path, page.parent)).as_posix()
    versions = ", ".join(f"{name} {version}" for name, version in result.machine["versions"].items())
    parts = [
        f"### {result.title}",
        f"Measured on {result.machine['date']}: {result.machine['system']}, Python {result.machine['python']}, "
        f"{versions}. {result.score} targets reached. All numbers: {{download}}`{result.path.name} <{path}>`.",
        table(("target", "measured", "at most", ""), map(_mark, result.marks), right=[1, 2]),
    ]
    rows = [
        (part, case, *(number(found[key]) for key in ("median", "min", "max")))
        for part, cases in result.microseconds.items()
        for case, found in cases.items()
    ]
    for title, cells in result.tables.items():
        columns = list(dict.fromkeys(column for row in cells.values() for column in row))
        lines = [(name, *(row.get(column, "") for column in columns)) for name, row in cells.items()]
        parts.append(table((title, *columns), lines))
    if rows:
        times = table(("part", "case", "median, µs", "smallest", "largest"), rows, right=[2, 3, 4])
        parts.append(f"<details>\n<summary>All times</summary>\n\n{times}\n\n</details>")
    if result.path.with_suffix(".png").exists():
        chart = Path(path).with_suffix(".png").as_posix()
        parts.append(f"![Chart of these times, in µs]({chart})")
    return "\n\n".join(parts)
