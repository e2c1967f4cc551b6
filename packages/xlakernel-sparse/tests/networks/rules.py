"""Rules of plasticity that several test files share."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from xlakernel.sparse.networks import Network, Population, Projection, Rule


class Pair(NamedTuple):
    """Parameters of pair-based STDP."""

    potentiation: jax.Array
    depression: jax.Array


class Reward(NamedTuple):
    """Parameters of a three-factor rule."""

    rate: jax.Array
    reward: jax.Array


@numba.njit(cache=True)
def depress(weight, pre, post, p):
    return weight - p.depression * post.trace


@numba.njit(cache=True)
def potentiate(weight, pre, post, p):
    return weight + p.potentiation * pre.trace


@numba.njit(cache=True)
def depress_in_proportion(weight, pre, post, p):
    return weight - p.depression * weight * post.trace


@numba.njit(cache=True)
def potentiate_in_proportion(weight, pre, post, p):
    return weight + p.potentiation * (np.float32(1) - weight) * pre.trace


@numba.njit(cache=True)
def depress_by_reward(weight, pre, post, p):
    return weight - p.rate * p.reward * post.trace


@numba.njit(cache=True)
def potentiate_by_reward(weight, pre, post, p):
    return weight + p.rate * p.reward * pre.trace


@numba.njit(cache=True)
def forget_nearest(weight, pre, post, p):
    return weight - p.depression * math.exp(-post.age / np.float32(10))


@numba.njit(cache=True)
def learn_nearest(weight, pre, post, p):
    # Of the nearest spikes alone, and less for a neuron that has just fired: a triplet.
    return weight + p.potentiation * math.exp(-pre.age / np.float32(10)) / (np.float32(1) + post.trace)


def learn_nearest_arrays(weight, pre, post, p):
    return weight + p.potentiation * jnp.exp(-pre.age / np.float32(10)) / (np.float32(1) + post.trace)


def forget_nearest_arrays(weight, pre, post, p):
    return weight - p.depression * jnp.exp(-post.age / np.float32(10))


def rule(on_pre, on_post, *, reference=None, **changed):
    """Return a rule; functions of plain arithmetic are their own reference."""
    numbers = {"tau_pre": 20.0, "tau_post": 30.0, "minimum": 0.0, "maximum": 1.0, **changed}
    return Rule(on_pre, on_post, **numbers, reference=reference or (on_pre.py_func, on_post.py_func))


PAIR = Pair(jnp.float32(0.02), jnp.float32(0.01))
REWARD = Reward(jnp.float32(0.05), jnp.sin(jnp.arange(200, dtype=jnp.float32)))
RULES = {
    "pair": (rule(depress, potentiate), PAIR),
    "multiplicative": (rule(depress_in_proportion, potentiate_in_proportion), PAIR),
    "three factors": (rule(depress_by_reward, potentiate_by_reward), REWARD),
    "nearest": (
        rule(forget_nearest, learn_nearest, reference=(forget_nearest_arrays, learn_nearest_arrays)),
        PAIR,
    ),
}


class Sum(NamedTuple):
    """The sum of the weights that arrived in the last step."""

    excitatory: jax.Array


class Fires(NamedTuple):
    """The neurons that fire in each step, bool ``(steps, neurons)``."""

    fires: jax.Array


@numba.njit(cache=True)
def collect(state, arrived, p, rng, inputs):
    return Sum(arrived.excitatory), inputs.fires


def collect_arrays(state, arrived, p, rng, inputs):
    return Sum(arrived.excitatory), inputs.fires


def prescribed(matrix, delay, plasticity, **options):
    """Return a network with given spikes, and one plastic projection."""
    return Network(
        Population(collect, matrix.shape[0], collect_arrays),
        [Projection(matrix, delay, "excitatory", plasticity=plasticity)],
        **options,
    )
