"""A network of spiking neurons, run by one native call, for the command ``xlakernel demo``.

The network is COBA, a benchmark by Brette et al. (2007) after Vogels and Abbott (2005): leaky integrate-and-fire
neurons, which are connected at random and act by conductances. Four of five neurons are excitatory. A constant current,
as in Vogels et al. (2011), keeps the network active. The weights are inversely proportional to the number of neurons,
so that the mean conductances do not depend on this number.

References:
  Vogels and Abbott (2005), J. Neurosci. 25:10786, doi:10.1523/JNEUROSCI.3508-05.2005
  Brette et al. (2007), J. Comput. Neurosci. 23:349, doi:10.1007/s10827-007-0038-6
  Vogels et al. (2011), Science 334:1569, doi:10.1126/science.1211095
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numba
import numpy as np

from ..formats.matrices import CSR
from .model.populations import Population
from .model.projections import Projection
from .model.recording import Record
from .network import Network

STEP = 0.1  # ms
DENSITY = 0.02  # the probability of a connection
REFRACTORY = 50  # steps

_F = np.float32
# Potentials in mV above rest; the current in mV, divided by the leak conductance.
_THRESHOLD, _RESET, _EXCITATORY, _INHIBITORY, _CURRENT = _F(10), _F(0), _F(60), _F(-20), _F(20)
# Time constants of 20, 5 and 10 ms.
_RATE, _DECAY_EXCITATORY, _DECAY_INHIBITORY = _F(STEP / 20), _F(np.exp(-STEP / 5)), _F(np.exp(-STEP / 10))
_ONE = _F(1)
_WEIGHTS = {"excitatory": 0.6, "inhibitory": 6.7}  # leak conductances, with 4000 neurons

# The bit of each dot in a character of Unicode's Braille patterns.
_DOTS = np.array([[0, 3], [1, 4], [2, 5], [6, 7]])
_ROWS, _COLUMNS = 18, 76  # characters of a raster


class Neuron(NamedTuple):
    """The state of one neuron, or of all."""

    v: Any
    excitatory: Any
    inhibitory: Any
    refractory: Any


@numba.njit(cache=True)  # type: ignore[untyped-decorator]  # Numba has no types
def integrate(state: Any, arrived: Any, p: Any, rng: Any) -> Any:
    """Advance a neuron by one step of backward Euler, which is stable for all conductances."""
    excitatory = _DECAY_EXCITATORY * state.excitatory + arrived.excitatory
    inhibitory = _DECAY_INHIBITORY * state.inhibitory + arrived.inhibitory
    drive = _CURRENT + _EXCITATORY * excitatory + _INHIBITORY * inhibitory
    v = (state.v + _RATE * drive) / (_ONE + _RATE * (_ONE + excitatory + inhibitory))
    if state.refractory > 0:
        v = _RESET
    fired = v >= _THRESHOLD
    refractory = REFRACTORY if fired else max(state.refractory - 1, 0)
    return Neuron(_RESET if fired else v, excitatory, inhibitory, np.int32(refractory)), fired


def build(neurons: int, key: jax.Array) -> tuple[Network, dict[str, Neuron]]:
    """Return the network, and initial values of its neurons near their working point."""
    sizes = {"excitatory": neurons * 4 // 5, "inhibitory": neurons - neurons * 4 // 5}
    keys = iter(jax.random.split(key, 8))
    projections = [
        Projection(
            CSR.random(
                next(keys), (sizes[source], sizes[target]), density=DENSITY, weights=_F(weight * 4000 / neurons)
            ),
            delay=1,
            receptor=source,
            source=source,
            target=target,
        )
        for source, weight in _WEIGHTS.items()
        for target in sizes
    ]
    begin = {}
    for name, size in sizes.items():
        v, excitatory, inhibitory = jax.random.normal(next(keys), (3, size))
        begin[name] = Neuron(
            (5 * v - 5).clip(max=10),
            (4 + 1.5 * excitatory).clip(0),
            (20 + 12 * inhibitory).clip(0),
            np.zeros(size, np.int32),
        )
    return Network({name: Population(integrate, size) for name, size in sizes.items()}, projections), begin


def simulate(neurons: int, seconds: float, seed: int, encoding: str) -> Iterator[str]:
    """Simulate the network on the CPU; yield text about its speed and its rates, and the spikes of some neurons.

    Args:
      neurons: at least 100.
      seconds: the simulated time, at least a step.
      seed: of connections and initial state.
      encoding: of the output.
    """
    steps = round(seconds * 1e3 / STEP)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        network, begin = build(neurons, jax.random.key(seed))
        state = network.initial(begin)
        record = Record(counts=True, spikes=neurons * (steps // REFRACTORY + 1))  # at most one in each period
        yield f"{network}, {steps} steps of {STEP} ms; compiling"
        times = [time.perf_counter()]
        compiled = jax.jit(lambda state: network.run(state, steps=steps, record=record)[1]).lower(state).compile()
        times.append(time.perf_counter())
        recording = jax.block_until_ready(compiled(state))
        times.append(time.perf_counter())
    compilation, run = np.diff(times)
    seconds = steps * STEP * 1e-3
    yield f"compiled in {compilation:.1f} s, run in {run:.2g} s by one native call:"
    yield f"{run / steps * 1e6:.1f} µs a step, {run / seconds:.2g} of real time"
    sizes = [begin[name].v.size for name in begin]
    rates = np.asarray(recording.counts).sum(0) / sizes / seconds
    yield ", ".join(f"{name} {rate:.1f} spikes/s" for name, rate in zip(begin, rates, strict=True))
    total = int(recording.spikes.total)
    step, neuron = (np.asarray(values)[:total].astype(np.int64) for values in recording.spikes[:2])
    chosen = np.linspace(0, neurons - 1, len(_DOTS) * _ROWS).astype(int)
    place = np.searchsorted(chosen, neuron)
    is_shown = chosen[place] == neuron
    yield f"spikes of {chosen.size} neurons, from 0 to {steps * STEP:g} ms:"
    yield raster(step[is_shown] / steps, place[is_shown] / chosen.size, encoding)


def raster(x: Any, y: Any, encoding: str) -> str:
    """Return points as text.

    Args:
      x: (points,), from the left at 0 to the right at 1.
      y: (points,), from the bottom at 0 to the top at 1.
      encoding: of the output. Without Braille patterns, a full stop stands for each character with points.
    """
    height, width = _DOTS.shape
    points = np.zeros((_ROWS * height, _COLUMNS * width), bool)
    points[(_ROWS * height - 1 - (y * _ROWS * height).astype(int), (x * _COLUMNS * width).astype(int))] = True
    cells = points.reshape(_ROWS, height, _COLUMNS, width)
    patterns = (cells * (1 << _DOTS)[:, None, :]).sum((1, 3))
    lines = ["".join(chr(0x2800 + pattern) for pattern in row) for row in patterns]
    try:
        "\u2800".encode(encoding)
    except UnicodeEncodeError:
        lines = ["".join(" ."[bool(pattern)] for pattern in row) for row in patterns]
    return "\n".join(lines)
