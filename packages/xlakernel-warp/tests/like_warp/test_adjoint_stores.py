"""``jax_kernel(enable_backward=True)``: elements that are stored several times, against ``wp.Tape`` and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.warp import jax_kernel

pytestmark = pytest.mark.usefixtures("platform", "x64")

Floats = wp.array(dtype=wp.float64)
Rows = wp.array2d(dtype=wp.float64)

X = np.array([[0.3, 0.7, 1.1], [0.9, 0.2, 0.4]])
WEIGHTS = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])


@wp.func
def put(out: Rows, i: int, j: int, value: wp.float64):
    out[i, j] = value


@wp.func
def put_if_large(out: Rows, i: int, j: int, value: wp.float64):
    if value > wp.float64(0.5):
        put(out, i, j, wp.float64(3.0) * value)


@wp.func
def put_into(row: Floats, j: int, value: wp.float64):
    row[j] = value


@wp.func
def add(out: Rows, i: int, j: int, value: wp.float64):
    wp.atomic_add(out, i, j, value)


# Kernels of the rows of a matrix, which write a matrix of the same extents.


@wp.kernel
def a_default(x: Rows, out: Rows):
    i, j = wp.tid()
    out[i, j] = x[i, j] * x[i, j]
    if x[i, j] > wp.float64(0.5):
        out[i, j] = wp.float64(3.0) * x[i, j]


@wp.kernel
def by_a_function(x: Rows, out: Rows):
    i, j = wp.tid()
    put(out, i, j, x[i, j] * x[i, j])
    put_if_large(out, i, j, x[i, j])


@wp.kernel
def by_a_function_of_a_row(x: Rows, out: Rows):
    i, j = wp.tid()
    put_into(out[i], j, wp.sin(x[i, j]))
    put_into(out[i], j, wp.exp(x[i, j]))


@wp.kernel
def in_a_loop(x: Rows, out: Rows):
    i, j = wp.tid()
    for k in range(3):
        out[i, j] = wp.float64(k) * x[i, j] * x[i, j]


@wp.kernel
def along_a_row(x: Rows, out: Rows):
    i = wp.tid()
    last = x.shape[1] - 1
    for j in range(x.shape[1]):
        out[i, j] = x[i, j] * x[i, j]
    for j in range(x.shape[1]):
        if x[i, j] > wp.float64(0.5):
            out[i, last - j] = wp.float64(3.0) * x[i, j]


@wp.kernel
def through_views(x: Rows, out: Rows):
    i = wp.tid()
    row, written = x[i], out[i]
    for j in range(row.shape[0]):
        written[j] = row[j] * row[j]
        if row[j] > wp.float64(0.5):
            written[j] = wp.float64(3.0) * row[j]


@wp.kernel
def added_to_a_default(x: Rows, out: Rows):
    i, j = wp.tid()
    out[i, j] = wp.sin(x[i, j])
    out[i, j] = x[i, j]
    wp.atomic_add(out, i, j, x[i, j] * x[i, j])
    add(out, i, j, wp.exp(x[i, j]))
    out[i, j] += wp.float64(5.0) * x[i, j]


@wp.kernel
def stored_over_a_sum(x: Rows, out: Rows):
    i, j = wp.tid()
    out[i, j] = wp.float64(0.0)
    add(out, i, j, wp.exp(x[i, j]))
    wp.atomic_add(out, i, j, x[i, j])
    if x[i, j] > wp.float64(0.5):
        out[i, j] = x[i, j] * x[i, j]


@wp.kernel
def and_returned(x: Rows, out: Rows):
    i, j = wp.tid()
    out[i, j] = x[i, j] * x[i, j]
    if x[i, j] < wp.float64(0.5):
        return
    out[i, j] = wp.float64(3.0) * x[i, j]


@wp.kernel
def of_a_constant(x: Rows, out: Rows):
    i, j = wp.tid()
    out[i, j] = x[i, j]
    if x[i, j] > wp.float64(0.5):
        out[i, j] = wp.float64(1.0)


RIGHT = {
    kernel.key: (kernel, () if kernel in (along_a_row, through_views) else (3,))
    for kernel in (
        *(a_default, by_a_function, by_a_function_of_a_row, in_a_loop, along_a_row, through_views),
        *(added_to_a_default, stored_over_a_sum, and_returned, of_a_constant),
    )
}


def wrapped(kernel, over=(3,)):
    run = jax_kernel(kernel, launch_dims=(2, *over), enable_backward=True)
    return lambda x: run(x)[0]


def loss_of(run):
    return lambda x: (jnp.asarray(WEIGHTS) * run(x)).sum()


def by_the_tape(kernel, x, over, platform):
    """Return the gradient of the weighted sum of what a kernel writes."""
    with wp.ScopedDevice("cpu" if platform == "cpu" else "cuda:0"):
        x, out = wp.array(x, dtype=wp.float64, requires_grad=True), wp.zeros((2, 3), wp.float64, requires_grad=True)
        with wp.Tape() as tape:
            wp.launch(kernel, dim=(2, *over), inputs=[x], outputs=[out])
        tape.backward(grads={out: wp.array(WEIGHTS, dtype=wp.float64)})
        return x.grad.numpy()


def by_differences(loss, x, step=1e-6):
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[place] = step
        found[place] = (loss(x + shift) - loss(x - shift)) / (2 * step)
    return found


@pytest.mark.parametrize("name", RIGHT)
def test_a_gradient_is_that_of_the_tape_and_of_differences(name, platform):
    kernel, over = RIGHT[name]
    loss = loss_of(wrapped(kernel, over))
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        found = gradient(X)
        assert_allclose(found, by_the_tape(kernel, X, over, platform), rtol=1e-12)
        assert_allclose(found, by_differences(loss, X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["a_default", "through_views", "added_to_a_default"])
def test_in_batches_and_loops(name):
    kernel, over = RIGHT[name]
    run = wrapped(kernel, over)
    gradient, batch = jax.grad(loss_of(run)), np.stack([X, 1.3 * X, X[::-1]])
    assert_allclose(jax.jit(jax.vmap(gradient))(batch), [gradient(x) for x in batch], rtol=1e-12)
    summed = jax.grad(lambda batch: jax.vmap(loss_of(run))(batch).sum())
    assert_allclose(summed(batch), [gradient(x) for x in batch], rtol=1e-12)

    def looped(x):
        return loss_of(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(run(c)), None), x, length=3)[0])(x)

    assert_allclose(jax.jit(jax.grad(looped))(X), by_differences(jax.jit(looped), X), rtol=1e-5, atol=1e-9)


def test_cotangents_and_results_stay_as_they_are():
    """Warp clears the cotangent of what was stored over: in a copy."""
    out, pull = jax.vjp(wrapped(a_default), X)
    kept, weights = np.asarray(out).copy(), jnp.asarray(WEIGHTS)
    first = pull(weights)[0]
    for _ in range(2):
        assert_array_equal(pull(weights)[0], first)
    assert_array_equal(weights, WEIGHTS)
    assert_array_equal(out, kept)
    many = jax.jit(jax.vmap(lambda c: jax.vjp(wrapped(a_default), X)[1](c)[0]))(jnp.stack([weights] * 3))
    assert_array_equal(many, np.stack([first] * 3))


def test_in_debug_mode():
    with debug_mode():
        found = jax.grad(loss_of(wrapped(a_default)))(X)
    assert_allclose(found, WEIGHTS * np.where(X > 0.5, 3, 2 * X))


# What Warp's adjoints get wrong, as the tutorial says: the tape does too.


@wp.kernel
def read_and_overwritten(x: Rows, out: Rows):
    i, j = wp.tid()
    out[i, j] = x[i, j]
    out[i, j] = out[i, j] * x[i, j]


@wp.kernel
def left_by_break(x: Rows, out: Rows):
    i, j = wp.tid()
    total = wp.float64(0.0)
    for k in range(x.shape[1]):
        if k > j:
            break
        total += x[i, k] * x[i, k]
    out[i, j] = total


@wp.kernel
def while_loop(x: Rows, out: Rows):
    i, j = wp.tid()
    total, k = wp.float64(0.0), wp.int32(0)
    while k <= j:
        total += x[i, k] * x[i, k]
        k += 1
    out[i, j] = total


@wp.kernel
def product_in_a_loop(x: Rows, out: Rows):
    i, j = wp.tid()
    product = wp.float64(1.0)
    for k in range(j + 1):
        product = product * x[i, k]
    out[i, j] = product


@pytest.mark.parametrize("kernel", [read_and_overwritten, left_by_break, while_loop, product_in_a_loop])
def test_what_the_tape_gets_wrong_is_wrong_alike(kernel, platform):
    loss = loss_of(wrapped(kernel))
    found = jax.grad(loss)(X)
    assert_allclose(found, by_the_tape(kernel, X, (3,), platform), rtol=1e-12)
    assert not np.allclose(found, by_differences(loss, X))


# Vectors and matrices


@wp.kernel
def vectors(x: wp.array(dtype=wp.vec3d), out: wp.array(dtype=wp.vec3d)):
    i = wp.tid()
    out[i] = wp.cw_mul(x[i], x[i])
    if x[i][1] > wp.float64(0.5):
        out[i] = wp.float64(3.0) * x[i]


@wp.kernel
def components(x: wp.array(dtype=wp.vec3d), out: wp.array(dtype=wp.vec3d)):
    i = wp.tid()
    out[i] = wp.cw_mul(x[i], x[i])
    out[i][1] = wp.sin(x[i][2])
    if x[i][0] > wp.float64(0.5):
        out[i][1] = wp.float64(3.0) * x[i][0]


@pytest.mark.parametrize("kernel", [vectors, components], ids=lambda kernel: kernel.key)
def test_vectors(kernel):
    loss = loss_of(wrapped(kernel, ()))
    assert_allclose(jax.jit(jax.grad(loss))(X), by_differences(loss, X), rtol=1e-6, atol=1e-9)


@wp.kernel
def matrices(x: wp.array(dtype=wp.mat22d), out: wp.array(dtype=wp.mat22d)):
    i = wp.tid()
    out[i] = x[i] * x[i]
    out[i] = wp.transpose(x[i])
    if x[i][0, 1] > wp.float64(0.5):
        out[i][1, 0] = x[i][0, 0] * x[i][1, 1]


def test_matrices():
    x = np.array([[[0.3, 0.7], [0.2, 1.1]], [[0.6, 0.1], [0.5, 0.9]]])
    run = jax_kernel(matrices, enable_backward=True)

    def loss(x):
        return (jnp.arange(1.0, 9.0).reshape(2, 2, 2) * run(x)[0]).sum()

    assert_allclose(jax.jit(jax.grad(loss))(x), by_differences(loss, x), rtol=1e-6, atol=1e-9)


# Stores in any order, which one kernel reads from an array


@wp.kernel
def stores(x: Rows, steps: wp.array2d(dtype=int), out: Rows):
    i = wp.tid()
    for j in range(out.shape[1]):
        out[i, j] = x[i, j]
    for k in range(steps.shape[0]):
        kind, to = steps[k, 0], steps[k, 1]
        value = wp.float64(k + 2) * x[i, steps[k, 2]] * x[i, steps[k, 2]]
        if kind == 0:
            out[i, to] = value
        elif kind == 1:
            put(out, i, to, value)
        elif kind == 2:
            if value > wp.float64(1.0):
                out[i, to] = value
        elif kind == 3:
            wp.atomic_add(out, i, to, value)
        elif kind == 4:
            row = out[i]
            row[to] = value
        elif kind == 5:
            put_into(out[i], to, value)
        elif kind == 6:
            add(out, i, to, value)
        else:
            out[i, to] -= value


def stores_in_jax(x, steps):
    columns = [x[:, j] for j in range(3)]
    for k, (kind, to, source) in enumerate(steps):
        value = (k + 2) * x[:, source] ** 2
        before = columns[to]
        added = {2: jnp.where(value > 1, value, before), 3: before + value, 6: before + value, 7: before - value}
        columns[to] = added.get(kind, value)
    return jnp.stack(columns, 1)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8))
def test_stores_in_any_order(steps):
    run = jax_kernel(stores, launch_dims=2, enable_backward=True)
    table = np.array(steps, np.int32)
    gradient = jax.grad(loss_of(lambda x: run(x, table)[0]))
    assert_allclose(run(X, table)[0], stores_in_jax(X, steps), rtol=1e-12, atol=1e-12)
    assert_allclose(gradient(X), jax.grad(loss_of(lambda x: stores_in_jax(x, steps)))(X), rtol=1e-12, atol=1e-12)
