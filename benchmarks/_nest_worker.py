"""A network in NEST, in a process of its own: with jaxlib in the same process, NEST 3.10 crashed.

    python _nest_worker.py FOLDER

FOLDER has the network: ``network.json`` and, as NumPy files, the arrays that it names. Commands come by standard input,
a line of JSON each, and are answered by a line that begins with `REPLY`: ``{"run": ms}`` by the seconds and the spikes,
``{"spikes": FILE}`` when the spikes are in the file. The first answer has the seconds of building.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

REPLY = "reply: "


def build(folder: Path, network: dict[str, Any]) -> Any:
    """Build the network; return the recorder of spikes, or None."""
    import nest

    nest.verbosity = nest.VerbosityLevel.ERROR
    nest.ResetKernel()
    nest.resolution, nest.local_num_threads, nest.rng_seed = network["step"], network["threads"], network["seed"]
    neurons = nest.Create(network["model"], network["size"], params=network["parameters"])
    neurons.set({name: np.load(folder / file) for name, file in network["state"].items()})
    for projection in network["projections"]:
        arrays = {name: np.load(folder / file) for name, file in projection.items()}
        weights = {name: arrays[name] for name in ("weight", "delay")}
        nest.Connect(arrays["source"], arrays["target"], "one_to_one", weights)
    for drive in network["drives"]:
        source = nest.Create("poisson_generator", params={"rate": drive["rate"]})
        targets = neurons[drive["first"] : drive["stop"]]
        nest.Connect(source, targets, syn_spec={"weight": drive["weight"], "delay": drive["delay"]})
    recorder = nest.Create("spike_recorder") if network["record"] else None
    if recorder is not None:
        nest.Connect(neurons, recorder, syn_spec={"delay": network["step"]})
    nest.Prepare()
    return recorder


def answer(recorder: Any, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out a command."""
    import nest

    if "run" in command:
        start = time.perf_counter()
        nest.Run(command["run"])
        return {"seconds": time.perf_counter() - start, "spikes": int(nest.local_spike_counter)}
    events = recorder.events
    np.savez(command["spikes"], times=events["times"], senders=events["senders"])
    return {}


def main() -> int:
    """Build the network and answer commands until there are no more."""
    folder = Path(sys.argv[1])
    start = time.perf_counter()
    recorder = build(folder, json.loads((folder / "network.json").read_text("utf-8")))
    reply({"seconds": time.perf_counter() - start})
    for line in sys.stdin:
        reply(answer(recorder, json.loads(line)))
    return 0


def reply(content: dict[str, Any]) -> None:
    """Write an answer."""
    sys.stdout.write(f"{REPLY}{json.dumps(content)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
