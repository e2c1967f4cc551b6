"""The numbers and the chart of the README, from the files in ``benchmarks/results``.

    python docs/readme_numbers.py

writes them, and the documentation is not built with others. Each number is the median of one case in one file, and the
tables below say which.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from measurements import ROOT, Result, ResultsError, number, read, table

README = ROOT / "README.md"
CHART = ROOT / "docs" / "pictures" / "call-overhead.svg"
STYLE = ROOT / "docs" / "matplotlibrc"
_PLACE = re.compile(
    r"(?<=<!-- numbers: python docs/readme_numbers.py -->\n\n).*?(?=\n\n<!-- numbers end -->)", re.DOTALL
)


class Column(NamedTuple):
    """A kind of call that was measured in one or two files."""

    title: str
    files: Mapping[str, tuple[str, str]]  #: which file and part, by the packages that it measures


CPU = "amd-epyc-2cores-py3.12"
GPU = "nvidia-h200-py3.12"
IN_LOOP = "one kernel of 4096 floats, an iteration of a loop"
AMONG_OTHERS = "one kernel of 4096 floats, unrolled"
COLUMNS = (
    Column(
        "CPU, in a loop",
        {
            "numba": (f"call_overhead-{CPU}", "loop"),
            "warp": (f"call_overhead_warp-{CPU}", "16 floats, an iteration of a loop"),
        },
    ),
    Column(
        "GPU, in a loop",
        {"numba": (f"call_overhead_cuda-{GPU}", IN_LOOP), "warp": (f"call_overhead_warp-{GPU}", IN_LOOP)},
    ),
    Column(
        "GPU, unrolled",
        {"numba": (f"call_overhead_cuda-{GPU}", AMONG_OTHERS), "warp": (f"call_overhead_warp-{GPU}", AMONG_OTHERS)},
    ),
)
#: Who is called, what XLA calls, in which files it is measured, and what the case is called there.
ROWS = (
    ("xlakernel, Numba", "machine code", "numba", "xlakernel"),
    ("xlakernel, Warp", "machine code", "warp", "xlakernel, jax_kernel"),
    ("XLA FFI handler in C++", "machine code", "numba", "C++ handler"),
    ("brainevent", "Python", "numba", "brainevent"),
    ("warp.jax_kernel", "Python, or machine code in a CUDA graph", "warp", "warp.jax_kernel"),
    ("jax.pure_callback", "Python", "numba", "jax.pure_callback"),
    ("`a + b`, compiled by XLA", "XLA-generated code", "numba", "jax.numpy"),
)
#: A product, the part of the file that has it, its case there, and whether the platform's library has it as well.
PRODUCTS = (
    ("CSR @ x", "vectors", "CSR @ x", True),
    ("x @ CSR", "vectors", "x @ CSR", True),
    ("CSR @ X, 32 columns", "matrices", "CSR @ X", True),
    ("events @ CSR, 1 % active", "events", "events @ CSR, 1.0%", False),
    ("events @ CSR, 10 % active", "events", "events @ CSR, 10.0%", False),
    ("CSR @ events, 1 % active", "events", "CSR @ events, 1.0%", False),
)
#: Where products are measured, the file, and the platform's library.
PLATFORMS = (
    ("on the CPU", "sparse-intel-r-xeon-r-processor-2cores-py3.12", "SciPy"),
    ("on the GPU", f"sparse-{GPU}", "cuSPARSE"),
)

Files = Mapping[str, Result]


def files() -> Files:
    """Return what was measured, by file."""
    return {result.path.stem: result for result in read()}


def calls(found: Files) -> dict[str, list[float | None]]:
    """Return what a call costs, in µs: the columns of each row, None where it was not measured."""
    return {name: [_median(found, *column.files[where], case) for column in COLUMNS] for name, _, where, case in ROWS}


def _median(found: Files, file: str, part: str, case: str) -> float | None:
    if file not in found or part not in found[file].microseconds:
        raise ResultsError(f"README.md: it shows {case!r} of {part!r} in {file}.json, and there is none.")
    cases = found[file].microseconds[part]
    return cases[case]["median"] if case in cases else None


def numbers(found: Files) -> str:
    """Return the tables of the README."""
    costs = calls(found)
    header = ("one kernel call, µs", "what XLA calls", *(column.title for column in COLUMNS))
    rows = [(name, what, *map(_cell, costs[name])) for name, what, _, _ in ROWS]
    first = table(header, rows, right=[2, 3, 4])
    products = [_products(found, *platform) for platform in PLATFORMS]
    return "\n\n".join([first, *products, _sources(found)])


def _products(found: Files, where: str, file: str, library: str) -> str:
    """Return the table of products on a platform."""
    header = (f"a product {where}, µs", "xlakernel", "prepared", library, "brainevent")
    rows = []
    for title, part, case, in_library in PRODUCTS:
        named = (case, f"{case}, prepared", f"{case}, {library}" if in_library else None, f"{case}, brainevent")
        rows.append((title, *(_cell(None if name is None else _median(found, file, part, name)) for name in named)))
    return table(header, rows, right=[1, 2, 3, 4])


def _sources(found: Files) -> str:
    """Return a list of the files that the numbers are from."""
    calls = [file for column in COLUMNS for file, _ in column.files.values()]
    used = dict.fromkeys([*calls, *(file for _, file, _ in PLATFORMS)])
    lines = [
        f"- [{found[file].suite}](benchmarks/results/{file}.json): {found[file].title}, {found[file].machine['date']}"
        for file in used
    ]
    return "\n".join(["The numbers come from these files, which `nox -s bench` writes:", "", *lines])


def _cell(value: float | None) -> str:
    # With all of its digits, so that a column is easy to compare: 1.60 beside 1.38.
    return "–" if value is None else number(value, 3) if value >= 100 else f"{value:#.3g}".rstrip(".")


def written(readme: str, found: Files) -> str:
    """Return the README with the numbers that were measured."""
    if len(_PLACE.findall(readme)) != 1:
        raise ResultsError("README.md: it must have one place for numbers, between the two comments that name it.")
    return _PLACE.sub(lambda _: numbers(found), readme)


def check(readme: Path = README, chart: Path = CHART) -> None:
    """Raise `ResultsError` if the README or its chart shows other numbers than those that were measured."""
    again = "Write them again: python docs/readme_numbers.py"
    found, text = files(), readme.read_text("utf-8")
    if written(text, found) != text:
        raise ResultsError(f"README.md: its numbers are not those in benchmarks/results. {again}")
    if shown(chart) != json.dumps(calls(found)):
        raise ResultsError(f"{chart.name}: it shows other numbers than those in benchmarks/results. {again}")


def shown(chart: Path) -> str | None:
    """Return the description in an SVG, the numbers that it shows; None if there is none."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", chart.read_text("utf-8"), re.DOTALL)
    return None if found is None else html.unescape(found[1])


def draw(costs: Mapping[str, Sequence[float | None]], path: Path) -> None:
    """Draw the costs of calls in loops, on the CPU and on the GPU, on log axes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        for axis, column in zip(figure.subplots(1, 2), (0, 1), strict=True):
            values = {
                name.replace("`", ""): row[column] for name, row in reversed(costs.items()) if row[column] is not None
            }
            colors = ["#2e75c8" if name.startswith("xlakernel") else "#a0a6b0" for name in values]
            bars = axis.barh(list(values), list(values.values()), color=colors)
            axis.bar_label(bars, [f" {number(value, 3)} µs" for value in values.values()], fontsize=9)
            axis.set(xscale="log", xlim=(min(values.values()) / 2, max(values.values()) * 8))
            axis.set_title(f"one kernel call: {COLUMNS[column].title}", fontsize=10)
            axis.tick_params(labelsize=9)
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, metadata={"Description": json.dumps(costs), "Date": None})


def main() -> int:
    """Write the README's numbers and its chart."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    found = files()
    README.write_text(written(README.read_text("utf-8"), found), "utf-8")
    draw(calls(found), CHART)
    check()
    sys.stdout.write(f"written: {README.name}, {CHART.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
