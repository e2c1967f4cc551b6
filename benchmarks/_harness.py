"""What the benchmarks share: timing beside peers, the machine's description, tables, JSON and charts."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

RESULTS = Path(__file__).parent / "results"
DISTRIBUTIONS = (
    *("jax", "jaxlib", "numpy", "numba", "llvmlite", "warp-lang", "brainevent", "nest-simulator"),
    *("scipy", "xlakernel-core", "xlakernel-numba", "xlakernel-warp", "xlakernel-sparse"),
)
GPU_DISTRIBUTIONS = (
    *("jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "cuda-bindings"),
    *("cuda-core", "numba-cuda", "cupy-cuda12x", "cupy-cuda13x", "xlakernel-cuda"),
)
OURS = "xlakernel"  #: what the names of our cases begin with


@dataclasses.dataclass(frozen=True)
class Mark:
    """A value that must not exceed its limit; None: it could not be measured, which does not hold either."""

    name: str
    value: float | None
    limit: float
    unit: str = "x"

    @property
    def holds(self) -> bool:
        """Whether it does not."""
        return self.value is not None and self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is written."""
        return dataclasses.asdict(self) | {"holds": self.holds}


class Part(NamedTuple):
    """What was measured together: seconds per call of each case, round by round, and what must hold of them."""

    title: str
    seconds: dict[str, list[float]]
    marks: list[Mark]


def arguments(doc: str) -> argparse.ArgumentParser:
    """Return a parser of what every benchmark takes, described by the first line of *doc*; for `parse`."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    where = "where to measure (both, if JAX has a CUDA device)"
    parser.add_argument("--platform", choices=["cpu", "cuda"], help=where)
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each case (15)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and PNG")
    parser.add_argument("--quick", action="store_true", help="try it: 3 rounds, and nothing is written")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options; their ``platforms`` are those to measure on, and ``out`` is None if nothing is written."""
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error(f"--rounds must be at least 3; got {options.rounds}")
    if options.platform == "cuda" and not gpu_devices():
        parser.error("--platform cuda: JAX has no CUDA device here")
    if options.quick:
        options.rounds, options.out = 3, None
    here = ["cpu", "cuda"] if gpu_devices() else ["cpu"]
    options.platforms = here if options.platform is None else [options.platform]
    return options


def time_beside(
    cases: Mapping[str, Callable[[], Any]], *, calls: Mapping[str, int], rounds: int
) -> dict[str, list[float]]:
    """Time *cases* in turn, so that all see the same weather; return seconds per call, round by round.

    Args:
      cases: functions whose results can be waited for.
      calls: how many calls make one measurement of a case.
      rounds: how many measurements of each; the first of all warms up and is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for counted in range(rounds + 1):
        for name, case in cases.items():
            repeats = range(calls[name])
            start = time.perf_counter()
            for _ in repeats:
                result = case()
            jax.block_until_ready(result)
            if counted:
                seconds[name].append((time.perf_counter() - start) / len(repeats))
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, peer: str) -> float:
    """Return the median over rounds of how long *name* takes in terms of *peer*."""
    return statistics.median(ours / theirs for ours, theirs in zip(seconds[name], seconds[peer], strict=True))


def summary(seconds: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return minimum, median and maximum in microseconds."""
    return {
        name: {"min": min(values) * 1e6, "median": statistics.median(values) * 1e6, "max": max(values) * 1e6}
        for name, values in seconds.items()
    }


def machine() -> dict[str, Any]:
    """Describe what was measured on."""
    gpus = gpu_devices()
    names = (*DISTRIBUTIONS, *GPU_DISTRIBUTIONS) if gpus else DISTRIBUTIONS
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "python": platform.python_version(),
        "versions": {name: found for name in names if (found := _version(name))},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    } | ({"gpu": _gpu(gpus)} if gpus else {})


def gpu_devices() -> list[jax.Device]:
    """Return the CUDA devices that JAX has; none is no error."""
    try:
        return list(jax.devices("cuda"))
    except RuntimeError:
        return []


