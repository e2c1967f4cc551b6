"""COBA and CUBA as loops of JAX over steps, with the products of spikes and matrices by brainevent."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from _brette_models import ConductanceParameters, ConductanceState, TwoCurrentsParameters, TwoCurrentsState
from _network_models import Model

from xlakernel.sparse import CSR


def is_installed() -> bool:
    """Return True if brainevent can be imported; it requires Python 3.12."""
    return importlib.util.find_spec("brainevent") is not None


def step_conductances(
    state: ConductanceState, excitation: jax.Array, inhibition: jax.Array, p: ConductanceParameters
) -> tuple[ConductanceState, jax.Array]:
    """Integrate the neurons of COBA for one step, as `integrate_conductance` does for one neuron."""
    excitation = state.excitation * p.decay_excitation + excitation
    inhibition = state.inhibition * p.decay_inhibition + inhibition
    pull = excitation * (p.reversal_excitation - state.v) + inhibition * (p.reversal_inhibition - state.v)
    v = jnp.where(state.wait > 0, 0, state.v + p.rate * (pull - state.v))
    fired = v >= p.threshold
    wait = jnp.where(fired, p.refractory, jnp.maximum(state.wait - 1, 0))
    return ConductanceState(jnp.where(fired, 0, v), excitation, inhibition, wait), fired


def step_currents(
    state: TwoCurrentsState, excitation: jax.Array, inhibition: jax.Array, p: TwoCurrentsParameters
) -> tuple[TwoCurrentsState, jax.Array]:
    """Integrate the neurons of CUBA for one step, as `integrate_two_currents` does for one neuron."""
    v = state.v * p.leak + state.excitation * p.gain_excitation + state.inhibition * p.gain_inhibition
    v = jnp.where(state.wait > 0, p.reset, v)
    excitation = state.excitation * p.decay_excitation + excitation
    inhibition = state.inhibition * p.decay_inhibition + inhibition
    fired = v >= p.threshold
    wait = jnp.where(fired, p.refractory, jnp.maximum(state.wait - 1, 0))
    return TwoCurrentsState(jnp.where(fired, p.reset, v), excitation, inhibition, wait), fired


Loop = Callable[[Any, jax.Array], tuple[Any, jax.Array, jax.Array]]


def loop(model: Model, steps: int) -> tuple[Loop, tuple[Any, jax.Array]]:
    """Return a compiled loop over steps, from state and spikes to both and the number of spikes, and its arguments."""
    import brainevent

    step = step_conductances if isinstance(model.neurons, ConductanceState) else step_currents
    matrices = [projection.matrix for projection in model.projections]
    arrays = [(matrix.data, matrix.indices, matrix.indptr) for matrix in matrices]
    excitatory = matrices[0].shape[0]

    def product(spikes: jax.Array, array: Any, matrix: CSR) -> jax.Array:
        return brainevent.BinaryArray(spikes) @ brainevent.CSR(array, shape=matrix.shape)

    @jax.jit
    def run(state: Any, spikes: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        def body(carry: tuple[Any, jax.Array, jax.Array], _: None) -> tuple[tuple[Any, jax.Array, jax.Array], None]:
            state, spikes, count = carry
            arrived = (
                product(own, array, matrix)
                for own, array, matrix in zip((spikes[:excitatory], spikes[excitatory:]), arrays, matrices, strict=True)
            )
            state, spikes = step(state, *arrived, model.parameters)
            return (state, spikes, count + jnp.sum(spikes)), None

        (state, spikes, count), _ = jax.lax.scan(body, (state, spikes, jnp.int32(0)), None, length=steps)
        return state, spikes, count

    return run, (model.neurons, jnp.zeros(model.network.size, bool))
