"""What products of sparse matrices cost, beside SciPy, cuSPARSE and brainevent.

    python benchmarks/sparse.py [--platform cpu|cuda] [--rounds 15] [--only vectors …] [--out benchmarks/results]
                                [--quick]

All cases of a part are timed in turn, round by round, each as many calls inside one jitted loop; a ratio is the median
of the rounds' ratios. The exit status is 1 if a mark does not hold. A part is a function in `PARTS`; what must hold is
in `_sparse_marks`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _fresh import measure
from _harness import (
    Mark,
    Part,
    arguments,
    machine,
    parse,
    print_marks,
    print_table,
    save_chart,
    slug,
    summary,
    write_json,
)
from _sparse_busy import measure_busy
from _sparse_delays import delay_cases
from _sparse_loops import Loop, in_brainevent, in_jit, in_program, on_device, on_host, time_loops
from _sparse_marks import FIRST_CONVERSION, IN_GRAPH, marks_of
from _sparse_matrices import (
    RATES,
    SIZES,
    Size,
    heavy_tailed,
    matrices,
    spikes,
    uniform,
    vectors,
    with_equal_weights,
)
from _sparse_operations import operation_cases
from _sparse_plasticity import plasticity_cases
from _sparse_procedural import measure_procedural
from _sparse_products import left, left_brainevent, left_events, right, right_brainevent, right_events
from _sparse_regimes import active_cases, batch_cases, dense_cases, extreme_cases, list_cases

from xlakernel.sparse import CSR


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where it is measured, and on what."""

    platform: str
    size: Size
    rounds: int
    matrix: CSR
    prepared: CSR

    @functools.cached_property
    def library(self) -> Any:
        """The same matrix in the library of the platform, SciPy or cuSPARSE by CuPy."""
        if self.platform == "cpu":
            return self.matrix.to_scipy()
        import cupy
        import cupyx.scipy.sparse

        arrays = [cupy.from_dlpack(array) for array in (self.matrix.data, self.matrix.indices, self.matrix.indptr)]
        return cupyx.scipy.sparse.csr_matrix(tuple(arrays), shape=self.matrix.shape)

    @property
    def library_name(self) -> str:
        """What the library is called."""
        return "SciPy" if self.platform == "cpu" else "cuSPARSE"

    def in_library(self, product: Callable[[Any, Any], Any], operands: jax.Array) -> Loop:
        """Return a loop with the library's matrix."""
        multiply = functools.partial(product, self.library)
        if self.platform == "cpu":
            return on_host(multiply, np.asarray(operands))
        import cupy

        return on_device(multiply, cupy.from_dlpack(operands))

    def part(self, title: str, cases: dict[str, Loop | None], name: str) -> Part:
        """Time the cases; return them with the marks that *name* has."""
        seconds = time_loops(cases, self.rounds)
        return Part(title, seconds, marks_of(self.platform, name, seconds))


def check(setting: Setting, products: dict[str, Callable[[Any, Any], Any]], x: jax.Array) -> None:
    """Compare what is to be timed with a sum in double precision over all entries."""
    row, column = (np.asarray(array) for array in setting.matrix.coordinates())
    data, values = np.asarray(setting.matrix.data, np.float64), np.asarray(x, np.float64)
    size = setting.size.n
    expected = {
        "left": np.bincount(row, data * values[column], size),
        "right": np.bincount(column, data * values[row], size),
    }
    for name, product in products.items():
        for matrix in (setting.matrix, setting.prepared):
            np.testing.assert_allclose(jax.jit(product)(matrix, x), expected[name], rtol=1e-4, atol=1e-3, err_msg=name)


def measure_vectors(setting: Setting) -> Part:
    """Time products with dense vectors."""
    x = vectors(setting.size)
    check(setting, {"left": left, "right": right}, x[0])
    equal = with_equal_weights(setting.matrix)
    cases: dict[str, Loop | None] = {}
    for name, product in (("CSR @ x", left), ("x @ CSR", right)):
        cases[name] = in_jit(product, setting.matrix, x)
        cases[f"{name}, prepared"] = in_jit(product, setting.prepared, x)
        cases[f"{name}, equal weights"] = in_jit(product, equal, x)
        cases[f"{name}, {setting.library_name}"] = setting.in_library(product, x)
        cases[f"{name}, brainevent"] = in_brainevent(product, setting.matrix, x)
    return setting.part("dense vectors", cases, "vectors")


