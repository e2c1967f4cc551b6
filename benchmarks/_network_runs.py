"""Timed runs of a `Model`, alone or several side by side, with their memory and rates."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _network_models import STEP, Model

from xlakernel.sparse.networks import Network, NetworkState, Record, Recording


def on_device(platform: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX's default device is the first one of the platform."""
    return jax.default_device(jax.local_devices(backend=platform)[0])


def spaced(n: int) -> str:
    """Return a number with spaces between thousands."""
    return f"{n:,}".replace(",", " ")


class Run:
    """Runs of a model, each of which begins with the state after the first one.

    Args:
      make: a function that returns the model; with a batch, it takes a seed.
      steps: the steps of a run.
      batch: the number of networks, of other seeds, that run under `jax.vmap`; None for one network alone.

    Attributes:
      model: the model; with a batch, that of the last seed.
      seconds: the times of building, and of the first call, which compiles.
    """

    def __init__(self, make: Callable[..., Model], steps: int, batch: int | None = None) -> None:
        _reset_peak()
        start = time.perf_counter()
        if batch is None:
            self.model = make()
            self.network, self.state = self.model.network, self.model.network.initial(self.model.neurons)
        else:
            models = [make(seed=seed) for seed in range(1, batch + 1)]
            self.model = models[-1]
            self.network = _stacked([model.network for model in models])
            self.state = _stacked([model.network.initial(model.neurons) for model in models])
        jax.block_until_ready(self.network)
        self.steps, self.batch = steps, batch
        self.seconds = {"build": time.perf_counter() - start}

    def time(self, rounds: int) -> list[float]:
        """Return the seconds of a step in each round."""
        run = self._compiled(None)
        start = time.perf_counter()
        self.state, _ = jax.block_until_ready(run(self.network, self.state))
        self.seconds["first call"] = time.perf_counter() - start
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            jax.block_until_ready(run(self.network, self.state))
            seconds.append((time.perf_counter() - start) / self.steps)
        return seconds

    def rates(self) -> dict[str, float]:
        """Return the mean rate of each group in Hz, in the steps of one run."""
        _, recording = self._compiled(Record(counts=self.model.groups))(self.network, self.state)
        spikes = np.asarray(recording.counts).sum(-2).reshape(-1, len(self.model.names)).mean(0)
        rates = spikes / np.bincount(self.model.groups) / (self.steps * STEP * 1e-3)
        return dict(zip(self.model.names, rates.tolist(), strict=True))

    def described(self) -> dict[str, Any]:
        """Return the sizes, the memory and the times of building and compiling."""
        network = self.model.network
        megabytes = {"network": _megabytes(self.network), "state": _megabytes(self.state), "peak": _peak()}
        return {
            "neurons": network.size,
            "synapses": synapses_of(network),
            "networks": self.batch or 1,
            "blocks": network.layout.blocks,
            "steps": self.steps,
            "drive": self.model.drive,
            "megabytes": megabytes,
            "seconds": self.seconds,
        }

    def _compiled(self, record: Record | None) -> Callable[[Network, NetworkState], tuple[NetworkState, Recording]]:
        model = self.model
        key = None if model.inputs is None else jax.random.key(0)

        def run(network: Network, state: NetworkState) -> tuple[NetworkState, Recording]:
            return network.run(
                state,
                model.parameters,
                key,
                steps=self.steps,
                inputs=model.inputs,
                plasticity=model.plasticity,
                record=record,
            )

        return jax.jit(run if self.batch is None else jax.vmap(run))


def synapses_of(network: Network) -> int:
    """Return the number of synapses, plastic ones included."""
    words = 2 if network.layout.wide else 1
    return network.entries.size // words + network.tables.entries.size // 2


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)


def _megabytes(tree: Any) -> float:
    return sum(array.nbytes for array in jax.tree.leaves(tree)) / 1e6


_STATUS = Path("/proc/self/status")


def _reset_peak() -> None:
    """Have Linux forget the largest memory of this process so far, where it can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def _peak() -> float:
    """Return the peak of memory in MB: the device's so far, or on the CPU the process's since `_reset_peak`."""
    statistics = jnp.zeros(1).device.memory_stats()
    if statistics is not None:
        return float(statistics["peak_bytes_in_use"]) / 1e6
    lines = _STATUS.read_text("ascii").splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")), float("nan"))
