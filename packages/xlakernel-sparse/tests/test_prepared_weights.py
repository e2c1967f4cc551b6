"""Products of prepared matrices with events, at every rate, and with weights that are set inside of a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from xlakernel.core import use_backend
from xlakernel.sparse import CSC, CSR, BinaryArray, CompactArray, WeightedArray

SHAPE = (30, 40)
EVENTS = {"binary": BinaryArray, "weighted": WeightedArray, "compact": CompactArray}
each_side = pytest.mark.parametrize("side", ["A @ x", "x @ A"])
each_operand = pytest.mark.parametrize("operand", EVENTS)


@pytest.fixture(params=[CSR, CSC])
def matrix(request):
    """A prepared matrix with duplicates and padding, and the dense matrix of given weights."""
    rng = np.random.default_rng(0)
    lines, places = SHAPE if request.param is CSR else SHAPE[::-1]
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, lines))]).astype(np.int32)
    indices = rng.integers(0, places, indptr[-1] + 3).astype(np.int32)
    data = rng.normal(size=indices.size).astype(np.float32)
    A = request.param((data, indices, indptr), shape=SHAPE)
    return A.prepare(), lambda w: A.with_data(w).todense()


def product(A, x, side, operand):
    wrap = EVENTS[operand]
    return A @ wrap(x) if side == "A @ x" else wrap(x) @ A


def expected(dense, x, side, operand):
    x = np.asarray(x, np.float64)
    x = x if operand == "weighted" else (x != 0).astype(np.float64)
    return dense @ x if side == "A @ x" else x @ dense


def events(side, rate, seed=1):
    rng = np.random.default_rng(seed)
    n = SHAPE[1] if side == "A @ x" else SHAPE[0]
    return jnp.asarray(rng.normal(size=n) * (rng.random(n) < rate), jnp.float32)


@each_side
@each_operand
@pytest.mark.parametrize("new", [False, True], ids=["stored", "new"])
def test_values_at_every_rate(matrix, side, operand, new):
    A, dense = matrix
    w = A.data + 1 if new else A.data
    f = jax.jit(lambda A, w, x: product(A.with_data(w) if new else A, x, side, operand))
    for rate in (0, 0.2, 0.6, 1):
        x = events(side, rate)
        assert_allclose(f(A, w, x), expected(np.asarray(dense(w)), x, side, operand), rtol=1e-4, atol=1e-5)


@each_side
@pytest.mark.parametrize("rate", [0.2, 1])
def test_inactive_events_hide_weights_that_are_not_finite(matrix, side, rate):
    A, dense = matrix
    x = events(side, rate) != 0
    row, column = (np.asarray(places) for places in A.coordinates())
    source = np.append(np.asarray(x), True)[column if side == "A @ x" else row]
    w = jnp.where(jnp.asarray(source), A.data, jnp.nan)
    found = jax.jit(lambda w: product(A.with_data(w), x, side, "binary"))(w)
    safe = jnp.where(jnp.asarray(source), A.data, 0)
    assert_allclose(found, expected(np.asarray(dense(safe)), x, side, "binary"), rtol=1e-4, atol=1e-5)


@each_side
@each_operand
def test_derivatives_of_new_weights(matrix, side, operand):
    A, dense = matrix
    x = events(side, 0.4)
    g = events("A @ x" if side == "x @ A" else "x @ A", 1, seed=2)

    def loss(w, x):
        return (product(A.with_data(w), x, side, operand) * g).sum()

    def plain(w, x):
        value = x if operand == "weighted" else x + jax.lax.stop_gradient((x != 0) - x)
        return ((dense(w) @ value if side == "A @ x" else value @ dense(w)) * g).sum()

    arguments = (0, 1) if operand != "compact" else 0
    for found, true in zip(
        jax.tree.leaves(jax.jit(jax.grad(loss, arguments))(A.data, x)),
        jax.tree.leaves(jax.grad(plain, arguments)(A.data, x)),
        strict=True,
    ):
        assert_allclose(found, true, rtol=1e-4, atol=1e-5)
    tangent = jnp.cos(A.data)
    assert_allclose(
        jax.jvp(lambda w: loss(w, x), (A.data,), (tangent,))[1],
        jax.jvp(lambda w: plain(w, x), (A.data,), (tangent,))[1],
        rtol=1e-4,
    )


@each_side
def test_a_batch_of_new_weights(matrix, side):
    A, dense = matrix
    x, weights = events(side, 0.3), jnp.stack([A.data, A.data + 1, -A.data])
    found = jax.vmap(lambda w: product(A.with_data(w), x, side, "binary"))(weights)
    true = [expected(np.asarray(dense(w)), x, side, "binary") for w in weights]
    assert_allclose(found, np.stack(true), rtol=1e-4, atol=1e-5)


def test_new_weights_in_a_scan(matrix):
    A, dense = matrix
    xs = jnp.stack([events("x @ A", 0.3, seed) for seed in range(5)])

    def step(w, x):
        return w * 0.9 + 0.1, BinaryArray(x) @ A.with_data(w)

    found = jax.lax.scan(step, A.data, xs)[1]
    w = A.data
    for y, x in zip(found, xs, strict=True):
        assert_allclose(y, expected(np.asarray(dense(w)), x, "x @ A", "binary"), rtol=1e-4, atol=1e-5)
        w = w * 0.9 + 0.1


def test_a_matrix_that_leaves_its_program_keeps_its_weights(matrix):
    A, dense = matrix
    B = jax.jit(lambda w: A.with_data(w))(A.data + 1)
    x = events("x @ A", 0.5)
    assert_allclose(BinaryArray(x) @ B, expected(np.asarray(dense(A.data + 1)), x, "x @ A", "binary"), rtol=1e-4)
    assert_allclose(B @ jnp.ones(SHAPE[1]), np.asarray(dense(A.data + 1)) @ np.ones(SHAPE[1]), rtol=1e-4, atol=1e-5)


def test_a_program_for_events_does_not_copy_the_weights(matrix):
    """XLA drops the weights in the order of the other axis, since the kernel reads them through the permutation."""
    A, _ = matrix

    def gathers(operand, side):
        with jax.default_device(jax.devices("cpu")[0]):
            return gathers_on_the_cpu(operand, side)

    def gathers_on_the_cpu(operand, side):
        f = jax.jit(lambda w, x: product(A.with_data(w), x, side, operand))
        return f.lower(A.data, events(side, 0.3)).compile().as_text().count(" gather(")

    with jax.default_device(jax.devices("cpu")[0]):
        f = jax.jit(lambda w, x: A.with_data(w).T @ BinaryArray(x))
        assert " gather(" not in f.lower(A.data, events("x @ A", 0.3)).compile().as_text()
    assert all(gathers(operand, side) == 0 for operand in ("binary", "weighted") for side in ("A @ x", "x @ A"))


@each_side
def test_new_weights_in_plain_jax(matrix, side):
    A, dense = matrix
    x = events(side, 0.3)
    with use_backend("jax"):
        found = jax.jit(lambda w: product(A.with_data(w), x, side, "weighted"))(A.data + 1)
    assert_allclose(found, expected(np.asarray(dense(A.data + 1)), x, side, "weighted"), rtol=1e-4, atol=1e-5)