def measure_matrices(setting: Setting) -> Part:
    """Time products with dense matrices."""
    columns = matrices(setting.size)
    cases: dict[str, Loop | None] = {}
    for name, product, x in (("CSR @ X", left, columns), ("X @ CSR", right, columns.transpose(0, 2, 1))):
        cases[name] = in_jit(product, setting.matrix, x)
        cases[f"{name}, prepared"] = in_jit(product, setting.prepared, x)
        cases[f"{name}, {setting.library_name}"] = setting.in_library(product, x)
        cases[f"{name}, brainevent"] = in_brainevent(product, setting.matrix, x)
    return setting.part("dense matrices of 32 columns", cases, "matrices")


def measure_events(setting: Setting) -> Part:
    """Time products with spikes at several rates."""
    cases: dict[str, Loop | None] = {}
    equal, equal_prepared = with_equal_weights(setting.matrix), with_equal_weights(setting.prepared)
    for rate in RATES:
        x = spikes(setting.size, rate)
        check(setting, {"left": left_events, "right": right_events}, x[0])
        name = f"events @ CSR, {rate:.1%}"
        cases[name] = in_jit(right_events, setting.matrix, x)
        if setting.platform == "cuda":
            cases[f"{name}, in a CUDA graph"] = in_program(right_events, setting.matrix, x)
        cases[f"{name}, equal weights"] = in_jit(right_events, equal, x)
        cases[f"{name}, brainevent"] = in_brainevent(right_brainevent, setting.matrix, x)
        cases[f"{name}, equal weights, brainevent"] = in_brainevent(right_brainevent, equal, x)
        name = f"CSR @ events, {rate:.1%}"
        cases[name] = in_jit(left_events, setting.matrix, x)
        cases[f"{name}, equal weights"] = in_jit(left_events, equal, x)
        cases[f"{name}, prepared"] = in_jit(left_events, setting.prepared, x)
        cases[f"{name}, prepared, equal weights"] = in_jit(left_events, equal_prepared, x)
        cases[f"{name}, brainevent"] = in_brainevent(left_brainevent, setting.matrix, x)
        cases[f"{name}, equal weights, brainevent"] = in_brainevent(left_brainevent, equal, x)
    if setting.platform == "cuda":
        cases["nothing, in a CUDA graph"] = in_program(lambda _, x: x.astype(jnp.float32), None, x)
    part = setting.part("events", cases, "events")
    if setting.platform == "cuda":
        name = "events @ CSR, 0.1%, in a CUDA graph"
        rounds = zip(part.seconds[name], part.seconds["nothing, in a CUDA graph"], strict=True)
        alone = statistics.median(whole - rest for whole, rest in rounds) * 1e6
        part.marks.append(Mark(f"{name}, without the rest of the graph", alone, IN_GRAPH, "µs"))
    return part


def measure_conversion(setting: Setting) -> Part:
    """Time the conversion to compressed columns, and its first call in a new process."""
    weights = jnp.stack([setting.matrix.data, setting.matrix.data + 1])

    def convert(matrix: CSR, weights: jax.Array) -> jax.Array:
        return matrix.with_data(weights).tocsc().data

    cases: dict[str, Loop | None] = {
        "CSR to CSC": in_jit(convert, setting.matrix, weights),
        f"CSR to CSC, {setting.library_name}": setting.in_library(lambda matrix, _: matrix.tocsc(), weights),
    }
    part = setting.part("conversion", cases, "conversion")
    if setting.platform == "cpu":
        measure("first_conversion")  # fills the cache
        found = [measure("first_conversion") for _ in range(3)]
        part.marks.append(Mark("CSR to CSC, first call in a new process", min(found), FIRST_CONVERSION, "s"))
    return part


