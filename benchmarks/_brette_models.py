"""COBA and CUBA, two networks with self-sustained activity, for the benchmark.

Brette et al., "Simulation of networks of spiking neurons", Journal of Computational Neuroscience 23 (2007), benchmarks
1 and 2, with the parameters of NEST's examples ``brette_et_al_2007/coba.py`` and ``cuba.py``. Four fifths of the
neurons excite, and each neuron has 64 excitatory and 16 inhibitory synapses on average, whatever the network's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
from _network_models import STEP, Model

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection

_TAU, _TAU_EXCITATION, _TAU_INHIBITION, _CAPACITY, _REFRACTORY = 20.0, 5.0, 10.0, 200.0, 5.0  # ms, pF
_DEGREES = 64, 16
#: Of COBA in units of the leak, 10 nS, and of CUBA in pA.
_CONDUCTANCES, _CURRENTS = (0.6, 6.7), (16.2, -139.5)
_GROUPS = "excitatory", "inhibitory"


class ConductanceState(NamedTuple):
    """A neuron with two conductances: ``v`` in mV above rest, conductances in units of the leak."""

    v: jax.Array
    excitation: jax.Array
    inhibition: jax.Array
    wait: jax.Array


class ConductanceParameters(NamedTuple):
    """Constants of a neuron: decays over one step, reversal potentials and the threshold in mV above rest."""

    rate: jax.Array
    decay_excitation: jax.Array
    decay_inhibition: jax.Array
    reversal_excitation: jax.Array
    reversal_inhibition: jax.Array
    threshold: jax.Array
    refractory: jax.Array


@numba.njit
def integrate_conductance(state, arrived, p, rng):
    """Integrate a neuron with conductances for one step, by Euler's method."""
    excitation = state.excitation * p.decay_excitation + arrived.excitation
    inhibition = state.inhibition * p.decay_inhibition + arrived.inhibition
    pull = excitation * (p.reversal_excitation - state.v) + inhibition * (p.reversal_inhibition - state.v)
    v = np.float32(0) if state.wait > 0 else state.v + p.rate * (pull - state.v)
    wait = max(state.wait - 1, 0)
    fired = v >= p.threshold
    if fired:
        v = np.float32(0)
        wait = p.refractory
    return ConductanceState(v, excitation, inhibition, wait), fired


class TwoCurrentsState(NamedTuple):
    """A neuron with two currents: ``v`` in mV above rest, currents in pA."""

    v: jax.Array
    excitation: jax.Array
    inhibition: jax.Array
    wait: jax.Array


class TwoCurrentsParameters(NamedTuple):
    """Constants of the exact integration over one step.

    Gains are in mV per pA, threshold and reset in mV above rest, ``refractory`` in steps.
    """

    leak: jax.Array
    decay_excitation: jax.Array
    decay_inhibition: jax.Array
    gain_excitation: jax.Array
    gain_inhibition: jax.Array
    threshold: jax.Array
    reset: jax.Array
    refractory: jax.Array


@numba.njit
def integrate_two_currents(state, arrived, p, rng):
    """Integrate a neuron with currents for one step, exactly."""
    v = state.v * p.leak + state.excitation * p.gain_excitation + state.inhibition * p.gain_inhibition
    if state.wait > 0:
        v = p.reset
    excitation = state.excitation * p.decay_excitation + arrived.excitation
    inhibition = state.inhibition * p.decay_inhibition + arrived.inhibition
    wait = max(state.wait - 1, 0)
    fired = v >= p.threshold
    if fired:
        v = p.reset
        wait = p.refractory
    return TwoCurrentsState(v, excitation, inhibition, wait), fired


def coba(n: int = 4000, seed: int = 1, *, blocks: int | None = None, keep: bool = False) -> Model:
    """Return COBA, the network with conductances: rest and reset at -60 mV, the threshold at -50 mV."""
    rng = np.random.default_rng(seed)
    zeros = np.zeros(n)
    # Activity may die out after the first spikes; from these conductances it went on with each of 16 seeds.
    start = rng.uniform(0, 10, n), np.maximum(rng.normal(3, 1.5, n), 0), np.maximum(rng.normal(15, 12, n), 0)
    state = ConductanceState(*(jnp.asarray(a, jnp.float32) for a in start), jnp.asarray(zeros, jnp.int32))
    decays = math.exp(-STEP / _TAU_EXCITATION), math.exp(-STEP / _TAU_INHIBITION)
    numbers = STEP / _TAU, *decays, 60, -20, 10
    parameters = ConductanceParameters(*map(jnp.float32, numbers), jnp.int32(round(_REFRACTORY / STEP)))
    model = _model(integrate_conductance, n, seed, _CONDUCTANCES, blocks, keep)
    return model._replace(parameters=parameters, neurons=state, drive="the initial conductances")


def cuba(n: int = 4000, seed: int = 1, *, blocks: int | None = None, keep: bool = False) -> Model:
    """Return CUBA, the network with currents.

    Rest at -49 mV is above the threshold at -50 mV, so that neurons fire without input; the reset is at -60 mV.
    """
    rng = np.random.default_rng(seed)
    zeros = jnp.zeros(n, jnp.float32)
    state = TwoCurrentsState(jnp.asarray(rng.uniform(-11, -1, n), jnp.float32), zeros, zeros, zeros.astype(jnp.int32))
    leak = math.exp(-STEP / _TAU)
    taus = _TAU_EXCITATION, _TAU_INHIBITION
    decays = [math.exp(-STEP / tau) for tau in taus]
    gains = [tau * _TAU / (tau - _TAU) * (decay - leak) / _CAPACITY for tau, decay in zip(taus, decays, strict=True)]
    numbers = leak, *decays, *gains, -1, -11
    parameters = TwoCurrentsParameters(*map(jnp.float32, numbers), jnp.int32(round(_REFRACTORY / STEP)))
    model = _model(integrate_two_currents, n, seed, _CURRENTS, blocks, keep)
    return model._replace(parameters=parameters, neurons=state, drive="a resting potential above the threshold")


def _model(
    function: Callable[..., Any], n: int, seed: int, weights: Sequence[float], blocks: int | None, keep: bool
) -> Model:
    """Return a model without parameters and state."""
    sizes = n * 4 // 5, n - n * 4 // 5
    ranges = slice(0, sizes[0]), slice(sizes[0], n)
    projections = [
        Projection(matrix, 1, receptor, source=where)
        for matrix, receptor, where in zip(
            _by_source(seed, sizes, n, weights), ("excitation", "inhibition"), ranges, strict=True
        )
    ]
    network = Network(Population(function, n), projections, blocks=blocks)
    groups = np.repeat(np.arange(2), sizes)
    return Model(network, (), (), groups, names=_GROUPS, projections=projections if keep else ())


def _by_source(seed: int, sizes: Sequence[int], n: int, weights: Sequence[float]) -> list[CSR]:
    """Return the excitatory and the inhibitory matrix, with uniform sources and targets."""
    matrices = []
    for number, (size, degree, weight) in enumerate(zip(sizes, _DEGREES, weights, strict=True)):
        rng = np.random.default_rng(seed + number)
        counts = rng.multinomial(degree * n, np.full(size, 1 / size))
        indptr = jnp.asarray(np.concatenate([[0], np.cumsum(counts)]), jnp.int32)
        indices = jax.random.randint(jax.random.key(seed + number), (degree * n,), 0, n, jnp.int32)
        matrices.append(CSR((jnp.full(1, weight), indices, indptr), shape=(size, n), check=False))
    return matrices
