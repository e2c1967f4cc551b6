"""Networks of spiking neurons in one call: microseconds of a step of 0.1 ms.

Building and compiling are timed apart, and rates are those of one more run that counts spikes. `network_peers.py` has
the same models in other simulators; published records of others are in the comments of the targets.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _brette_models import coba, cuba
from _fly_edges import EdgesError
from _fly_model import fly
from _harness import Mark, arguments, machine, parse, print_cells, print_marks, ratio, slug, summary, write_json
from _network_models import STEP, Model, microcircuit
from _network_runs import Run, on_device, spaced
from _plastic_model import plastic_network


class Case(NamedTuple):
    """A model, the steps of a run on the CPU and on a GPU, and how many networks run side by side."""

    make: Callable[..., Model]
    steps: tuple[int, int]
    batch: int | None = None


#: Targets in microseconds a step. Elsewhere: microcircuit 27.2 µs (GeNN on an RTX 4090), COBA 53 and 89 µs (brainevent
#: on an H100), the fly's brain 50 µs (GeNN on an RTX 4070; 21 sensory neurons at 200 Hz, and about as many spikes).
TARGETS: dict[str, dict[str, float]] = {
    "COBA, 4 000 neurons": {"cpu": 10, "cuda": 2.5},
    "COBA, 400 000 neurons": {"cuda": 6},
    "microcircuit, Poisson input": {"cpu": 800, "cuda": 5},
    "balanced, plastic": {"cuda": 10},
    "microcircuit, constant input": {"cpu": 400},
    "fly brain, drawn": {"cpu": 600, "cuda": 4},
}
#: Targets on a GPU over the time of another network.
RATIOS = {
    "balanced, plastic": ("balanced, 11 250 neurons", 2.0),
    "COBA, 16 × 4 000 neurons": ("COBA, 4 000 neurons", 2.0),
}
_BATCH = 16
#: Blocks of a network of the batch on a GPU: all 16 run at once if it has at least 128 multiprocessors.
_BLOCKS = 8


def cases(sizes: list[int], edges: Path | None, platform: str) -> Iterator[tuple[str, Case]]:
    """Yield the names and the cases to measure."""
    for name, make in (("COBA", coba), ("CUBA", cuba)):
        for n in sizes:
            # Each run takes a second or so.
            steps = max(100, min(2_000, 8_000_000 // n)), max(500, min(10_000, 800_000_000 // n))
            yield f"{name}, {spaced(n)} neurons", Case(functools.partial(make, n), steps)
    blocks = _BLOCKS if platform == "cuda" else None
    yield f"COBA, {_BATCH} × 4 000 neurons", Case(functools.partial(coba, 4_000, blocks=blocks), (500, 10_000), _BATCH)
    yield "microcircuit, Poisson input", Case(microcircuit, (1_000, 10_000))
    yield "balanced, 11 250 neurons", Case(functools.partial(plastic_network, plastic=False), (200, 10_000))
    yield "balanced, plastic", Case(plastic_network, (200, 10_000))
    yield "microcircuit, constant input", Case(functools.partial(microcircuit, noise=False), (1_000, 10_000))
    what = "drawn" if edges is None else edges.name
    yield f"fly brain, {what}", Case(functools.partial(fly, edges=edges), (2_000, 10_000))


def measure(name: str, case: Case, platform: str, rounds: int) -> tuple[dict[str, Any], list[float], list[Mark]]:
    """Return what a run is and took, seconds a step in each round, and what must hold."""
    steps = case.steps[platform == "cuda"]
    run = Run(case.make, steps, case.batch)
    seconds = run.time(rounds)
    median = summary({name: seconds})[name]["median"]
    target = TARGETS.get(name, {}).get(platform)
    marks = [] if target is None else [Mark(f"{name} ({platform})", median, target, "us")]
    described = run.described() | {"real time factor": median / (STEP * 1e3), "rates in Hz": run.rates()}
    print_cells(f"{name} ({platform})", {f"{median:.4g} µs a step": cells_of(described)})
    return described, seconds, marks


def cells_of(described: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a model's row in a table."""
    megabytes, seconds = described["megabytes"], described["seconds"]
    return {
        "wall time / biological time": f"{described['real time factor']:.3g}",
        "build, s": f"{seconds['build']:.3g}",
        "first call, s": f"{seconds['first call']:.3g}",
        "network, MB": f"{megabytes['network']:.4g}",
        "peak, MB": f"{megabytes['peak']:.4g}",
        "rates, Hz": ", ".join(f"{group} {rate:.3g}" for group, rate in described["rates in Hz"].items()),
        "driven by": described["drive"],
    }


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="models whose names begin with this")
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[4_000, 400_000], metavar="N", help="neurons of COBA and CUBA"
    )
    parser.add_argument("--edges", type=Path, metavar="FILE", help="the fly's edge list: .csv, .csv.gz or .parquet")
    options = parse(parser)
    check(parser, options)
    holds = True
    for platform in options.platforms:
        found, times, marks = {}, {}, []
        load = [os.getloadavg()[0]]
        with on_device(platform):
            for name, case in cases(options.sizes, options.edges, platform):
                if name.startswith(tuple(options.only)):
                    try:
                        found[name], times[name], held = measure(name, case, platform, options.rounds)
                    except EdgesError as error:
                        parser.error(f"--edges {error}")
                    marks += held
        if platform == "cuda":
            both = {name: pair for name, pair in RATIOS.items() if {name, pair[0]} <= times.keys()}
            marks += [
                Mark(f"{name}: over {other}", ratio(times, name, other), most) for name, (other, most) in both.items()
            ]
        load.append(os.getloadavg()[0])
        print(f"\nload of the machine before and after: {load[0]:.2f}, {load[1]:.2f}")
        holds = print_marks(marks) and holds if marks else holds
        if options.out is not None:
            described = machine()
            content = {
                "machine": described,
                "load": load,
                "networks": found,
                "tables": {"network": {name: cells_of(row) for name, row in found.items()}},
                "microseconds": {"A step of 0.1 ms": summary(times)},
                "marks": [mark.as_dict() for mark in marks],
            }
            print("written:", write_json(options.out, f"networks-{slug(described, platform)}", content))
    return 0 if holds else 1


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with an error if an option names no model, or a size or a file that cannot be."""
    if min(options.sizes) < 100:
        parser.error(f"--sizes: {min(options.sizes)}; allowed: at least 100 neurons")
    if options.edges is not None and not options.edges.is_file():
        parser.error(f"--edges {options.edges}: there is no such file")
    names = [name for name, _ in cases(options.sizes, options.edges, "cpu")]
    for start in options.only:
        if not any(name.startswith(start) for name in names):
            parser.error(f"--only {start!r}: no model's name begins with it; there are {names}")


if __name__ == "__main__":
    sys.exit(main())
