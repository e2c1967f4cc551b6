"""Comparing the backends of an operator: what `XLACustomKernel.benchmark` runs and returns."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .config import check_platform, use_backend
from .errors import ArgumentError, BackendNotFoundError, MissingDependencyError, XLAKernelError

if TYPE_CHECKING:
    from .kernel import XLACustomKernel

# What is told of where a result comes from, if it is installed.
_DISTRIBUTIONS = (
    *("xlakernel-core", "xlakernel-numba", "xlakernel-cuda", "xlakernel-warp", "xlakernel-sparse"),
    *("jax", "jaxlib", "numpy", "numba", "numba-cuda", "warp-lang"),
)

#: ``progress(done, total, what)``, called before each step and once at the end.
Progress = Callable[[int, int, str], None]


@dataclasses.dataclass(frozen=True)
class BenchmarkCase:
    """A call that is timed.

    Attributes:
      name: what it is called in tables and charts, such as ``"n=1000"``.
      args: its arguments. Arrays in them are arguments of the compiled program, anything else is part of it.
      kwargs: its keywords, likewise.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one backend took for one case.

    Attributes:
      case: the case's name.
      backend: the backend's.
      seconds: for a call, one value for each round; empty if there is a problem.
      first_call: seconds that the first call took, with tracing and compiling.
      problem: why it was not timed: the error that it raised, or in what its results differ.
    """

    case: str
    backend: str
    seconds: tuple[float, ...] = ()
    first_call: float | None = None
    problem: str | None = None

    @property
    def median(self) -> float:
        """The median of the rounds, in seconds; NaN if there is a problem."""
        return statistics.median(self.seconds) if self.seconds else math.nan


@dataclasses.dataclass(frozen=True)
class BenchmarkResult:
    """What the backends of an operator took, and where.

    ``print`` shows it as a table of medians, with the smallest and the largest round; the fastest has a star.

    Attributes:
      operator: its name.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
      device: the kind of device, as JAX calls it.
      date: the day, as in 2026-01-31.
      versions: of what is installed.
      measurements: one for each case and backend, by case and then by backend.
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
          KeyError: if there is no such measurement; it says which there are.
        """
        for found in self.measurements:
            if (found.case, found.backend) == key:
                return found
        raise KeyError(
            f"{self.operator}: there is no measurement of {key!r}; expected [case, backend], of the cases {self.cases} "
            f"and the backends {self.backends}"
        )

    def fastest(self, case: str) -> str | None:
        """Return the backend with the smallest median; None if none could be timed.

        Args:
          case: the case's name.

        Raises:
          KeyError: if there is no such case.
        """
        if case not in self.cases:
            raise KeyError(f"{self.operator}: no case {case!r} was measured; the cases are {self.cases}")
        timed = [found for found in self.measurements if found.case == case and found.seconds]
        return min(timed, key=lambda found: found.median).backend if timed else None

    def __str__(self) -> str:
        header = [f"{self.operator}, {self.platform} ({self.device}), µs a call", *self.backends]
        rows = [[case, *(self._cell(case, backend) for backend in self.backends)] for case in self.cases]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows]]
        return "\n".join([*lines, *self._problems()])

    def _problems(self) -> list[str]:
        """Return a line for each problem of a backend: one that is missing has the same in all cases."""
        cases: dict[tuple[str, str], list[str]] = {}
        for found in self.measurements:
            if found.problem is not None:
                cases.setdefault((found.backend, found.problem), []).append(found.case)
        every = len(self.cases)
        lines = []
        for (backend, problem), names in cases.items():
            often = f"all {every}" if len(names) == every else f"{len(names)} of {every}"
            where = f"{names[0]}, {backend}" if len(names) == 1 else f"{backend}, {often} cases"
            lines.append(f"{where}: {problem}")
        return lines

    def _cell(self, case: str, backend: str) -> str:
        found = self[case, backend]
        if not found.seconds:
            return "not timed"
        low, middle, high = map(_microseconds, (min(found.seconds), found.median, max(found.seconds)))
        star = " *" if backend == self.fastest(case) else ""
        return f"{middle} ({low} … {high}){star}"

    def save(self, path: str | Path) -> Path:
        """Write it as JSON, with every round of every measurement; `load` reads it.

        Args:
          path: where to write it.

        Returns:
          The path.
        """
        path = Path(path)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", "utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> BenchmarkResult:
        """Read what `save` wrote.

        Args:
          path: where it is.

        Raises:
          ArgumentError: if the file holds something else.
        """
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            found = [Measurement(**{**one, "seconds": tuple(one["seconds"])}) for one in content.pop("measurements")]
            return cls(**content, measurements=tuple(found))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArgumentError(f"BenchmarkResult.load: {path} is not what save writes ({error}).") from error

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the medians over the cases, a line for each backend, with bars from the smallest to the largest round.

        Args:
          path: where to write it; the ending says the format.

        Returns:
          The `matplotlib.figure.Figure`.

        Raises:
          MissingDependencyError: if matplotlib, the extra ``xlakernel-core[plot]``, is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependencyError(
                "BenchmarkResult.plot: matplotlib is not installed. Install it with "
                '`pip install "xlakernel-core[plot]"`.'
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


def default_platform() -> str:
    """Return the platform of JAX's default device."""
    return {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")


def measure(
    op: XLACustomKernel,
    call: Callable[..., Any],
    cases: Iterable[BenchmarkCase] | None,
    *,
    platform: str | None,
    backends: Sequence[str] | None,
    rounds: int,
    seconds: float,
    rtol: float | None,
    progress: Progress | None,
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
    cases = _checked(op, cases, rounds)
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
    steps = len(chosen) + 1
    report = progress or (lambda done, total, what: None)
    measurements: list[Measurement] = []
    for number, case in enumerate(cases):
        programs: dict[str, Program] = {}
        found: dict[str, Measurement] = {}
        expected = None
        for step, backend in enumerate(order):
            report(number * steps + step, len(cases) * steps, f"{case.name}: {backend} is compiled")
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
        report((number + 1) * steps - 1, len(cases) * steps, f"{case.name}: the backends are timed")
        for backend, timed in _time(programs, rounds, seconds).items():
            found[backend] = dataclasses.replace(found[backend], seconds=tuple(timed))
        measurements += [found[backend] for backend in chosen]
    report(len(cases) * steps, len(cases) * steps, "done")
    return BenchmarkResult(
        operator=op.name,
        platform=platform,
        device=device.device_kind,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=versions(),
        measurements=tuple(measurements),
    )


def _checked(op: XLACustomKernel, cases: Iterable[Any], rounds: int) -> list[BenchmarkCase]:
    found = list(cases)
    for case in found:
        if not isinstance(case, BenchmarkCase):
            raise ArgumentError(
                f"{op.name}: benchmark: a case is {case!r}; expected BenchmarkCase(name, args, kwargs)."
            )
    names = [case.name for case in found]
    if not names or len(set(names)) < len(names):
        raise ArgumentError(f"{op.name}: benchmark: expected cases of different names; got {names}.")
    if rounds < 1:
        raise ArgumentError(f"{op.name}: benchmark: rounds is {rounds}; expected 1 or more.")
    return found


class Program:
    """A case compiled for a backend.

    Args:
      call: what is called with the case's arguments; its own compiled program, which takes nobody's arrays away.
      case: the arguments.
      device: where it runs.
      chosen: makes the context that it is called in, where that chooses the backend.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        case: BenchmarkCase,
        device: jax.Device,
        chosen: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        leaves, tree = jax.tree.flatten((case.args, dict(case.kwargs)))
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
        self._chosen = chosen
        self._device = device

    def run(self, calls: int) -> Any:
        """Call it so often, wait, and return the last results."""
        with self._chosen(), jax.default_device(self._device):
            for _ in range(calls):
                results = self._program(self._arrays)
            return jax.block_until_ready(results)

    def time(self, calls: int) -> float:
        """Return the seconds of a call, from so many of them."""
        start = time.perf_counter()
        self.run(calls)
        return (time.perf_counter() - start) / calls


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


class Difference(Exception):
    """Results are not those of another backend."""


def compare(results: Any, reference: str, expected: Any, rtol: float | None, advice: str = "") -> None:
    """Raise `Difference` if *results* are not those *expected*, which the backend *reference* returned.

    *advice* is for a difference that may be one of rounding.
    """
    tree, expected_tree = (str(jax.tree.structure(value)) for value in (results, expected))
    if tree != expected_tree:
        raise Difference(f"it returns {tree}, and {reference!r} {expected_tree}")
    leaves = jax.tree.leaves(results)
    for i, (ours, theirs) in enumerate(zip(leaves, jax.tree.leaves(expected), strict=True)):
        where = f"result {i}" if len(leaves) > 1 else "the result"
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise Difference(
                f"{where} is {ours.dtype}{list(ours.shape)}, and with {reference!r} {theirs.dtype}{list(theirs.shape)}"
            )
        if jax.dtypes.issubdtype(ours.dtype, np.inexact):
            _compare_inexact(ours, theirs, f"{where} differs from that with {reference!r}", rtol, advice)
        elif wrong := np.sum(np.asarray(ours) != np.asarray(theirs)):
            raise Difference(f"{where} differs from that with {reference!r} in {wrong} elements")


def _compare_inexact(ours: jax.Array, theirs: jax.Array, what: str, rtol: float | None, advice: str) -> None:
    is_complex = jax.dtypes.issubdtype(ours.dtype, np.complexfloating)
    a, b = (np.asarray(array).astype(np.complex128 if is_complex else np.float64) for array in (ours, theirs))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise Difference(f"{what} in which elements are not finite")
    error, size = np.max(np.abs(a[finite] - b[finite]), initial=0.0), np.max(np.abs(b[finite]), initial=0.0)
    eps = jax.numpy.finfo(ours.dtype).eps  # type: ignore[no-untyped-call]  # JAX has no types there
    limit = float(eps) ** 0.5 if rtol is None else rtol
    if error > limit * size:
        raise Difference(
            f"{what} by up to {error:.3g}, where its largest value is {size:.3g}; allowed is {limit:.2g} times that"
            f"{advice}"
        )


def versions() -> dict[str, str]:
    """Return the versions of what kernels and their times depend on."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
