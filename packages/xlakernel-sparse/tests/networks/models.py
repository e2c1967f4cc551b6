"""Networks that several test files share; their compiled kernels are stored on disk, so each is compiled once."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np

from xlakernel.sparse import CSR
from xlakernel.sparse.networks import Network, Population, Projection, normal, poisson, reference, uniform

#: The native backend of the default device.
NATIVE = "numba_cuda" if jax.default_backend() == "gpu" else "numba"


class State(NamedTuple):
    """A leaky integrator with currents that decay."""

    v: jax.Array
    current: jax.Array
    wait: jax.Array


class Parameters(NamedTuple):
    """Its constants."""

    leak: jax.Array
    decay: jax.Array
    drive: jax.Array


@numba.njit(cache=True)
def integrate(state, arrived, p, rng):
    current = state.current * p.decay + arrived.excitatory - arrived.inhibitory
    v = state.v * p.leak + current + p.drive
    wait = max(state.wait - 1, 0)
    if state.wait > 0:
        v = np.float32(0)
    fired = v >= np.float32(1)
    if fired:
        v = np.float32(0)
        wait = 3
    return State(v, current, wait), fired


def integrate_arrays(state, arrived, p, rng):
    current = state.current * p.decay + arrived.excitatory - arrived.inhibitory
    v = jnp.where(state.wait > 0, 0, state.v * p.leak + current + p.drive)
    fired = v >= 1
    return State(jnp.where(fired, 0, v), current, jnp.where(fired, 3, jnp.maximum(state.wait - 1, 0))), fired


@numba.njit(cache=True)
def noisy(state, arrived, p, rng):
    drive = np.float32(0.1) * np.float32(poisson(rng, 0, p.drive)) + np.float32(0.01) * normal(rng, 0)
    v = state.v * p.leak + arrived.excitatory - arrived.inhibitory + drive
    fired = v >= np.float32(1) or uniform(rng, 1) < np.float32(0.01)
    if fired:
        v = np.float32(0)
    return State(v, drive, state.wait), fired


def noisy_arrays(state, arrived, p, rng):
    drive = np.float32(0.1) * reference.poisson(rng, 0, p.drive).astype(jnp.float32)
    drive = drive + np.float32(0.01) * reference.normal(rng, 0)
    v = state.v * p.leak + arrived.excitatory - arrived.inhibitory + drive
    fired = (v >= 1) | (reference.uniform(rng, 1) < np.float32(0.01))
    return State(jnp.where(fired, 0, v), drive, state.wait), fired


class Total(NamedTuple):
    """The sum of the weights that have arrived."""

    excitatory: jax.Array


@numba.njit(cache=True)
def fire_at_zero(state, arrived, p, rng):
    return Total(state.excitatory + arrived.excitatory), state.excitatory == np.float32(0)


def random_matrix(rng, rows, columns, density, dtype="float32"):
    """Return a matrix with random weights, some of them twice at one place, of several lengths of rows."""
    counts = rng.binomial(columns, density, rows)
    counts[rng.integers(rows)] = 0
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices = rng.integers(0, columns, indptr[-1]).astype(np.int32)
    return CSR((rng.uniform(0, 0.3, indptr[-1]).astype(dtype), indices, indptr), shape=(rows, columns))


def full_matrix(weights):
    """Return a matrix with an entry at each place, made without a kernel: files are imported by every process."""
    rows, columns = weights.shape
    indices, indptr = np.tile(np.arange(columns), rows), columns * np.arange(rows + 1)
    return CSR((weights.ravel(), indices.astype(np.int32), indptr.astype(np.int32)), shape=weights.shape)


def start(n, seed=0):
    """Return a random state of *n* neurons."""
    rng = np.random.default_rng(seed)
    return State(
        jnp.asarray(rng.uniform(0, 1, n), jnp.float32), jnp.zeros(n, jnp.float32), jnp.asarray(rng.integers(0, 3, n))
    )


def balanced(n=60, *, function=integrate, arrays=integrate_arrays, seed=0, delays=True, **options):
    """Return a network with excitation and inhibition, and delays of several lengths."""
    rng = np.random.default_rng(seed)
    excitation, inhibition = random_matrix(rng, n, n, 0.2), random_matrix(rng, n // 3, n, 0.2)
    delay = rng.integers(1, 8, excitation.nnz) if delays else 1
    projections = [
        Projection(excitation, delay, "excitatory"),
        Projection(inhibition, 2, "inhibitory", source=slice(0, n // 3)),
    ]
    return Network(Population(function, n, arrays), projections, **options)


PARAMETERS = Parameters(jnp.float32(0.9), jnp.float32(0.5), jnp.float32(0.12))