def measure_heavy_tailed(setting: Setting) -> Part:
    """Time the products of a matrix with a few very full rows beside those of the uniform one."""
    cases: dict[str, Loop | None] = {}
    heavy = heavy_tailed(setting.size)
    for which, matrix in (("uniform", setting.matrix), ("Zipf", heavy)):
        prepared = matrix.prepare()
        for name, product, of, x in (
            ("CSR @ x", left, matrix, vectors(setting.size)),
            ("x @ CSR", right, matrix, vectors(setting.size)),
            ("CSR @ x, prepared", left, prepared, vectors(setting.size)),
            ("x @ CSR, prepared", right, prepared, vectors(setting.size)),
            ("CSR @ X", left, matrix, matrices(setting.size)),
            ("X @ CSR", right, matrix, matrices(setting.size).transpose(0, 2, 1)),
            ("CSR @ events, 1.0%", left_events, matrix, spikes(setting.size, 0.01)),
        ):
            cases[f"{name}, {which}"] = in_jit(product, of, x)
        for rate in RATES:
            cases[f"events @ CSR, {rate:.1%}, {which}"] = in_jit(right_events, matrix, spikes(setting.size, rate))
    seconds = time_loops(cases, setting.rounds)
    work = {rate: _relative_work(setting, heavy, rate) for rate in RATES}
    per_entry = {
        name: [value / work[rate] for value in values] if name == f"events @ CSR, {rate:.1%}, Zipf" else values
        for rate in RATES
        for name, values in seconds.items()
        if name.startswith(f"events @ CSR, {rate:.1%}")
    }
    return Part("heavy-tailed rows", seconds, marks_of(setting.platform, "heavy-tailed", {**seconds, **per_entry}))


def _relative_work(setting: Setting, heavy: CSR, rate: float) -> float:
    """Return how many entries the active rows have, over those of the uniform matrix."""
    active = spikes(setting.size, rate)
    degrees = jnp.diff(heavy.indptr)
    return float((active * degrees).sum() / (active.sum() * setting.size.degree))


def measure_plasticity(setting: Setting) -> Part:
    """Time updates of weights at spikes of several rates."""
    return setting.part("plasticity", plasticity_cases(setting.matrix, setting.size), "plasticity")


def measure_delays(setting: Setting) -> Part:
    """Time deliveries of spikes with delays."""
    return setting.part("delays", delay_cases(setting.matrix, setting.size), "delays")


def measure_operations(setting: Setting) -> Part:
    """Time operations on whole matrices and their parts, called from Python."""
    return setting.part("operations outside of jit", operation_cases(), "operations")


def measure_batches(setting: Setting) -> Part:
    """Time batches of events."""
    return setting.part("batches of events @ CSR", batch_cases(setting.matrix, setting.size), "batches")


def measure_regimes(setting: Setting) -> Part:
    """Time lists of events, many active events, and matrices of extreme sizes."""
    cases = list_cases(setting.matrix, setting.size) | active_cases(setting.matrix, setting.size)
    return setting.part("regimes", cases | extreme_cases(), "regimes")


def measure_dense(setting: Setting) -> Part:
    """Time products of events with a dense matrix."""
    return setting.part("events @ dense matrix", dense_cases(), "dense")


SCALED_RATES = tuple(10.0**k for k in (-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0))


