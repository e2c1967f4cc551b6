"""Products inside of JAX's loops and branches, where a matrix is a value like any other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.sparse import BinaryArray

FORMATS = ["csr", "prepared csc"]


def assert_close(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=FORMATS)
def network(request, make):
    """A matrix and the same dense, of 5 rows and 7 columns or the reverse, and where to begin."""
    example = make(request.param)
    return example.matrix, example.dense(example.matrix.data), example.operand("left")


def test_scan(network):
    """The matrix is outside, is carried, and is one of many; with the kernels of the CPU."""
    A, dense, x = network

    def step(A):
        return lambda v, _: (jnp.tanh((A @ v) @ A), None)

    expected = x
    for _ in range(3):
        expected = jnp.tanh((dense @ expected) @ dense)
    assert_close(jax.lax.scan(step(A), x, length=3)[0], expected)
    carried, _ = jax.lax.scan(lambda c, _: ((c[0], step(c[0])(c[1], None)[0]), None), (A, x), length=3)
    assert_close(carried[1], expected)


def test_scan_over_matrices(network, plain_jax):
    A, dense, x = network
    many = jax.vmap(A.with_data)(jnp.stack([A.data, 2 * A.data]))
    _, found = jax.lax.scan(lambda c, A: (c, A @ x), 0, many)
    assert_close(found, jnp.stack([dense @ x, 2 * (dense @ x)]))


def test_while_loop(network, plain_jax):
    A, dense, x = network
    found = jax.jit(
        lambda A, x: jax.lax.while_loop(
            lambda c: jnp.abs(c[1]).sum() < 100, lambda c: (c[0] + 1, c[1] + ((A @ c[1]) @ A)), (0, x)
        )
    )(A, x)
    steps, expected = 0, np.asarray(x, "float64")
    while np.abs(expected).sum() < 100:
        steps, expected = steps + 1, expected + (np.asarray(dense) @ expected) @ np.asarray(dense)
    assert found[0] == steps > 0
    np.testing.assert_allclose(found[1], expected, rtol=1e-4)


def test_fori_loop_that_learns(network, plain_jax):
    """Weights that change in the loop: the structure is the same, and a prepared matrix follows."""
    A, _, x = network
    y = jnp.ones(A.shape[0])
    loss = lambda w, A: jnp.sum((A.with_data(w) @ x - y) ** 2)  # noqa: E731
    learn = lambda _, A: A.with_data(A.data - 0.01 * jax.grad(loss)(A.data, A))  # noqa: E731
    found = jax.jit(lambda A: jax.lax.fori_loop(0, 3, learn, A))(A)
    row, column = A.coordinates()
    expected = A.data
    of_dense = lambda w: jnp.sum((jnp.zeros(A.shape).at[row, column].add(w, mode="drop") @ x - y) ** 2)  # noqa: E731
    for _ in range(3):
        expected = expected - 0.01 * jax.grad(of_dense)(expected)
    assert_close(found.data, expected)
    assert_close(BinaryArray(y) @ found, y @ found.todense())


def test_cond(network, plain_jax):
    """A branch that makes a matrix, and one that multiplies; also where both are taken, under vmap."""
    A, dense, x = network
    branch = lambda flag: jax.lax.cond(flag, lambda: A, lambda: A * 2) @ x  # noqa: E731
    choose = lambda flag: jax.lax.cond(flag, lambda: A @ x, lambda: A @ BinaryArray(x))  # noqa: E731
    flags = jnp.array([True, False])
    assert_close(jax.vmap(branch)(flags), jnp.stack([dense @ x, 2 * (dense @ x)]))
    assert_close(jax.vmap(choose)(flags), jnp.stack([dense @ x, dense @ (x != 0)]))
    assert_close(jax.jit(branch)(True), dense @ x)


@pytest.mark.parametrize("name", FORMATS)
def test_donated_arrays(make, name):
    """The result may lie where the operand was, which a kernel must not notice; with those of the CPU."""
    example = make(name)
    A, dense = example.matrix, example.dense(example.matrix.data)
    step = jax.jit(lambda A, v: (A @ v) @ A, donate_argnums=1)
    v = example.operand("left")
    expected = (dense @ v) @ dense
    found = step(A, v)
    assert v.is_deleted()
    assert_close(found, expected)
    assert_close(A @ jnp.ones(A.shape[1]), dense @ jnp.ones(A.shape[1]))  # the matrix was not


def test_a_donated_matrix(make, plain_jax):
    """Its weights are updated in place."""
    A = make("prepared csr").matrix
    expected = A.data * 2
    doubled = jax.jit(lambda A: A.with_data(A.data * 2), donate_argnums=0)(A)
    assert A.data.is_deleted()
    assert_close(doubled.data, expected)
