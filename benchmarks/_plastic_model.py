"""A balanced network with spike-timing-dependent plasticity, for the benchmark.

Morrison, Aertsen and Diesmann, "Spike-timing-dependent plasticity in balanced random networks", Neural Computation 19
(2007), with the parameters and 11 250 neurons of NEST's example ``hpc_benchmark``. There the delay lies between synapse
and soma, here between source and synapse.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import scipy.linalg
from _network_models import STEP, External, Model

from xlakernel.sparse import CSC, CSR
from xlakernel.sparse.networks import Network, Poisson, Population, Projection, Rule

_TAU, _TAU_SYNAPSE, _CAPACITY, _THRESHOLD, _REFRACTORY = 10.0, 0.32582722403722841, 250.0, 20.0, 0.5  # ms, pF, mV
_RISE, _PEAK, _INHIBITION, _DELAY = 1.700759, 0.14, -5.0, 1.5  # ms, mV, relative, ms
_STIMULUS = 1.685  # relative to the rate that brings the mean potential to the threshold
_MEAN_V, _DEVIATION_V = 5.7, 7.2
_TAU_PLUS, _TAU_MINUS, _RATE, _ASYMMETRY, _EXPONENT = 15.0, 30.0, 0.1, 0.0513, 0.4


class AlphaState(NamedTuple):
    """A neuron with a current of the shape of an alpha function.

    ``v`` is in mV above rest, ``current`` in pA, ``rise`` its rise in pA per ms, ``wait`` the steps left of the
    refractory time.
    """

    v: jax.Array
    current: jax.Array
    rise: jax.Array
    wait: jax.Array


class AlphaParameters(NamedTuple):
    """Constants of the exact integration over one step, and ``weight``, the rise by an external spike."""

    leak: jax.Array
    by_current: jax.Array
    by_rise: jax.Array
    decay: jax.Array
    gain: jax.Array
    threshold: jax.Array
    refractory: jax.Array
    weight: jax.Array


@numba.njit
def integrate_alpha(state, arrived, p, rng, external):
    """Integrate a neuron for one step; weights are rises of the current."""
    v = state.v * p.leak + state.current * p.by_current + state.rise * p.by_rise
    if state.wait > 0:
        v = np.float32(0)
    current = state.current * p.decay + state.rise * p.gain
    rise = state.rise * p.decay + p.weight * (arrived.excitation + arrived.inhibition + np.float32(external.spikes))
    wait = max(state.wait - 1, 0)
    fired = v >= p.threshold
    if fired:
        v = np.float32(0)
        wait = p.refractory
    return AlphaState(v, current, rise, wait), fired


class PowerLaw(NamedTuple):
    """The rates of potentiation and depression, and the exponent of the weight in potentiation."""

    rate: jax.Array
    depression: jax.Array
    exponent: jax.Array


@numba.njit
def depress(weight, pre, post, p):
    """Return a weight that is depressed in proportion to itself."""
    return weight - p.depression * weight * post.trace


@numba.njit
def potentiate(weight, pre, post, p):
    """Return a weight that is potentiated by a power of itself."""
    return weight + p.rate * weight**p.exponent * pre.trace


def unit_weight() -> float:
    """Return the peak of a current in pA whose potential has the peak of an excitatory synapse."""
    rate = 1 / _TAU_SYNAPSE - 1 / _TAU
    slow, fast = math.exp(-_RISE / _TAU), math.exp(-_RISE / _TAU_SYNAPSE)
    peak = math.e / (_TAU_SYNAPSE * _CAPACITY * rate) * ((slow - fast) / rate - _RISE * fast)
    return _PEAK / peak


def plastic_network(seed: int = 1, *, n: int = 11_250, plastic: bool = True, blocks: int | None = None) -> Model:
    """Return the network, of which the excitatory synapses between excitatory neurons are plastic.

    Args:
      seed: of synapses and initial potentials.
      n: the number of neurons; each has as many synapses. The weights of a smaller network are larger.
      plastic: False for constant weights.
      blocks: those of `Network`.
    """
    sizes = {"excitatory": n * 4 // 5, "inhibitory": n - n * 4 // 5}
    delay, ratio = round(_DELAY / STEP), 11_250 / n
    current = unit_weight()
    rng = np.random.default_rng(seed)
    projections = []
    for source, factor, receptor in (("excitatory", 1.0, "excitation"), ("inhibitory", _INHIBITION, "inhibition")):
        for target in sizes:
            matrix = _random(rng, sizes[source], sizes[target], factor * ratio, autapses=source != target)
            learns = plastic and source == target == "excitatory"
            if learns:
                matrix = matrix.with_data(jnp.full(matrix.nnz, ratio, jnp.float32))
            rule = Rule(depress, potentiate, _TAU_PLUS / STEP, _TAU_MINUS / STEP, 0.0, 5 * ratio) if learns else None
            projections.append(Projection(matrix, delay, receptor, source, target, rule))
    network = Network(
        {name: Population(integrate_alpha, size) for name, size in sizes.items()}, projections, blocks=blocks
    )
    # The state is (rise, current, potential).
    rates = np.array([[-1 / _TAU_SYNAPSE, 0, 0], [1, -1 / _TAU_SYNAPSE, 0], [0, 1 / _CAPACITY, -1 / _TAU]])
    step = scipy.linalg.expm(rates * STEP)
    numbers = step[2, 2], step[2, 1], step[2, 0], step[1, 1], step[1, 0], _THRESHOLD
    rise = current * math.e / _TAU_SYNAPSE
    parameters = AlphaParameters(*map(jnp.float32, numbers), jnp.int32(round(_REFRACTORY / STEP)), jnp.float32(rise))
    # The rule is of weights in pA, those of the network are multiples of *current*: the power has another factor.
    rule_parameters = PowerLaw(
        jnp.float32(_RATE * (current / ratio) ** (_EXPONENT - 1)),
        jnp.float32(_RATE * _ASYMMETRY),
        jnp.float32(_EXPONENT),
    )
    mean = _STIMULUS * _THRESHOLD / (_TAU / _CAPACITY * current * math.e * _TAU_SYNAPSE) * STEP
    neurons = {
        name: AlphaState(
            jnp.asarray(rng.normal(_MEAN_V, _DEVIATION_V, size), jnp.float32), 0.0, 0.0, jnp.zeros(size, jnp.int32)
        )
        for name, size in sizes.items()
    }
    groups = np.repeat(np.arange(2), list(sizes.values()))
    inputs = {name: External(Poisson(mean)) for name in sizes}
    drive = "independent Poisson input of each neuron"
    return Model(
        network, parameters, neurons, groups, inputs, rule_parameters if plastic else None, tuple(sizes), drive
    )


def _random(rng: np.random.Generator, sources: int, targets: int, weight: float, *, autapses: bool) -> CSR:
    """Return a matrix in which each target has as many synapses as there are sources, from sources at random."""
    target = np.arange(targets, dtype=np.int32)[:, None]
    source = rng.integers(0, sources if autapses else sources - 1, (targets, sources), np.int32)
    if not autapses:
        source += source >= target
    indptr = np.arange(targets + 1, dtype=np.int32) * sources
    data = jnp.full(1, weight, jnp.float32)
    by_target = CSC((data, jnp.asarray(source.reshape(-1)), jnp.asarray(indptr)), shape=(sources, targets), check=False)
    return by_target.tocsr()
