"""Gradients in the weights of products with several columns: values and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from xlakernel.core import use_backend
from xlakernel.sparse import COO, CSR, BinaryArray, WeightedArray

SHAPE, COLUMNS, ROOM = (40, 30), 64, 500
WRAPS = {"dense": lambda x: x, "binary": BinaryArray, "weighted": WeightedArray}


def matrix_of(kind):
    """A matrix with unsorted entries, duplicates and padding."""
    rng = np.random.default_rng(0)
    row, col = (rng.integers(0, n, ROOM).astype("int32") for n in SHAPE)
    row[-20:], col[-20:] = SHAPE
    entries = COO((rng.normal(size=ROOM).astype("float32"), row, col), shape=SHAPE)
    return getattr(entries, f"to{kind.__name__.lower()}")()


def loss_of(matrix, operand, side):
    """Return the loss as a function of the weights, and the same with a dense matrix."""
    x = np.random.default_rng(1).normal(size=(matrix.shape[side == "left"], COLUMNS)).astype("float32")
    x[::3] = 0
    wrap = WRAPS[operand]
    value = (x != 0).astype("float32") if operand == "binary" else x
    if side == "left":
        return lambda w: ((matrix.with_data(w) @ wrap(x)) ** 2).sum(), lambda a: ((a @ value) ** 2).sum()
    return lambda w: ((wrap(x.T) @ matrix.with_data(w)) ** 2).sum(), lambda a: ((value.T @ a) ** 2).sum()


@pytest.mark.parametrize("kind", [COO, CSR])
@pytest.mark.parametrize(("operand", "side"), [("dense", "left"), ("binary", "right"), ("weighted", "left")])
def test_values_and_memory(kind, operand, side):
    matrix = matrix_of(kind)
    loss, expected = loss_of(matrix, operand, side)
    program = jax.jit(jax.grad(loss)).lower(matrix.data).compile()
    gradient = program(matrix.data)
    row, column = matrix.coordinates()
    of_dense = jax.grad(expected)(matrix.todense())
    assert_allclose(gradient, of_dense.at[row, column].get(mode="fill", fill_value=0), rtol=1e-4, atol=1e-3)
    # Less than a number for each entry and column.
    assert program.memory_analysis().temp_size_in_bytes < ROOM * COLUMNS * 4 / 2


def test_second_order_and_batches():
    matrix = matrix_of(COO)
    loss, _ = loss_of(matrix, "dense", "left")
    tangents = jnp.asarray(np.random.default_rng(2).normal(size=(2, ROOM)), jnp.float32)
    products = jax.vmap(lambda t: jax.jvp(jax.grad(loss), (matrix.data,), (t,))[1])(tangents)
    for product, tangent in zip(products, tangents, strict=True):
        # The loss is quadratic: its gradient is linear, and so its own derivative.
        assert_allclose(product, jax.grad(loss)(tangent), rtol=1e-4, atol=1e-3)
    of_gradient = jax.grad(lambda w: (jax.grad(loss)(w) * tangents[0]).sum())(matrix.data)
    assert_allclose(of_gradient, products[0], rtol=1e-4, atol=1e-3)


def test_rows_out_of_range_are_padding():
    """Also rows beyond the one of padding, which are not checked inside of jit."""
    matrix = matrix_of(COO)
    far = COO((matrix.data, matrix.row.at[-20:].set(1000), matrix.col.at[-20:].set(1000)), shape=SHAPE, check=False)
    loss, _ = loss_of(far, "dense", "left")
    gradient = jax.grad(loss)(far.data)
    with use_backend("jax"):
        expected = jax.grad(loss_of(matrix, "dense", "left")[0])(matrix.data)
    assert_allclose(gradient, expected, rtol=1e-4, atol=1e-3)
    assert (gradient[-20:] == 0).all()
