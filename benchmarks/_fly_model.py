"""A network of the size of a fly's brain, for the benchmark: drawn at random, or with the connections of an edge list.

The neuron and its parameters are those of Shiu et al., "A Drosophila computational brain model reveals sensorimotor
processing", Nature 634 (2024), with the code at github.com/philshiu/Drosophila_brain_model: 138 639 neurons of the
FlyWire connectome's version 783 and 15 091 983 connections. A connection of several synapses has their number, negative
for an inhibitory source, as its weight. Sensory neurons are driven by Poisson spikes, each of which makes them fire.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
from _fly_edges import Edges, read_edges
from _network_models import STEP, CurrentParameters, CurrentState, External, Model, current_parameters

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Poisson, Population, Projection

NEURONS, CONNECTIONS = 138_639, 15_091_983
_SYNAPSE = 0.275  # mV
_DELAY, _REFRACTORY = 1.8, 2.2  # ms
#: The rise of the potential by a spike from outside, in mV: that of 250 synapses at once.
_STIMULUS = 250 * _SYNAPSE


class Degrees(NamedTuple):
    """The distributions of degrees and weights of `draw_edges`.

    Attributes:
      deviation: the standard deviation of the logarithm of degrees.
      correlation: of a neuron's in- and out-degree.
      scale: that of the number of synapses of a connection.
      most: the largest number of synapses of a connection.
      inhibitory: the share of inhibitory neurons.
    """

    deviation: float = 1.0
    correlation: float = 0.76
    scale: float = 3.06
    most: int = 2000
    inhibitory: float = 0.4


_FLY = Degrees()


def draw_edges(seed: int, n: int = NEURONS, connections: int = CONNECTIONS, degrees: Degrees = _FLY) -> Edges:
    """Draw connections whose degrees and numbers of synapses have heavy tails.

    Each connection has a source and a target of its own, drawn with probabilities proportional to ``exp(s * x)`` and
    ``exp(s * y)``. The standard normal numbers x and y of a neuron have the correlation for which that of log-normal
    degrees is R, ``log(1 + R * (exp(s**2) - 1)) / s**2``. R = 0.76 is that of the degrees of intrinsic neurons in
    Dorkenwald et al., "Neuronal wiring diagram of an adult brain", Nature 634 (2024), figure 3. Cirunay et al.,
    "Scale-free behavior of weight distributions of connectomes" (arXiv 2407.17220, 2024), find log-normal strengths of
    nodes in the fly, and a power law with an exponent of about 3 for weights. Here a connection has K synapses with
    ``P(K >= k) = (1 + (k - 1) / scale)**-2`` and a mean of 3.6: 54.5 million synapses on 15.09 million connections.

    s = 1 is an assumption, by which 95 % of the degrees are between 1/7 and 7 times the median, and so are the share of
    inhibitory neurons and the largest number of synapses.

    Args:
      seed: of the random numbers.
      n: the number of neurons.
      connections: the number of connections; several may have the same source and target.
      degrees: the parameters of the distributions.
    """
    rng = np.random.default_rng(seed)
    variance = degrees.deviation**2
    correlation = np.log1p(degrees.correlation * np.expm1(variance)) / variance
    x, other = rng.standard_normal((2, n))
    y = correlation * x + np.sqrt(1 - correlation**2) * other
    counts = [rng.multinomial(connections, _shares(degrees.deviation * z)) for z in (x, y)]
    source, target = (np.repeat(np.arange(n, dtype=np.int32), each) for each in counts)
    rng.shuffle(target)
    synapses = 1 + degrees.scale * (1 / np.sqrt(1 - rng.random(connections, np.float32)) - 1)
    sign = np.where(rng.random(n) < degrees.inhibitory, -1, 1)
    return Edges(n, source, target, np.minimum(synapses, degrees.most).astype(np.int32) * sign[source])


def _shares(logarithms: np.ndarray) -> np.ndarray:
    weights = np.exp(logarithms)
    return weights / weights.sum()


@numba.njit
def _integrate(state, arrived, kick, p):
    current = state.current
    fired = False
    v = state.v
    if state.wait == 0:
        v = state.v * p.leak + current * p.gain
        current = current * p.decay
        fired = v > p.threshold
    current += arrived
    v += kick
    wait = max(state.wait - 1, 0)
    if fired:
        v = np.float32(0)
        current = np.float32(0)
        wait = p.refractory
    return CurrentState(v, current, wait), fired


@numba.njit
def integrate_fly(state, arrived, p, rng):
    """Integrate a neuron for one step; potential and current rest in the refractory time, and a spike resets both.

    The current is in mV. What arrives in the step of a spike is lost, as in Brian 2, where the reset is last.
    """
    return _integrate(state, p.weight * arrived.synapses, np.float32(0), p)


@numba.njit
def integrate_driven(state, arrived, p, rng, external):
    """Integrate a sensory neuron, to whose potential spikes from outside add, for one step."""
    kick = np.float32(_STIMULUS) * np.float32(external.spikes)
    return _integrate(state, p.weight * arrived.synapses, kick, p)


def fly(
    seed: int = 1,
    *,
    edges: Path | None = None,
    driven: int = 100,
    rate: float = 150.0,
    n: int = NEURONS,
    connections: int = CONNECTIONS,
    blocks: int | None = None,
) -> Model:
    """Return the network, with sensory neurons and the others as its populations.

    Args:
      seed: of the connections and the sensory neurons.
      edges: an edge list for `read_edges`, whose connections take the place of drawn ones.
      driven: the number of sensory neurons, chosen at random from those that have a target.
      rate: that of the spikes from outside of a sensory neuron, in Hz.
      n, connections: the size of a drawn network.
      blocks: those of `Network`.
    """
    found = draw_edges(seed, n, connections) if edges is None else read_edges(edges)
    sources = np.unique(found.source)
    chosen = np.random.default_rng(seed).choice(sources, min(driven, sources.size), replace=False)
    sizes = {"sensory": chosen.size, "others": found.neurons - chosen.size}
    functions = {"sensory": integrate_driven, "others": integrate_fly}
    network = Network(
        {name: Population(functions[name], size) for name, size in sizes.items()},
        [Projection(_matrix(_renumbered(found, chosen)), round(_DELAY / STEP), "synapses")],
        blocks=blocks,
    )
    # With the membrane's time constant as its capacity, a current is in mV.
    constants = current_parameters(tau=20, tau_synapse=5, capacity=20, threshold=7, refractory=_REFRACTORY)
    parameters = constants._replace(weight=jnp.float32(_SYNAPSE))
    by_population: dict[str, CurrentParameters] = {
        "sensory": parameters._replace(refractory=jnp.int32(0)),
        "others": parameters,
    }
    return Model(
        network,
        by_population,
        {name: CurrentState(0.0, 0.0, 0) for name in sizes},
        np.repeat(np.arange(2), list(sizes.values())),
        {"sensory": External(Poisson(rate * STEP * 1e-3))},
        names=tuple(sizes),
        drive=f"Poisson spikes at {rate:g} Hz to {chosen.size} sensory neurons",
    )


def _renumbered(edges: Edges, first: np.ndarray) -> Edges:
    """Return edges in which the neurons *first* have the first numbers."""
    is_first = np.zeros(edges.neurons, bool)
    is_first[first] = True
    number = np.empty(edges.neurons, np.int32)
    number[np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])] = np.arange(edges.neurons)
    return edges._replace(source=number[edges.source], target=number[edges.target])


def _matrix(edges: Edges) -> CSR:
    order = np.argsort(edges.source, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(edges.source, minlength=edges.neurons))])
    weights: list[jax.Array] = [
        jnp.asarray(edges.synapses[order], jnp.float32),
        jnp.asarray(edges.target[order], jnp.int32),
        jnp.asarray(indptr, jnp.int32),
    ]
    return CSR(tuple(weights), shape=(edges.neurons, edges.neurons), check=False)
