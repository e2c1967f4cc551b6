"""Statistics of the cortical microcircuit at a tenth of its size, ours beside NEST's.

Each seed has synapses, initial potentials and Poisson input of its own, and NEST gets our synapses and potentials, so
that the two differ by the input alone. 500 ms are dropped. `--rounds` is the number of seeds. What must hold with at
least five: over the seeds, no population's mean difference is further from 0 than four of its standard errors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import _nest_network
import jax
import numpy as np
from _harness import Mark, arguments, machine, parse, print_cells, print_marks, slug, write_json
from _network_models import NAMES, STEP, Model, microcircuit
from _network_runs import on_device
from _spike_statistics import Statistics, Trains, statistics_of

from xlakernel.sparse.networks import Record

_SCALE, _DROPPED, _ROOM = 0.1, 5_000, 2_000_000
OURS, NEST = "ours", "NEST"
#: The largest difference between means in standard errors, and the seeds from which on they are known well enough.
LIMIT, _ENOUGH = 4.0, 5
_UNITS = {"rate": ", Hz", "irregularity": ", CV of intervals", "correlation": " of counts, 1e-3"}
_ERRORS = "difference, standard errors"


def in_ours(seeds: int, steps: int) -> Iterator[tuple[Model, np.ndarray]]:
    """Yield the model of each seed, and `Statistics` of its populations, ``(8, 3)``."""

    def run(network: Any, state: Any, parameters: Any, inputs: Any, key: jax.Array) -> Any:
        state, _ = network.run(state, parameters, key, steps=_DROPPED, inputs=inputs)
        return network.run(state, parameters, key, steps=steps, inputs=inputs, record=Record(spikes=_ROOM))[1].spikes

    compiled = jax.jit(run)
    for seed in range(1, seeds + 1):
        model = microcircuit(seed, scale=_SCALE, keep=True)
        state = model.network.initial(model.neurons)
        spikes = compiled(model.network, state, model.parameters, model.inputs, jax.random.key(seed))
        total = int(spikes.total)
        if total > _ROOM:
            raise RuntimeError(f"{total} spikes; there is room for {_ROOM}: use fewer seconds")
        yield model, by_population(model, np.asarray(spikes.step[:total]), np.asarray(spikes.neuron[:total]), steps)


def in_nest(model: Model, seed: int, steps: int) -> np.ndarray:
    """Return `Statistics` of the populations in NEST with one thread, ``(8, 3)``."""
    with _nest_network.NestNetwork(model, _nest_network.MICROCIRCUIT, threads=1, seed=seed, record=True) as nest:
        nest.run(_DROPPED + steps)
        step, neuron = nest.spikes()
    # Its first step ends at 0.1 ms, and ours has the number 0.
    return by_population(model, step - 1, neuron, steps)


def by_population(model: Model, step: np.ndarray, neuron: np.ndarray, steps: int) -> np.ndarray:
    """Return the statistics of the spikes after the dropped steps, population by population."""
    counted = (step >= _DROPPED) & (step < _DROPPED + steps)
    time, neuron = (step[counted] - _DROPPED) * STEP, neuron[counted]
    group, sizes = model.groups[neuron], np.bincount(model.groups)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    return np.array(
        [
            statistics_of(Trains(time[group == k], neuron[group == k] - edges[k], int(size), steps * STEP))
            for k, size in enumerate(sizes)
        ]
    )


def compare(ours: np.ndarray, theirs: np.ndarray | None) -> tuple[dict[str, Any], list[Mark]]:
    """Return means and deviations over seeds, and what must hold; values are ``(seeds, 8, 3)``."""
    described: dict[str, Any] = {}
    marks = []
    for number, quantity in enumerate(Statistics._fields):
        found = {OURS: ours[..., number]} | ({} if theirs is None else {NEST: theirs[..., number]})
        rows: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
        for who, values in found.items():
            for name, mean, deviation in zip(NAMES, values.mean(0), values.std(0, ddof=1), strict=True):
                rows[name][who] = {"mean": float(mean), "deviation": float(deviation)}
        largest = None
        if theirs is not None:
            difference = ours[..., number] - theirs[..., number]
            error = difference.std(0, ddof=1) / math.sqrt(len(difference))
            for name, value in zip(NAMES, difference.mean(0) / error, strict=True):
                rows[name][_ERRORS] = float(value)
            largest = float(np.max(np.abs(difference.mean(0) / error)))
        described[quantity] = rows
        if len(ours) >= _ENOUGH:
            marks.append(Mark(f"{quantity}: largest difference from NEST, in standard errors", largest, LIMIT, ""))
    return described, marks


def tables_of(described: dict[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    """Return a table of each quantity, with the mean and the standard deviation over seeds."""
    tables = {}
    for quantity, rows in described.items():
        factor = 1e3 if quantity == "correlation" else 1
        table: dict[str, dict[str, str]] = {}
        for name, row in rows.items():
            cells = {
                who: f"{value['mean'] * factor:.3f} ± {value['deviation'] * factor:.3f}"
                for who, value in row.items()
                if isinstance(value, dict)
            }
            if _ERRORS in row:
                cells[_ERRORS] = f"{row[_ERRORS]:.2f}"
            table[name] = cells
        tables[f"{quantity}{_UNITS[quantity]}"] = table
    return tables


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = arguments(__doc__)
    parser.set_defaults(rounds=10)
    parser.add_argument("--seconds", type=float, default=10.0, help="biological time of a seed (10)")
    options = parse(parser)
    steps = round((1.0 if options.rounds == 3 else options.seconds) * 1e3 / STEP)
    holds, of_nest = True, {}
    for platform in options.platforms:
        ours = []
        with on_device(platform):
            for seed, (model, found) in enumerate(in_ours(options.rounds, steps), 1):
                ours.append(found)
                if seed not in of_nest and _nest_network.is_installed():
                    of_nest[seed] = in_nest(model, seed, steps)
                print(f"seed {seed} of {options.rounds} ({platform})", flush=True)
        theirs = np.array(list(of_nest.values())) if of_nest else None
        described, marks = compare(np.array(ours), theirs)
        tables = tables_of(described)
        for title, rows in tables.items():
            print_cells(title, rows)
        holds = print_marks(marks) and holds if marks else holds
        if options.out is not None:
            hardware = machine()
            content = {
                "machine": hardware,
                "seeds": options.rounds,
                "biological seconds": steps * STEP * 1e-3,
                "statistics": described,
                "tables": tables,
                "microseconds": {},
                "marks": [mark.as_dict() for mark in marks],
            }
            print("written:", write_json(options.out, f"network_statistics-{slug(hardware, platform)}", content))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
