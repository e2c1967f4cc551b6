"""Procedural matrices under jit, vmap, grad, scan and export."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from procedural_cases import OPERANDS, PARAMETERS, each_distribution, each_operand, has_columns, make

from xlakernel.core import use_backend
from xlakernel.sparse import BinaryArray, ProceduralMatrix

pytestmark = pytest.mark.usefixtures("x64")

SHAPE, PROBABILITY = (12, 30), 0.3


def built(distribution, *parameters, seed=3):
    return getattr(ProceduralMatrix, distribution)(*parameters, seed=seed, shape=SHAPE, probability=PROBABILITY)


def deviates(distribution, seed=3):
    """Return the dense matrices that the parameters are multiplied by: the places of entries, and their deviates."""
    base = (1.0,) if distribution == "homogeneous" else (1.0, 1.0) if distribution == "uniform" else (1.0, 0.0)
    ones = built(distribution, *base, seed=seed).todense()
    if distribution == "homogeneous":
        return (ones,)
    drawn = built(distribution, 0.0, 1.0, seed=seed).todense()
    return (ones - drawn, drawn) if distribution == "uniform" else (ones, drawn)


@each_distribution
@each_operand
@pytest.mark.parametrize("side", ["left", "right"])
def test_derivatives(distribution, operand, side):
    rng = np.random.default_rng(0)
    parameters = tuple(jnp.asarray(value) for value in PARAMETERS[distribution])
    x = jnp.asarray(rng.normal(size=SHAPE[1 if side == "left" else 0]))
    parts = deviates(distribution)

    def value(x):
        if operand == "dense":
            return x
        active = (x > 0).astype(x.dtype)
        return x * active if operand == "weighted" else active

    def product(*parameters):
        matrix = built(distribution, *parameters)
        events = OPERANDS[operand](x)
        return jnp.sin(matrix @ events if side == "left" else events @ matrix).sum()

    def expected(*parameters):
        dense = sum(part * parameter for part, parameter in zip(parts, parameters, strict=True))
        return jnp.sin(dense @ value(x) if side == "left" else value(x) @ dense).sum()

    places = tuple(range(len(parameters)))
    found, known = jax.jit(jax.grad(product, places))(*parameters), jax.grad(expected, places)(*parameters)
    np.testing.assert_allclose(found, known, rtol=1e-8)
    direction = tuple(jnp.ones_like(parameter) for parameter in parameters)
    found = jax.jit(lambda *p: jax.jvp(product, p, direction)[1])(*parameters)
    np.testing.assert_allclose(found, sum(known), rtol=1e-8)


@each_distribution
def test_derivatives_with_respect_to_a_dense_operand(distribution):
    matrix, dense = make(distribution, SHAPE, probability=PROBABILITY)
    for columns in ((), (2,))[: 1 + has_columns(distribution, "dense")]:
        x = jnp.ones((SHAPE[1], *columns))
        found = jax.jit(jax.grad(lambda x: jnp.sin(matrix @ x).sum()))(x)
        np.testing.assert_allclose(found, jax.grad(lambda x: jnp.sin(dense @ x).sum())(x), rtol=1e-5, atol=1e-5)


def test_second_derivatives(smooth):
    @jax.jit
    def product(mean, std, x):
        return jnp.sin(x @ built("normal", mean, std)).sum()

    smooth(product, jnp.array(1.0), jnp.array(0.5), jnp.linspace(0, 1, SHAPE[0]))


def test_events_are_differentiated_as_if_they_were_dense():
    matrix, dense = make("normal", SHAPE, probability=PROBABILITY)
    events = jnp.asarray([0.0, 1.0] * 6)
    found = jax.grad(lambda spikes: (spikes @ matrix).sum())(BinaryArray(events)).raw
    np.testing.assert_allclose(found, dense.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_inactive_events_have_no_part_in_the_gradient():
    """Cotangents of columns without an active entry may be NaN."""
    matrix = built("homogeneous", 1.0)
    spikes = BinaryArray(jnp.arange(12) == 2)
    reached = np.asarray(matrix.todense())[2] != 0
    cotangent = jnp.where(reached, 1.0, jnp.nan)
    _, pull = jax.vjp(lambda weight: spikes @ built("homogeneous", weight), 1.0)
    assert pull(cotangent)[0] == reached.sum()


def test_vmap_over_operands_is_one_product():
    matrix, dense = make("uniform", SHAPE, probability=PROBABILITY)
    rng = np.random.default_rng(0)
    xs = jnp.asarray(rng.normal(size=(4, 30)))
    mapped = jax.vmap(lambda x: matrix @ x)
    np.testing.assert_allclose(mapped(xs), np.asarray(xs) @ dense.T, rtol=1e-5, atol=1e-5)
    assert "procedural_mm" in str(jax.make_jaxpr(mapped)(xs))
    matrix, dense = make("homogeneous", SHAPE, probability=PROBABILITY)
    spikes = xs[:, :12] > 0
    found = jax.vmap(lambda s: BinaryArray(s) @ matrix)(spikes)
    np.testing.assert_allclose(found, np.asarray(spikes) @ dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["numba", "jax"])
def test_ensembles(backend):
    """Seeds and parameters may be batched, outside of jit and inside, and so may matrices."""
    seeds, weights = jnp.arange(3), jnp.asarray([0.5, 1.0, 2.0])
    x = jnp.linspace(0, 1, 30)
    with use_backend(backend):
        found = jax.jit(jax.vmap(lambda seed, weight: built("homogeneous", weight, seed=seed) @ x))(seeds, weights)
        matrices = jax.vmap(lambda seed, weight: built("homogeneous", weight, seed=seed))(seeds, weights)
        again = jax.vmap(lambda matrix, x: x @ matrix, in_axes=(0, None))(matrices.T, x)
        keys = jax.vmap(lambda key: built("homogeneous", 1.0, seed=key) @ x)(jax.random.split(jax.random.key(0), 3))
    assert "batch=(3,)" in repr(matrices)
    for seed, row, other in zip(range(3), found, again, strict=True):
        np.testing.assert_allclose(row, built("homogeneous", float(weights[seed]), seed=seed) @ x, rtol=1e-6)
        np.testing.assert_allclose(other, row, rtol=1e-6)
    assert len({float(row.sum()) for row in keys}) == 3


def test_scan_with_the_matrix_in_the_carry():
    matrix, dense = make("homogeneous", (12, 12), probability=PROBABILITY)

    def step(carry, _):
        matrix, x = carry
        return (matrix, jnp.tanh(matrix @ x)), x.sum()

    (_, found), _ = jax.jit(lambda m, x: jax.lax.scan(step, (m, x), length=5))(matrix, jnp.ones(12))
    expected = np.ones(12)
    for _ in range(5):
        expected = np.tanh(dense @ expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_traced_seed_gives_the_matrix_of_the_known_one():
    dense = jax.jit(lambda seed: built("normal", 0.0, 1.0, seed=seed).todense())
    np.testing.assert_array_equal(dense(3), built("normal", 0.0, 1.0, seed=3).todense())
    wide = jnp.asarray(2**33 + 1)
    np.testing.assert_array_equal(dense(wide), built("normal", 0.0, 1.0, seed=2**33 + 1).todense())


def test_one_program_for_all_seeds_and_weights(compilations):
    product = jax.jit(lambda matrix, x: matrix @ x)
    x = jnp.ones(30)
    matrices = [built("homogeneous", weight, seed=seed) for seed, weight in enumerate((0.5, 1.0))]
    product(matrices[0], x)
    assert compilations(functools.partial(product, matrices[1], x)) == 0


def test_export():
    matrix, x = built("uniform", 0.0, 1.0), jnp.ones(30)
    with use_backend("jax"):
        exported = jax.export.export(jax.jit(lambda matrix, x: matrix @ x))(matrix, x)
    loaded = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(loaded.call(matrix, x), matrix @ x)
    exported = jax.export.export(jax.jit(lambda matrix: matrix.T))(matrix)
    transposed = jax.export.deserialize(exported.serialize()).call(matrix)
    np.testing.assert_allclose(x @ transposed, matrix @ x)
