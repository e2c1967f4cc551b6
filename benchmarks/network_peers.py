"""Networks of spiking neurons beside NEST and brainevent: microseconds of a step of 0.1 ms.

NEST (`pip install nest-simulator`) runs on the CPU, with as many threads as the process has cores, and gets exactly our
connections, weights, delays and initial states. brainevent's products of spikes and matrices are in a loop of JAX, with
our neurons in JAX's operations. All run in turn, round by round, each from where its last run ended, and the mean rates
of all neurons tell whether they did the same. A peer that is not installed is not measured, and its mark does not hold.

NEST's threads wait for each other without sleeping: on a machine that does something else, it is slower by orders of
magnitude, so that the load is part of the results.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import _brainevent_network
import _nest_network
import jax
from _brette_models import coba, cuba
from _harness import (
    OURS,
    Mark,
    arguments,
    machine,
    parse,
    print_marks,
    print_table,
    ratio,
    slug,
    summary,
    write_json,
)
from _network_models import STEP, Model, microcircuit
from _network_runs import on_device, spaced

from xlakernel.sparse.networks import NetworkState

NEST, BRAINEVENT = "NEST", "brainevent in lax.scan"


class Case(NamedTuple):
    """A model, its neuron in NEST, the steps of a run on the CPU and on a GPU, and the peers it is compared with."""

    make: Callable[..., Model]
    neuron: _nest_network.Neuron
    steps: tuple[int, int]
    peers: tuple[str, ...]


def cases(sizes: list[int]) -> Iterator[tuple[str, Case]]:
    """Yield the names and the cases to measure."""
    for name, make, neuron in (("COBA", coba, _nest_network.COBA), ("CUBA", cuba, _nest_network.CUBA)):
        for n in sizes:
            steps = max(50, min(2_000, 8_000_000 // n)), max(500, min(10_000, 800_000_000 // n))
            yield (
                f"{name}, {spaced(n)} neurons",
                Case(partial(make, n, keep=True), neuron, steps, (NEST, BRAINEVENT)),
            )
    tenth = partial(microcircuit, scale=0.1, keep=True)
    yield "microcircuit, a tenth", Case(tenth, _nest_network.MICROCIRCUIT, (2_000, 10_000), (NEST,))


class Ours:
    """One call of `Network.run`; like that of each peer, `advance` returns seconds and spikes of a run."""

    def __init__(self, model: Model, steps: int) -> None:
        key = None if model.inputs is None else jax.random.key(0)
        self._run = jax.jit(
            lambda network, state: network.run(state, model.parameters, key, steps=steps, inputs=model.inputs)
        )
        self._network = model.network
        self._state: NetworkState = model.network.initial(model.neurons)

    def advance(self) -> tuple[float, int]:
        start = time.perf_counter()
        self._state, recording = jax.block_until_ready(self._run(self._network, self._state))
        return time.perf_counter() - start, int(recording.spikes.total)


class InBrainevent:
    """A compiled loop over steps."""

    def __init__(self, model: Model, steps: int) -> None:
        self._run, self._carry = _brainevent_network.loop(model, steps)

    def advance(self) -> tuple[float, int]:
        start = time.perf_counter()
        *self._carry, spikes = jax.block_until_ready(self._run(*self._carry))
        return time.perf_counter() - start, int(spikes)


def measure(
    name: str, case: Case, platform: str, rounds: int
) -> tuple[dict[str, list[float]], dict[str, float], list[Mark]]:
    """Return seconds a step round by round, rates in Hz, and what must hold."""
    steps, threads = case.steps[platform == "cuda"], len(os.sched_getaffinity(0))
    model = case.make()
    with contextlib.ExitStack() as running:
        runs: dict[str, Callable[[], tuple[float, int]]] = {OURS: Ours(model, steps).advance}
        if NEST in case.peers and platform == "cpu" and _nest_network.is_installed():
            nest = running.enter_context(_nest_network.NestNetwork(model, case.neuron, threads=threads))
            runs[f"{NEST}, {threads} threads"] = partial(nest.run, steps)
        if BRAINEVENT in case.peers and _brainevent_network.is_installed():
            runs[BRAINEVENT] = InBrainevent(model, steps).advance
        # The first round compiles and warms up.
        rows = [{who: run() for who, run in runs.items()} for _ in range(rounds + 1)][1:]
    seconds = {who: [row[who][0] / steps for row in rows] for who in runs}
    duration = model.network.size * steps * STEP * 1e-3
    rates = {who: statistics.mean(row[who][1] for row in rows) / duration for who in runs}
    marks = []
    for peer in case.peers:
        if peer != NEST or platform == "cpu":
            measured = next((who for who in seconds if who.startswith(peer)), None)
            value = None if measured is None else ratio(seconds, OURS, measured)
            marks.append(Mark(f"{name} ({platform}): over {measured or peer}", value, 1.0))
    return seconds, rates, marks


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[4_000], metavar="N", help="neurons of COBA and CUBA (4000)"
    )
    options = parse(parser)
    if min(options.sizes) < 100:
        parser.error(f"--sizes: {min(options.sizes)}; allowed: at least 100 neurons")
    holds = True
    for platform in options.platforms:
        parts, networks, marks = {}, {}, []
        load = [os.getloadavg()[0]]
        with on_device(platform):
            for name, case in cases(options.sizes):
                if platform == "cuda" and BRAINEVENT not in case.peers:
                    continue
                seconds, rates, found = measure(name, case, platform, options.rounds)
                parts[f"{name}, a step of 0.1 ms"] = summary(seconds)
                factors = {who: statistics.median(values) / (STEP * 1e-3) for who, values in seconds.items()}
                networks[name] = {"real time factor": factors, "mean rate in Hz": rates}
                marks += found
                rows = {who: row | {"Hz": rates[who]} for who, row in summary(seconds).items()}
                print_table(f"{name} ({platform}), µs a step of 0.1 ms", rows)
        load.append(os.getloadavg()[0])
        print(f"\nload of the machine before and after: {load[0]:.2f}, {load[1]:.2f}")
        holds = print_marks(marks) and holds
        if options.out is not None:
            described = machine()
            content = {
                "machine": described,
                "load": load,
                "networks": networks,
                "tables": {
                    "mean rate, Hz": {
                        name: {who: f"{rate:.3f}" for who, rate in row["mean rate in Hz"].items()}
                        for name, row in networks.items()
                    }
                },
                "microseconds": parts,
                "marks": [mark.as_dict() for mark in marks],
            }
            print("written:", write_json(options.out, f"network_peers-{slug(described, platform)}", content))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
