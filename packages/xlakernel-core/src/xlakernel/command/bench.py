"""``xlakernel bench``: the backends of operators compared on this machine, as tables, JSON and charts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .backends import Offer, offers_of
from .doctor import examine
from .facts import Facts, collect, is_present
from .installed import choose, find
from .progress import Progress
from .text import Printer, complain, counted

if TYPE_CHECKING:
    from xlakernel.core import BenchmarkCase, BenchmarkResult, XLACustomKernel

INTERRUPTED = 130  #: the exit status, as shells have it for what Ctrl-C ended


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be measured, and how.

    Attributes:
      operators: names, patterns of names such as ``csr*``, or tags such as ``sparse``.
      platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``; None: that of JAX's default device.
      backends: those to compare; none: all that can be used here.
      cases: patterns of the names of cases; none: all.
      rounds: measurements of each.
      seconds: how long one is at least.
      modules: modules to import that register operators, beside the packages of the namespace.
      json: the file to write as JSON; ``-`` is stdout, which has nothing else then.
      plot: the file to write as a chart; with several operators, each has a file with its name in it.
      timeout: seconds that each library may take to say whether it can be used.
    """

    operators: Sequence[str]
    platform: str | None = None
    backends: Sequence[str] = ()
    cases: Sequence[str] = ()
    rounds: int = 20
    seconds: float = 0.02
    modules: Sequence[str] = ()
    json: str | None = None
    plot: Path | None = None
    timeout: float = 30.0


@dataclasses.dataclass
class Outcome:
    """What has been measured so far, and what was not.

    Attributes:
      results: what operators took.
      failed: why operators could not be measured though they should, packages not imported or files not written.
      skipped: why operators, or backends of them, were left out.
      interrupted: whether the user stopped it.
    """

    results: list[BenchmarkResult] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    interrupted: bool = False

    @property
    def problems(self) -> int:
        """How many backends failed or had wrong results, once for all cases of an operator, and what else failed."""
        found = {(result.operator, one.backend, one.problem) for result in self.results for one in result.measurements}
        return sum(problem is not None for _, _, problem in found) + len(self.failed)

    @property
    def status(self) -> int:
        """The exit status."""
        if self.interrupted:
            return INTERRUPTED
        return 1 if self.problems else 0 if self.results else 2


def bench(request: Request) -> int:
    """Compare the backends of operators.

    Returns:
      The exit status: 0; 1 if a backend fails or its results differ, or a package cannot be imported, or something
      written; 2 if what was asked for is not there, a module among it; `INTERRUPTED`.
    """
    refused = _refuse_files(request)
    if refused is not None:
        return _refuse(refused)
    with contextlib.redirect_stdout(sys.stderr):
        known, failed = find(request.modules)
    if any(module in failed for module in request.modules):  # which was said; all else may take long
        return _refuse("nothing is measured, as a module that was asked for cannot be imported.")
    try:
        chosen = choose(request.operators, known)
    except LookupError as error:
        return _refuse(str(error))
    facts = collect(request.timeout)
    outcome = Outcome(failed=failed)
    jobs = _plan(chosen, request, facts, outcome)
    printer = Printer(sys.stderr if request.json == "-" else None)
    _run(jobs, request, printer, outcome)
    _write_json(request, outcome)
    _summarise(outcome, printer)
    return outcome.status


def _refuse(why: str) -> int:
    complain(why)
    return 2


def _refuse_files(request: Request) -> str | None:
    """Return why what is to be written cannot be, before anything takes its time; None if nothing is known."""
    if request.plot is not None and not is_present("matplotlib"):
        return '--plot: matplotlib is not installed. Install it with `pip install "xlakernel-core[plot]"`.'
    for option, name in (("--json", request.json), ("--plot", request.plot)):
        if name is not None and name != "-" and not Path(name).parent.is_dir():
            return f"{option}: there is no folder {str(Path(name).parent)!r} to write {Path(name).name!r} in."
    return None


@dataclasses.dataclass(frozen=True)
class _Job:
    op: XLACustomKernel
    platform: str
    backends: Sequence[str]