def measure_scaling(setting: Setting) -> Part:
    """Time the products with spikes at many rates, on matrices of several sizes."""
    cases: dict[str, Loop | None] = {}
    for shrink in (16, 4, 1):
        size = Size(setting.size.n // shrink, setting.size.degree)
        matrix = setting.prepared if shrink == 1 else uniform(size).prepare()
        for rate in SCALED_RATES:
            x = spikes(size, rate)
            cases[f"n = {size.n}, events @ CSR, {rate:.2g}"] = in_jit(right_events, matrix, x)
            cases[f"n = {size.n}, CSR @ events, prepared, {rate:.2g}"] = in_jit(left_events, matrix, x)
    return setting.part("cost against size and rate", cases, "scaling")


PARTS: dict[str, Callable[[Setting], Part]] = {
    "busy": measure_busy,
    "vectors": measure_vectors,
    "matrices": measure_matrices,
    "events": measure_events,
    "conversion": measure_conversion,
    "heavy-tailed": measure_heavy_tailed,
    "procedural": measure_procedural,
    "plasticity": measure_plasticity,
    "delays": measure_delays,
    "operations": measure_operations,
    "batches": measure_batches,
    "regimes": measure_regimes,
    "dense": measure_dense,
    "scaling": measure_scaling,
}
#: Parts that are measured on the CPU alone: a GPU does not share its cores, and SciPy has none.
OF_THE_CPU = ("busy", "operations", "batches", "regimes")


def plot(path: Path, parts: dict[str, Part], described: dict[str, Any], platform: str) -> None:
    """Draw what the cases took, a chart for each part, and cost against rate on log axes."""
    from matplotlib.figure import Figure

    heights = [max(6, len(part.seconds)) if name != "scaling" else 14 for name, part in parts.items()]
    figure = Figure(figsize=(10, 1.5 + 0.32 * sum(heights)), layout="constrained")
    charts = figure.subplots(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for chart, (name, part) in zip(charts, parts.items(), strict=True):
        medians = {case: statistics.median(found) * 1e6 for case, found in part.seconds.items()}
        if name == "scaling":
            _plot_scaling(chart, medians)
        else:
            _plot_bars(chart, medians)
        chart.set_title(f"{part.title}, µs a call")
        chart.spines[["top", "right"]].set_visible(False)
    save_chart(figure, path, described, platform, "numba" if platform == "cpu" else "numba-cuda")


def _plot_bars(chart: Any, medians: dict[str, float]) -> None:
    values = dict(reversed(medians.items()))
    peers = ("SciPy", "cuSPARSE", "brainevent")
    colors = ["#b8c0cc" if name.endswith(peers) else "#1f5fa8" for name in values]
    bars = chart.barh(list(values), list(values.values()), color=colors)
    chart.bar_label(bars, [f" {value:.4g}" for value in values.values()])
    chart.set(xscale="log", xlim=(min(values.values()) / 2, max(values.values()) * 4))


def _plot_scaling(chart: Any, medians: dict[str, float]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, value in medians.items():
        line, _, rate = name.rpartition(", ")
        lines.setdefault(line, []).append((float(rate), value))
    for line, points in lines.items():
        chart.plot(*zip(*points, strict=True), marker="o", linestyle="--" if "prepared" in line else "-", label=line)
    chart.set(xscale="log", yscale="log", xlabel="fraction of the neurons that spike")
    chart.legend(frameon=False, fontsize=8)


def run(platform: str, only: list[str], rounds: int, out: Path | None) -> bool:
    """Measure, print and write what the products cost on a platform; return whether the marks hold.

    The numbers are written after each part: what a run that is stopped has measured is kept.
    """
    load = [os.getloadavg()[0]]
    parts: dict[str, Part] = {}
    with jax.default_device(jax.local_devices(backend=platform)[0]):
        size = SIZES[platform]
        matrix = uniform(size)
        setting = Setting(platform, size, rounds, matrix, matrix.prepare())
        for name in only:
            if platform == "cpu" or name not in OF_THE_CPU:
                parts[name] = PARTS[name](setting)
                print_table(f"{parts[name].title}, µs", summary(parts[name].seconds))
                if out is not None:
                    path = _write(out, platform, parts, [*load, os.getloadavg()[0]])
    holds = print_marks([mark for part in parts.values() for mark in part.marks])
    if out is not None and parts:
        plot(path.with_suffix(".png"), parts, machine(), platform)
        print(f"\nwritten: {path} and .png")
    return holds


def _write(out: Path, platform: str, parts: dict[str, Part], load: list[float]) -> Path:
    described = machine()
    content = {
        "machine": described,
        "load_before_and_after": load,
        "microseconds": {name: summary(part.seconds) for name, part in parts.items()},
        "marks": [mark.as_dict() for part in parts.values() for mark in part.marks],
    }
    return write_json(out, f"sparse-{slug(described, platform)}", content)


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to measure (all)")
    options = parse(parser)
    found = [run(platform, options.only, options.rounds, options.out) for platform in options.platforms]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