def _gpu(devices: list[jax.Device]) -> dict[str, Any]:
    """Describe the GPUs, their driver, and the newest CUDA that it knows."""
    number = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return {
        "name": devices[0].device_kind,
        "count": len(devices),
        "driver": _driver(),
        "cuda": f"{number.value // 1000}.{number.value % 1000 // 10}",
    }


def _driver() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "unknown"
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split("\n")[0].strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def slug(described: Mapping[str, Any], platform: str = "cpu") -> str:
    """Return a file name for a machine, or for its GPUs."""
    name = f"{described['processor']}-{described['cores']}cores"
    if platform == "cuda":
        gpu = described["gpu"]
        name = gpu["name"] if gpu["count"] == 1 else f"{gpu['count']}-{gpu['name']}"
    python = ".".join(described["python"].split(".")[:2])
    return re.sub(r"[^a-z0-9.]+", "-", f"{name}-py{python}".lower()).strip("-")


def write_json(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Write *content* under *name* in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return path


def print_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table of numbers, a row for each name."""
    print(f"\n{title}")
    columns = list(next(iter(rows.values())))
    width = max(28, *map(len, rows))
    print(f"  {'':{width}}" + "".join(f"{column:>12}" for column in columns))
    for name, row in rows.items():
        print(f"  {name:{width}}" + "".join(f"{row[column]:12.3f}" for column in columns))


def print_cells(title: str, rows: Mapping[str, Mapping[str, str]]) -> None:
    """Print a table of texts, a row for each name."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [(title, *columns), *((name, *(row.get(column, "") for column in columns)) for name, row in rows.items())]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    print()
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_marks(marks: list[Mark]) -> bool:
    """Print what must hold; return whether all of it does."""
    print("\nmust hold")
    width = max(70, *(len(mark.name) for mark in marks))
    for mark in marks:
        verdict = "holds" if mark.holds else "DOES NOT HOLD"
        value = "not known" if mark.value is None else f"{mark.value:9.3f}"
        print(f"  {mark.name:{width}} {value:>9} <= {mark.limit:7.3f} {mark.unit:3} {verdict}")
    return all(mark.holds for mark in marks)


def plot(
    path: Path,
    charts: Mapping[str, Mapping[str, Mapping[str, float]]],
    described: Mapping[str, Any],
    platform: str = "cpu",
    compiler: str = "numba",
) -> None:
    """Draw what cases took: for each title a chart of the medians in a `summary`."""
    from matplotlib.figure import Figure

    heights = [len(rows) for rows in charts.values()]
    figure = Figure(figsize=(9, 0.6 * len(charts) + 0.36 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(charts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, (title, rows) in zip(axes, charts.items(), strict=True):
        values = {name: row["median"] for name, row in reversed(rows.items())}
        colors = ["#1f5fa8" if name.startswith(OURS) else "#b8c0cc" for name in values]
        bars = axis.barh(list(values), list(values.values()), color=colors)
        axis.bar_label(bars, [f" {value:.4g} µs" for value in values.values()])
        axis.set(xscale="log", title=f"{title}, µs", xlim=(min(values.values()) / 2, max(values.values()) * 4))
        axis.spines[["top", "right"]].set_visible(False)
    save_chart(figure, path, described, platform, compiler)


def save_chart(
    figure: Any, path: Path, described: Mapping[str, Any], platform: str = "cpu", compiler: str = "numba"
) -> None:
    """Write *figure* with a line that says on what it was measured, and with which compiler of kernels."""
    hardware = f"{described['processor']}, {described['cores']} cores"
    if platform == "cuda":
        gpu = described["gpu"]
        hardware = f"{gpu['count']} × {gpu['name']}, driver {gpu['driver']}"
    versions = described["versions"]
    figure.suptitle(
        f"{hardware}; Python {described['python']}, jax {versions['jax']}, {compiler} {versions[compiler]}; "
        f"{described['date']}",
        fontsize=9,
        color="#555555",
    )
    figure.savefig(path, dpi=130)
