"""``jax_kernel(enable_backward=True)``: gradients by Warp's adjoint kernels."""

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import ArityError, DifferentiationError, StaticArgumentError
from xlakernel.warp import jax_kernel

pytestmark = pytest.mark.usefixtures("platform")

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.uniform(0.5, 1.5, (2, 4)).astype(np.float32)
PLACES = np.array([2, 0, 2, 2], np.int32)
close = functools.partial(assert_allclose, rtol=1e-5, atol=1e-6)


@wp.kernel
def products(
    x: wp.array(dtype=float),
    y: wp.array(dtype=float),
    factor: float,
    product: wp.array(dtype=float),
    power: wp.array(dtype=float),
):
    i = wp.tid()
    product[i] = factor * x[i] * y[i] * y[i]
    power[i] = wp.pow(x[i], y[i])


@wp.kernel
def in_two_steps(
    x: wp.array(dtype=float), y: wp.array(dtype=float), square: wp.array(dtype=float), out: wp.array(dtype=float)
):
    """Reads what it wrote: Warp's adjoint adds to the gradient of that."""
    i = wp.tid()
    square[i] = x[i] * x[i]
    out[i] = square[i] * y[i]


@wp.kernel
def gather(
    x: wp.array(dtype=float),
    places: wp.array(dtype=int),
    y: wp.array(dtype=float),
    out: wp.array(dtype=float),
    following: wp.array(dtype=int),
):
    """Reads elements several times, so that its adjoint is a scatter by atomics; one output has no gradient."""
    i = wp.tid()
    out[i] = wp.sin(x[places[i]]) * y[i]
    following[i] = places[i] + 1


@wp.kernel
def running_sums(x: wp.array2d(dtype=float), weights: wp.array(dtype=float), out: wp.array2d(dtype=float)):
    """One thread for a row, whose elements depend on each other."""
    i = wp.tid()
    total = float(0)  # one that changes, to Warp
    for j in range(x.shape[1]):
        total += x[i, j] * weights[j]
        out[i, j] = total


@wp.kernel
def rotate(
    q: wp.array(dtype=wp.quat), v: wp.array(dtype=wp.vec3), m: wp.array(dtype=wp.mat33), out: wp.array(dtype=wp.vec3)
):
    i = wp.tid()
    out[i] = m[i] * wp.quat_rotate(q[i], v[i])


