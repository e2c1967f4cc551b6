"""The cortical microcircuit, for the benchmark and the pages of the documentation, and what all models share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Poisson, Population, Projection

#: The step of all models, in ms.
STEP = 0.1


class Drawn(NamedTuple):
    """Synapses between populations: a matrix of ones, and the projection of each entry, ``target * count + source``."""

    indices: jax.Array
    indptr: jax.Array
    pair: jax.Array


def draw(seed: int, sizes: Sequence[int], counts: np.ndarray) -> Drawn:
    """Draw synapses with uniform sources and targets, several of which may connect the same neurons.

    Args:
      seed: of the random numbers.
      sizes: the sizes of the populations.
      counts: the numbers of synapses, ``[target, source]``.
    """
    rng = np.random.default_rng(seed)
    of_source = []
    for source, size in enumerate(sizes):
        each = [rng.multinomial(count, np.full(size, 1 / size)) for count in counts[:, source]]
        of_source.append(np.stack(each, axis=1))
    table = np.concatenate(of_source)
    indptr = np.concatenate([[0], np.cumsum(table.sum(1))])
    pairs = np.arange(len(sizes)) * len(sizes) + np.repeat(np.arange(len(sizes)), sizes)[:, None]
    indices, pair = _targets(
        jax.random.key(seed),
        jnp.asarray(table.reshape(-1), jnp.int32),
        jnp.asarray(pairs.reshape(-1), jnp.uint8),
        jnp.asarray(sizes),
        total=int(indptr[-1]),
    )
    return Drawn(indices, jnp.asarray(indptr, jnp.int32), pair)


@partial(jax.jit, static_argnames="total")
def _targets(
    key: jax.Array, table: jax.Array, pairs: jax.Array, sizes: jax.Array, *, total: int
) -> tuple[jax.Array, jax.Array]:
    pair = jnp.repeat(pairs, table, total_repeat_length=total)
    target = pair // sizes.size
    first = jnp.cumsum(sizes) - sizes
    fraction = jax.random.uniform(key, (total,))
    chosen = jnp.minimum((fraction * sizes[target]).astype(jnp.int32), sizes[target] - 1)
    return first[target] + chosen, pair


# The cortical microcircuit: Potjans and Diesmann, "The cell-type specific cortical microcircuit", Cerebral Cortex 24
# (2014). Populations 23E 23I 4E 4I 5E 5I 6E 6I.
NAMES = ("23E", "23I", "4E", "4I", "5E", "5I", "6E", "6I")
_SIZES = (20683, 5834, 21915, 5479, 4850, 1065, 14395, 2948)
_EXTERNAL = (1600, 1500, 2100, 1900, 2000, 1900, 2900, 2100)
_MEAN_V = (-68.28, -63.16, -63.33, -63.45, -63.11, -61.66, -66.72, -61.43)
_DEVIATION_V = (5.36, 4.57, 4.74, 4.94, 4.94, 4.55, 5.46, 4.48)
#: Mean rates of the populations in Hz, of NEST's simulations.
RATES = (0.943, 3.026, 4.368, 5.882, 7.733, 8.664, 1.096, 7.851)
#: Probabilities of connection, ``[target, source]``.
_PROBABILITIES = np.array(
    [
        [0.1009, 0.1689, 0.0437, 0.0818, 0.0323, 0.0, 0.0076, 0.0],
        [0.1346, 0.1371, 0.0316, 0.0515, 0.0755, 0.0, 0.0042, 0.0],
        [0.0077, 0.0059, 0.0497, 0.135, 0.0067, 0.0003, 0.0453, 0.0],
        [0.0691, 0.0029, 0.0794, 0.1597, 0.0033, 0.0, 0.1057, 0.0],
        [0.1004, 0.0622, 0.0505, 0.0057, 0.0831, 0.3726, 0.0204, 0.0],
        [0.0548, 0.0269, 0.0257, 0.0022, 0.06, 0.3158, 0.0086, 0.0],
        [0.0156, 0.0066, 0.0211, 0.0166, 0.0572, 0.0197, 0.0396, 0.2252],
        [0.0364, 0.001, 0.0034, 0.0005, 0.0277, 0.008, 0.0658, 0.1443],
    ]
)
_WEIGHT, _INHIBITION, _RATE = 87.8, -4.0, 8.0  # pA, relative, Hz of a synapse


class CurrentState(NamedTuple):
    """A leaky integrate-and-fire neuron with an exponential current.

    ``v`` is in mV above rest, ``current`` in pA, ``wait`` the steps left of the refractory time.
    """

    v: jax.Array
    current: jax.Array
    wait: jax.Array


class CurrentParameters(NamedTuple):
    """Constants of the exact integration over one step (Rotter and Diesmann, Biological Cybernetics 81, 1999).

    ``gain`` is in mV per pA of the synaptic current, and ``drive`` the effect of a constant current, in mV.
    """

    leak: jax.Array
    decay: jax.Array
    gain: jax.Array
    threshold: jax.Array
    refractory: jax.Array
    drive: jax.Array
    weight: jax.Array


class External(NamedTuple):
    """The spikes from outside of the network that reach a neuron in a step."""

    spikes: Poisson


def current_parameters(
    *, tau: float, tau_synapse: float, capacity: float, threshold: float, refractory: float
) -> CurrentParameters:
    """Return the constants of a neuron: times in ms, the capacity in pF, the threshold in mV above rest."""
    decay, leak = math.exp(-STEP / tau_synapse), math.exp(-STEP / tau)
    gain = tau_synapse * tau / (tau_synapse - tau) * (decay - leak) / capacity
    numbers = leak, decay, gain, threshold
    return CurrentParameters(*map(jnp.float32, numbers), jnp.int32(round(refractory / STEP)), *[jnp.float32(0)] * 2)


@numba.njit
def integrate_current(state, arrived, p, rng):
    """Integrate a neuron with a constant current for one step."""
    v = np.float32(0) if state.wait > 0 else state.v * p.leak + state.current * p.gain + p.drive
    current = state.current * p.decay + arrived.current
    wait = max(state.wait - 1, 0)
    fired = v >= p.threshold
    if fired:
        v = np.float32(0)
        wait = p.refractory
    return CurrentState(v, current, wait), fired


@numba.njit
def integrate_current_with_noise(state, arrived, p, rng, external):
    """Integrate a neuron with spikes from outside of the network for one step."""
    v = np.float32(0) if state.wait > 0 else state.v * p.leak + state.current * p.gain + p.drive
    current = state.current * p.decay + arrived.current + p.weight * np.float32(external.spikes)
    wait = max(state.wait - 1, 0)
    fired = v >= p.threshold
    if fired:
        v = np.float32(0)
        wait = p.refractory
    return CurrentState(v, current, wait), fired


class Model(NamedTuple):
    """A network, its parameters, initial state, the group of each neuron, and inputs and rules' parameters of a run.

    ``names`` are those of the groups, and ``drive`` says what makes the neurons fire. ``projections`` are for other
    simulators, and only there if they were asked for.
    """

    network: Network
    parameters: NamedTuple | dict[str, NamedTuple]
    neurons: NamedTuple | dict[str, NamedTuple]
    groups: np.ndarray
    inputs: NamedTuple | dict[str, NamedTuple] | None = None
    plasticity: NamedTuple | None = None
    names: Sequence[str] = ()
    drive: str = ""
    projections: Sequence[Projection] = ()


def microcircuit(
    seed: int = 1, *, scale: float = 1.0, noise: bool = True, blocks: int | None = None, keep: bool = False
) -> Model:
    """Return the cortical microcircuit.

    Args:
      seed: of synapses and initial potentials.
      scale: the fraction of the neurons; weights grow by ``1 / sqrt(scale)``, and a constant current replaces the mean
        input of the missing synapses (van Albada, Helias and Diesmann, PLoS Computational Biology 11, 2015).
      noise: True for Poisson input, False for its mean as a constant current.
      blocks: those of `Network`.
      keep: True to keep the projections.
    """
    full = np.array(_SIZES)
    sizes = np.round(full * scale).astype(int)
    counts = np.log(1 - _PROBABILITIES) / np.log(1 - 1 / np.outer(full, full).astype(float))
    scaled = np.round(counts * scale**2).astype(int) if scale < 1 else np.round(counts).astype(int)
    drawn = draw(seed, sizes, scaled)
    weight = _WEIGHT / math.sqrt(scale)
    target, source = np.divmod(np.arange(64), 8)
    mean = np.where((target == 0) & (source == 2), 2.0, 1.0) * weight
    factor = np.where(source % 2 == 1, _INHIBITION, 1.0)
    delays = np.where(source % 2 == 1, 0.75, 1.5)
    of_weights, of_delays = jax.random.split(jax.random.key(seed + 1))
    steps = _delays(of_delays, drawn.pair, jnp.float32(delays))
    weights = _weights(of_weights, drawn.pair, jnp.float32(mean), jnp.float32(factor))
    matrix = CSR((weights, drawn.indices, drawn.indptr), shape=(sizes.sum(), sizes.sum()), check=False)
    neuron = integrate_current_with_noise if noise else integrate_current
    projections = [Projection(matrix, steps, "current")]
    network = Network(Population(neuron, int(sizes.sum())), projections, blocks=blocks)
    group = np.repeat(np.arange(8), sizes)
    external = np.array(_EXTERNAL) * _RATE * 1e-3  # spikes a ms
    # The mean current of a synapse's spikes: its weight times 0.5 ms, the time constant of the current.
    constant = 0.0 if noise else weight * scale * external * 0.5
    missing = _missing_current(counts, full, scale, mean * math.sqrt(scale) * factor)
    parameters = current_parameters(tau=10, tau_synapse=0.5, capacity=250, threshold=15, refractory=2)._replace(
        weight=jnp.float32(weight),
        # A constant current raises the potential by more than one that decays during the step.
        drive=jnp.asarray(((constant + missing) * 10 / 250 * -math.expm1(-STEP / 10))[group], jnp.float32),
    )
    rng = np.random.default_rng(seed)
    v = np.array(_MEAN_V)[group] + 65 + np.array(_DEVIATION_V)[group] * rng.standard_normal(group.size)
    zeros = np.zeros(group.size)
    state = CurrentState(*(jnp.asarray(a, jnp.float32) for a in (v, zeros)), jnp.asarray(zeros, jnp.int32))
    inputs = External(Poisson(jnp.asarray((external * scale * STEP)[group], jnp.float32))) if noise else None
    drive = "independent Poisson input of each neuron" if noise else "constant input, and the initial state"
    kept = projections if keep else ()
    return Model(network, parameters, state, group, inputs, names=NAMES, drive=drive, projections=kept)


def _missing_current(counts: np.ndarray, sizes: np.ndarray, scale: float, weights: np.ndarray) -> np.ndarray:
    """Return the mean current that the synapses left out by scaling would bring each population, in pA."""
    degrees = counts / sizes[:, None]
    per_ms = degrees * weights.reshape(8, 8) * np.array(RATES) * 1e-3 * 0.5
    external = np.array(_EXTERNAL) * _RATE * 1e-3 * _WEIGHT * 0.5
    return (1 - math.sqrt(scale)) * (per_ms.sum(1) + external)


# Apart, as a program of JAX on the CPU stores the random bits of all that it draws, 12 to 16 bytes a number.
@jax.jit
def _weights(key: jax.Array, pair: jax.Array, mean: jax.Array, factor: jax.Array) -> jax.Array:
    """Return weights with a relative deviation of 0.1, clipped at 0."""
    return jnp.maximum(mean[pair] * (1 + 0.1 * jax.random.normal(key, pair.shape)), 0) * factor[pair]


@jax.jit
def _delays(key: jax.Array, pair: jax.Array, mean: jax.Array) -> jax.Array:
    """Return delays in steps, with a relative deviation of 0.5."""
    delays = mean[pair] * (1 + 0.5 * jax.random.normal(key, pair.shape))
    return jnp.clip(jnp.rint(delays / STEP), 1, 63).astype(jnp.uint8)
