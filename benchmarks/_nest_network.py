"""The networks of the benchmark in NEST, with the same connections, weights, delays and initial states.

NEST 3.10 integrates COBA's neurons with an adaptive Runge-Kutta method, ours with Euler's; those of CUBA and of the
microcircuit are integrated exactly by both.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from _nest_worker import REPLY
from _network_models import STEP, Model

from xlakernel.sparse.networks import Projection


class Neuron(NamedTuple):
    """A neuron of NEST.

    Attributes:
      model: its name.
      parameters: its parameters.
      weight: by receptor of ours, the weight in NEST of one unit; NEST tells excitation from inhibition by the sign.
      state: by field of our state apart from ``v`` and ``wait``, the name in NEST and the value of one unit.
    """

    model: str
    parameters: Mapping[str, float]
    weight: Mapping[str, float]
    state: Mapping[str, tuple[str, float]]


_BRETTE = {"V_th": -50.0, "V_reset": -60.0, "C_m": 200.0, "t_ref": 5.0, "tau_syn_ex": 5.0, "tau_syn_in": 10.0}
_LEAK = 10.0  # nS
COBA = Neuron(
    "iaf_cond_exp",
    _BRETTE | {"E_L": -60.0, "g_L": _LEAK, "E_ex": 0.0, "E_in": -80.0},
    {"excitation": _LEAK, "inhibition": -_LEAK},
    {"excitation": ("g_ex", _LEAK), "inhibition": ("g_in", _LEAK)},
)
CUBA = Neuron("iaf_psc_exp", _BRETTE | {"E_L": -49.0, "tau_m": 20.0}, {"excitation": 1.0, "inhibition": 1.0}, {})
MICROCIRCUIT = Neuron(
    "iaf_psc_exp",
    {"E_L": -65.0, "V_th": -50.0, "V_reset": -65.0, "C_m": 250.0, "tau_m": 10.0, "t_ref": 2.0}
    | {"tau_syn_ex": 0.5, "tau_syn_in": 0.5},
    {"current": 1.0},
    {},
)


def is_installed() -> bool:
    """Return True if NEST can be imported."""
    return importlib.util.find_spec("nest") is not None


class NestNetwork:
    """A network in NEST, in a process of its own; a context manager that ends it.

    Args:
      model: ours, with its projections.
      neuron: that of NEST.
      threads: the number of threads.
      seed: of the random numbers.
      record: True to record all spikes.

    Attributes:
      built: the seconds of building.

    Raises:
      RuntimeError: if the process ended.
    """

    def __init__(self, model: Model, neuron: Neuron, *, threads: int, seed: int = 1, record: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        network = {
            "step": STEP,
            "threads": threads,
            "seed": seed,
            "record": record,
            "model": neuron.model,
            "size": model.network.size,
            "parameters": dict(neuron.parameters),
            "state": _saved(folder, "state", _initial(model, neuron)),
            "projections": [
                _saved(folder, f"projection-{number}", _synapses(projection, neuron.weight[projection.receptor]))
                for number, projection in enumerate(model.projections)
            ],
            "drives": _drives(model),
        }
        (folder / "network.json").write_text(json.dumps(network), "utf-8")
        worker = Path(__file__).with_name("_nest_worker.py")
        self._process = subprocess.Popen(
            [sys.executable, str(worker), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.built: float = self._answer()["seconds"]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> NestNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(self, steps: int) -> tuple[float, int]:
        """Run for some steps of 0.1 ms; return the seconds that NEST took, and the number of spikes."""
        answer = self._ask({"run": round(steps * STEP, 3)})
        return answer["seconds"], answer["spikes"]

    def spikes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps and the neurons of all spikes so far."""
        path = Path(self._folder.name) / "spikes.npz"
        self._ask({"spikes": str(path)})
        with np.load(path) as events:
            return np.rint(events["times"] / STEP).astype(int), events["senders"] - 1

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # NEST writes there too
            if line.startswith(REPLY):
                answer: dict[str, Any] = json.loads(line.removeprefix(REPLY))
                return answer
        raise RuntimeError(f"NEST's process ended with the status {self._process.wait()}; its output is above.")


def _saved(folder: Path, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    files = {key: f"{name}-{key}.npy" for key in arrays}
    for key, file in files.items():
        np.save(folder / file, arrays[key])
    return files


def _initial(model: Model, neuron: Neuron) -> dict[str, np.ndarray]:
    state = {"V_m": np.asarray(model.neurons.v, float) + neuron.parameters["E_L"]}
    for field, (name, unit) in neuron.state.items():
        state[name] = np.asarray(getattr(model.neurons, field), float) * unit
    drive = getattr(model.parameters, "drive", None)
    if drive is not None:
        # The current that raises the potential by so much in a step, with 10 ms and 250 pF.
        gain = neuron.parameters["tau_m"] / neuron.parameters["C_m"] * -math.expm1(-STEP / neuron.parameters["tau_m"])
        state["I_e"] = np.broadcast_to(np.asarray(drive, float) / gain, model.network.size)
    return state


def _synapses(projection: Projection, unit: float) -> dict[str, np.ndarray]:
    """Return the synapses in NEST's units; its neurons are numbered from 1."""
    matrix = projection.matrix
    indptr = np.asarray(matrix.indptr)
    first = projection.source.start if isinstance(projection.source, slice) else 0
    source = np.repeat(np.arange(indptr.size - 1), np.diff(indptr)) + first
    weight, delay = (np.asarray(jax.device_get(x), float) for x in (matrix.data, projection.delay))
    return {
        "source": source + 1,
        "target": np.asarray(matrix.indices, int) + 1,
        "weight": np.broadcast_to(weight * unit, source.shape),
        "delay": np.broadcast_to(np.round(delay * STEP, 3), source.shape),
    }


def _drives(model: Model) -> list[dict[str, float]]:
    """Return the Poisson input of each group: its neurons, its rate in Hz, weight and delay."""
    if model.inputs is None:
        return []
    rates = np.asarray(model.inputs.spikes.mean, float) / (STEP * 1e-3)
    found = []
    for group in range(len(model.names)):
        own = np.flatnonzero(model.groups == group)
        first, stop = int(own[0]), int(own[-1]) + 1
        weight = float(model.parameters.weight)
        found.append({"first": first, "stop": stop, "rate": float(rates[first]), "weight": weight, "delay": 1.5})
    return found