@wp.kernel
def scatter(x: wp.array(dtype=float), places: wp.array(dtype=int), total: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(total, places[i], x[i] * x[i])


@wp.kernel
def odd_names(
    primals: wp.array(dtype=float), results: float, cotangents: float, launch: float, inputs: wp.array(dtype=float)
):
    i = wp.tid()
    inputs[i] = primals[i] * results + primals[i] * cotangents * launch


@wp.kernel(module="unique")
def smooth(x: wp.array(dtype=Any), y: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = wp.tanh(x[i]) * y[i] + wp.exp(-y[i] * y[i])


def differentiable(kernel, num_outputs=1, **options):
    return jax_kernel(kernel, num_outputs, enable_backward=True, **options)


# Against JAX's own gradients: a kernel's call, the same in JAX, and its arrays.


def running_sums_in_jax(x, weights):
    return [jnp.cumsum(x * weights, axis=1)]


def rotate_in_jax(q, v, m):
    axis, w = q[:, :3], q[:, 3:]
    turned = v * (2 * w * w - 1) + 2 * w * jnp.cross(axis, v) + 2 * axis * (axis * v).sum(1, keepdims=True)
    return [jnp.einsum("nij,nj->ni", m, turned)]


def unit(q):
    return (q / np.linalg.norm(q, axis=-1, keepdims=True)).astype(np.float32)


CASES = {
    "several outputs": (
        lambda x, y: differentiable(products, 2)(x, y, 0.5),
        lambda x, y: [0.5 * x * y * y, x**y],
        (X, Y),
    ),
    "one output unused": (
        lambda x, y: differentiable(products, 2)(x, y, 1.5)[:1],
        lambda x, y: [1.5 * x * y * y],
        (X, Y),
    ),
    "reads what it wrote": (
        lambda x, y: differentiable(in_two_steps, 2)(x, y),
        lambda x, y: [x * x, x * x * y],
        (X, Y),
    ),
    "integers too": (
        lambda x, y: differentiable(gather, 2)(x, PLACES, y)[:1],
        lambda x, y: [jnp.sin(x[PLACES]) * y],
        (X, Y),
    ),
    "coupled rows": (
        differentiable(running_sums, launch_dims=2),
        running_sums_in_jax,
        (RANDOM.normal(size=(2, 4)).astype(np.float32), Y),
    ),
    "vectors and matrices": (
        differentiable(rotate),
        rotate_in_jax,
        (unit(RANDOM.normal(size=(2, 4))), *(RANDOM.normal(size=(2, *s)).astype(np.float32) for s in ((3,), (3, 3)))),
    ),
}


def loss_of(run):
    """Return a number that depends on each output element in its own way."""

    def loss(*arrays):
        return sum((jnp.sin(out) * (1 + jnp.arange(out.size).reshape(out.shape))).sum() for out in run(*arrays))

    return loss


def every(loss, count):
    return jax.grad(loss, tuple(range(count)))


def of_a_batch(loss, batched):
    """Return the sum of the losses of a batch in the first arrays."""
    return lambda *arrays: jax.vmap(loss, [0] * batched + [None] * (len(arrays) - batched))(*arrays).sum()


# What is done with a loss of some arrays, of which the first may be a batch.
WAYS = {
    "grad": (every, 0),
    "jit of grad": (lambda loss, n: jax.jit(every(loss, n)), 0),
    "checkpoint": (lambda loss, n: jax.jit(every(jax.checkpoint(loss), n)), 0),
    "value_and_grad": (lambda loss, n: jax.value_and_grad(loss, tuple(range(n))), 0),
    "vmap of grad": (lambda loss, n: jax.jit(jax.vmap(every(loss, n), [0] + [None] * (n - 1))), 1),
    "grad of vmap": (lambda loss, n: jax.jit(every(of_a_batch(loss, 1), n)), 1),
    "nested": (lambda loss, n: jax.jit(jax.vmap(every(of_a_batch(loss, 1), n), [0] + [None] * (n - 1))), 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_jax(case, way):
    run, reference, (first, *rest) = CASES[case]
    transform, levels = WAYS[way]
    for level in range(levels):
        first = np.stack([first, 0.7 * first, 1.2 * first][: 3 - level]).astype(np.float32)
    found, expected = (transform(loss_of(f), 1 + len(rest))(first, *rest) for f in (run, reference))
    jax.tree.map(functools.partial(close, rtol=1e-4, atol=1e-4), found, expected)


def test_values_are_those_of_the_kernel_without_gradients():
    run = differentiable(products, 2)
    results = run(X, Y, 2.0)
    assert type(results) is list
    for found, plain in zip(results, jax_kernel(products, 2)(X, Y, 2.0), strict=True):
        assert_array_equal(found, plain)


# Dtypes


def test_double_precision_against_finite_differences(enable_x64):
    with enable_x64():
        x, y = X.astype(np.float64), Y.astype(np.float64)
        check_grads(differentiable(smooth), (x, y), order=1, modes=["rev"], atol=1e-7, rtol=1e-7)
        gradient = jax.grad(lambda x: differentiable(smooth)(x, y)[0].sum())(x)
        assert gradient.dtype == np.float64
        assert_allclose(gradient, y / np.cosh(x) ** 2, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 1e-2), ("bfloat16", 5e-2), ("float32", 1e-5)])
def test_a_generic_kernel_has_gradients_of_each_dtype(dtype, digits):
    x, y = X.astype(dtype), Y.astype(dtype)
    gradients = jax.grad(lambda x, y: differentiable(smooth)(x, y)[0].sum(), (0, 1))(x, y)
    expected = Y / np.cosh(X) ** 2, np.tanh(X) - 2 * Y * np.exp(-Y * Y)
    for found, wanted in zip(gradients, expected, strict=True):
        assert found.dtype == dtype
        assert_allclose(found.astype(np.float32), wanted, rtol=digits, atol=digits)


def test_arrays_without_elements_and_without_dimensions():
    gradient = jax.grad(lambda x: differentiable(smooth)(x, x)[0].sum())
    assert gradient(jnp.zeros(0)).shape == (0,)
    assert jax.vmap(gradient)(jnp.zeros((0, 4))).shape == (0, 4)
    close(gradient(jnp.float32(X[0])), jax.grad(lambda x: jnp.tanh(x) * x + jnp.exp(-x * x))(X[0]))


# Cotangents


def test_integers_have_no_gradient():
    def loss(x, places):
        out, following = differentiable(gather, 2)(x, places, Y)
        return out.sum() + following.sum()

    gradients = jax.grad(loss, (0, 1), allow_int=True)(X, PLACES)
    expected = np.zeros(4, np.float32)
    np.add.at(expected, PLACES, np.cos(X[PLACES]) * Y)
    close(gradients[0], expected)
    assert gradients[1].dtype == jax.dtypes.float0
    close(jax.grad(lambda x: differentiable(gather, 2)(x, PLACES, Y)[1].sum().astype(float))(X), np.zeros(4))


def test_a_scatter():
    run, weights = differentiable(scatter), jnp.arange(1.0, 5.0)
    close(jax.grad(lambda x: (run(x, PLACES)[0] * weights).sum())(X), 2 * X * weights[PLACES])


def test_threads_that_were_not_launched_give_no_gradient():
    run = differentiable(products, 2, launch_dims=2)
    gradients = jax.jit(jax.grad(lambda x, y: run(x, y, 1.0)[0][:2].sum(), (0, 1)))(X, Y)
    reached = np.arange(4) < 2
    for found, expected in zip(gradients, (Y * Y, 2 * X * Y), strict=True):
        close(found, np.where(reached, expected, 0))


def test_cotangents_are_left_as_they_are():
    _, pullback = jax.vjp(differentiable(in_two_steps, 2), X, Y)
    ones = jnp.ones(4)
    for _ in range(2):
        gradients = pullback([ones, ones])
        close(gradients[0], 2 * X * (1 + Y))
        close(gradients[1], X * X)
        assert_array_equal(ones, np.ones(4))
    close(pullback([ones, 0 * ones])[0], 2 * X)
    close(pullback([0 * ones, ones])[0], 2 * X * Y)
    close(pullback([0 * ones, 0 * ones])[0], np.zeros(4))


@pytest.mark.parametrize("method", ["native", "broadcast_all", "sequential"])
def test_slices_that_share_a_cotangent_keep_it_apart(method):
    run, ones = differentiable(in_two_steps, 2, vmap_method=method), jnp.ones(4)

    def pulled_back(x, cotangent):
        return jax.vjp(run, x, Y)[1]([ones, cotangent])

    gradients = jax.jit(jax.vmap(pulled_back, (None, 0)))(X, jnp.ones((3, 4)))
    close(gradients[0], [2 * X * (1 + Y)] * 3)
    close(gradients[1], [X * X] * 3)


def test_the_jacobian():
    run = differentiable(running_sums, launch_dims=2)
    x = RANDOM.normal(size=(2, 4)).astype(np.float32)
    found = jax.jacrev(lambda *arrays: run(*arrays)[0], (0, 1))(x, Y)
    expected = jax.jacrev(lambda *arrays: running_sums_in_jax(*arrays)[0], (0, 1))(x, Y)
    jax.tree.map(close, found, expected)


# JAX's control flow, and the other arguments


def test_a_loop():
    def through(step, x):
        return jax.lax.scan(lambda c, _: (step(c, Y), None), x, length=5)[0].sum()

    run = differentiable(products, 2)
    found = jax.jit(jax.grad(functools.partial(through, lambda x, y: run(x, y, 0.5)[0])))(X)
    close(found, jax.grad(functools.partial(through, lambda x, y: 0.5 * x * y * y))(X), rtol=1e-4)


def test_branches():
    def loss(choice, x):
        return jax.lax.cond(choice, lambda x: differentiable(products, 2)(x, Y, 1.0)[0], jnp.sin, x).sum()

    close(jax.grad(loss, 1)(True, X), Y * Y)
    close(jax.vmap(jax.grad(loss, 1), (0, None))(jnp.array([True, False]), X), [Y * Y, np.cos(X)])


def test_scalars_are_static():
    def loss(x, factor):
        return differentiable(products, 2)(x, Y, factor)[0].sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    close(gradient(X, 2.0) + gradient(X, 3), 5 * Y * Y)
    with pytest.raises(StaticArgumentError, match="Argument 'factor' must be a static value"):
        jax.grad(loss, 1)(X, 2.0)


def test_parameters_may_have_any_name():
    gradient = jax.grad(lambda x: differentiable(odd_names)(x, 2.0, 3.0, 5.0)[0].sum())(X)
    close(gradient, np.full(4, 17))


def test_a_block_of_another_size():
    run = differentiable(products, 2, block_dim=64)
    assert run.block_dim == 64
    close(jax.grad(lambda x: run(x, Y, 1.0)[0].sum())(X), Y * Y)


def test_a_side_effect():
    run = differentiable(products, 2, has_side_effect=True)
    close(jax.jit(jax.grad(lambda x: run(x, Y, 1.0)[0].sum()))(X), Y * Y)


def test_in_debug_mode():
    with debug_mode():
        run = differentiable(in_two_steps, 2)
        gradients = jax.jit(jax.grad(lambda x, y: sum(map(jnp.sum, run(x, y))), (0, 1)))(X, Y)
    close(gradients[0], 2 * X * (1 + Y))
    close(gradients[1], X * X)


# What there is no gradient of


def test_forward_mode_and_second_order_are_refused():
    def total(x):
        return differentiable(products, 2)(x, Y, 1.0)[0].sum()

    for attempt in (
        lambda: jax.jvp(total, (X,), (X,)),
        lambda: jax.jit(jax.jacfwd(total))(X),
        lambda: jax.hessian(total)(X),
        lambda: jax.linearize(total, X)[1](X),
    ):
        with pytest.raises(DifferentiationError, match=r"products: forward mode.*reverse mode"):
            attempt()
    for attempt in (
        lambda: jax.grad(lambda x: jax.grad(total)(x).sum())(X),
        lambda: jax.jacrev(jax.jit(jax.grad(total)))(X),
    ):
        with pytest.raises(DifferentiationError, match="products: a kernel has no derivative of its own"):
            attempt()


def test_per_call_options_are_refused():
    run = differentiable(products, 2)
    for option, text in (
        ({"launch_dims": 3}, "launch_dims cannot be overridden per-call"),
        ({"vmap_method": "sequential"}, "vmap_method cannot be overridden per-call"),
        ({"output_dims": 3}, "output_dims is not supported"),
    ):
        with pytest.raises(ArityError, match=f"products: {text} when enable_backward=True"):
            run(X, Y, 1.0, **option)


without = types.ModuleType("kernels_without_adjoints")
wp.set_module_options({"enable_backward": False}, module=without)


@wp.kernel(module=wp.get_module(without.__name__))
def by_its_module(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = 2.0 * x[i]


@wp.kernel(module="unique", enable_backward=False)
def by_its_own_option(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = 2.0 * x[i]


@pytest.mark.parametrize("kernel", [by_its_module, by_its_own_option], ids=lambda kernel: kernel.func.__name__)
def test_a_kernel_whose_adjoint_is_not_built(kernel):
    run = differentiable(kernel)
    assert_array_equal(run(X)[0], 2 * X)
    for gradient in (jax.grad(lambda x: run(x)[0].sum()), jax.jit(jax.grad(lambda x: run(x)[0].sum()))):
        with pytest.raises(DifferentiationError, match=rf"{kernel.func.__name__}: .*enable_backward is False"):
            gradient(X)