def _plan(ops: Iterable[XLACustomKernel], request: Request, facts: Facts, outcome: Outcome) -> list[_Job]:
    """Return what can be measured; *outcome* is told what cannot be, and why."""
    from xlakernel.core.benchmark import default_platform

    platform = request.platform or default_platform()
    findings = examine(facts)
    jobs = []
    for op in ops:
        if op.benchmark_data is None:
            outcome.skipped[op.name] = "it has no cases of its own (def_benchmark_data)"
            continue
        listed = offers_of(op, findings, facts.platforms, facts.cuda_extra)
        offers = {offer.backend: offer for offer in listed if offer.platform == platform}
        wanted = [name for name in request.backends or offers if name in offers]
        # One that is asked for is measured whatever the doctor says, and says itself what is wrong.
        usable = wanted if request.backends else [name for name in wanted if offers[name].stopped is None]
        outcome.skipped |= {f"{op.name}, {name}": _why(offers[name]) for name in wanted if name not in usable}
        if not wanted:
            named = " or ".join(request.backends) or "kernel"
            outcome.skipped[op.name] = f"it has no {named} for {platform}; there is {', '.join(offers) or 'none'}"
        elif usable:
            jobs.append(_Job(op, platform, usable))
    return jobs


def _why(offer: Offer) -> str:
    return f"{offer.stopped}{f' ({offer.mend})' if offer.mend else ''}"


def _run(jobs: Sequence[_Job], request: Request, printer: Printer, outcome: Outcome) -> None:
    """Measure, and print each table when it is there."""
    progress = Progress()
    try:
        for number, job in enumerate(jobs, 1):
            progress.begin(f"{job.op.name} ({number} of {len(jobs)})")
            try:
                # Warp says on stdout what it loads; the tables and the JSON are to be alone there.
                with contextlib.redirect_stdout(progress):
                    cases, names = _cases(job, request.cases)
                    result = _measure(job, cases, request, progress) if cases or not request.cases else None
            except Exception as error:  # noqa: BLE001  # one that is broken must not hide the others
                outcome.failed[job.op.name] = f"{type(error).__name__}: {error}"
                continue
            finally:
                progress.clear()
            if result is None:
                asked = " or ".join(map(repr, request.cases))
                outcome.skipped[job.op.name] = f"it has no case like {asked}; it has {', '.join(map(repr, names))}"
                continue
            outcome.results.append(result)
            printer.line(str(result))
            printer.line()
            printer.out.flush()
            if request.plot is not None:
                _draw(result, _chart(request.plot, job.op.name, several=len(jobs) > 1), outcome)
    except KeyboardInterrupt:
        outcome.interrupted = True


def _cases(job: _Job, patterns: Sequence[str]) -> tuple[list[BenchmarkCase], list[str]]:
    """Return the operator's cases that are like one of *patterns*, and the names of all."""
    assert job.op.benchmark_data is not None
    chosen, names = [], []
    # One by one: those that are not wanted need not all be in memory at the same time.
    for case in job.op.benchmark_data(platform=job.platform):
        names.append(case.name)
        if not patterns or any(fnmatchcase(case.name, pattern) for pattern in patterns):
            chosen.append(case)
    return chosen, names


def _measure(job: _Job, cases: list[BenchmarkCase], request: Request, progress: Progress) -> BenchmarkResult:
    return job.op.benchmark(
        cases,
        platform=job.platform,
        backends=job.backends,
        rounds=request.rounds,
        seconds=request.seconds,
        progress=progress.step,
    )


def _draw(result: BenchmarkResult, path: Path, outcome: Outcome) -> None:
    try:
        result.plot(path)
    except (OSError, ValueError) as error:  # ValueError: matplotlib knows no such format
        outcome.failed[str(path)] = f"{type(error).__name__}: {error}"


def _chart(path: Path, operator: str, *, several: bool) -> Path:
    return path.with_name(f"{path.stem}-{operator}{path.suffix}") if several else path


def _write_json(request: Request, outcome: Outcome) -> None:
    if request.json is None:
        return
    content: dict[str, Any] = {"ok": outcome.status == 0, **dataclasses.asdict(outcome)}
    text = json.dumps(content, indent=2) + "\n"
    if request.json == "-":
        sys.stdout.write(text)
        return
    try:
        Path(request.json).write_text(text, "utf-8")
    except OSError as error:
        outcome.failed[request.json] = f"{type(error).__name__}: {error}"


def _summarise(outcome: Outcome, printer: Printer) -> None:
    for title, rows in (("failed", outcome.failed), ("not measured", outcome.skipped)):
        reasons: dict[str, list[str]] = {}
        for name, why in rows.items():
            reasons.setdefault(why, []).append(name)
        for why, names in reasons.items():
            printer.line(f"{title}: {'; '.join(names)}: {why}")
    ended = "interrupted: " if outcome.interrupted else ""
    printer.line(
        f"{ended}{counted(len(outcome.results), 'operator')} measured, {counted(outcome.problems, 'problem')}."
    )
