"""Declared derivatives inside and around vmap, loops, branches, checkpoints and other rules."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from xlakernel.core.errors import DifferentiationError
from xlakernel.numba import numba_kernel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x64")]

# A running sum of sin(x) * y: values mixed up between the slices of a batch change every later element.


@numba.njit
def running(x, y, out):
    total = 0.0
    for i in range(out.size):
        total += np.sin(x[i]) * y[i]
        out[i] = total


@numba.njit
def running_tangent(x, y, x_dot, y_dot, out):
    total = 0.0
    for i in range(out.size):
        total += np.cos(x[i]) * y[i] * x_dot[i] + np.sin(x[i]) * y_dot[i]
        out[i] = total


@numba.njit
def running_cotangent(x, y, out_bar, x_bar, y_bar):
    total = 0.0
    for i in range(x.size - 1, -1, -1):
        total += out_bar[i]
        x_bar[i], y_bar[i] = total * np.cos(x[i]) * y[i], total * np.sin(x[i])


@numba.njit
def product(a, x, out):
    """A function of two vectors like ``sin(x) * y``, linear in each, and coupled by the running sum."""
    total = 0.0
    for i in range(out.size):
        total += a[i] * x[i]
        out[i] = total


def first(x, *_):
    return x


def reference(x, y):
    return jnp.cumsum(jnp.sin(x) * y)


def jvp(primals, tangents):
    return jax.jvp(reference, primals, tangents)[1]


def vjp(primals, out, out_bar):
    return jax.vjp(reference, *primals)[1](out_bar)


run_tangent = numba_kernel(running_tangent, outs=first)
run_cotangent = numba_kernel(running_cotangent, outs=lambda x, y, out_bar: (x, y))


def jvp_by_kernel(primals, tangents):
    return run_tangent(*primals, *tangents)


def vjp_by_kernel(primals, out, out_bar):
    return run_cotangent(*primals, out_bar)


def reverse_cumsum(x):
    return jnp.cumsum(x[::-1])[::-1]


TRANSPOSE = {
    0: lambda inputs, out_bar: reverse_cumsum(out_bar) * inputs[1],
    1: lambda inputs, out_bar: reverse_cumsum(out_bar) * inputs[0],
}
KERNELS = {
    "reference": numba_kernel(running, outs=first, reference=reference),
    "jvp": numba_kernel(running, outs=first, jvp=jvp),
    "vjp": numba_kernel(running, outs=first, vjp=vjp),
    "jvp and vjp": numba_kernel(running, outs=first, jvp=jvp_by_kernel, vjp=vjp_by_kernel),
    "vjp and reference": numba_kernel(running, outs=first, vjp=vjp_by_kernel, reference=reference),
    "all": numba_kernel(running, outs=first, jvp=jvp_by_kernel, vjp=vjp_by_kernel, reference=reference),
    "one by one": numba_kernel(running, outs=first, vmap_method="sequential", jvp=jvp, vjp=vjp_by_kernel),
    "transpose": lambda x, y: run_product(jnp.sin(x), y),
}
run_product = numba_kernel(product, outs=first, transpose=TRANSPOSE)
WAYS = list(KERNELS)
X, Y = np.array([0.5, -1.2, 0.9]), np.array([1.5, -0.7, 0.4])
XS, YS = np.stack([X, 2 * X, X - 1, -X]), np.stack([Y, Y**2]).T  # batches along 0, and along 1


def total(f):
    return lambda *inputs: jnp.cos(f(*inputs)).sum()


def loop(f, steps):
    """Return a scan with a carry that depends on y, a constant of the loop, and stacked outputs."""

    def run(x, y):
        def step(carry, scale):
            new = f(carry, y) * scale
            return new / 2, new

        return jax.lax.scan(step, x, jnp.linspace(0.5, 1.0, steps))

    return lambda x, y: sum(jnp.cos(leaf).sum() for leaf in jax.tree.leaves(run(x, y)))


def custom_vjp(f):
    @jax.custom_vjp
    def around(x, y):
        return f(x, y)

    around.defvjp(lambda x, y: jax.vjp(f, x, y), lambda back, out_bar: back(2 * out_bar))
    return around


def counted(f):
    """Return a loop with an integer in its carry, which has no derivative."""

    def run(x, y):
        def step(_, carry):
            count, value = carry
            return count + 1, f(value * count, y)

        return jnp.cos(jax.lax.fori_loop(0, 3, step, (1, x))[1]).sum()

    return run


# Functions of x and y by name: (which function of f is differentiated, its inputs).
CONTEXTS = {
    "jit": (lambda f: total(jax.jit(f)), (X, Y)),
    "vmap": (lambda f: total(jax.vmap(f)), (XS, 3 * XS)),
    "vmap, one unbatched": (lambda f: total(jax.vmap(f, (0, None))), (XS, Y)),
    "vmap, the other unbatched": (lambda f: total(jax.vmap(f, (None, 1))), (X, YS)),
    "vmap, two axes": (lambda f: total(jax.vmap(f, (0, 1), out_axes=1)), (XS[:2], YS)),
    "nested vmap": (lambda f: total(jax.vmap(jax.vmap(f, (None, 1)), (0, None))), (XS, YS)),
    "nested vmap of one": (lambda f: total(jax.vmap(jax.vmap(f, (0, None)), (1, None))), (XS[:, None] * YS.T[0], Y)),
    "vmap of a batch of one": (lambda f: total(jax.vmap(f, (0, None))), (XS[:1], Y)),
    "vmap of nothing": (lambda f: total(jax.vmap(f, (0, None))), (XS[:0], Y)),
    "scan": (lambda f: loop(f, 3), (X, Y)),
    "vmap of scan": (lambda f: lambda x, y: jax.vmap(loop(f, 2), (0, None))(x, y).sum(), (XS, Y)),
    "fori_loop": (counted, (X, Y)),
    "cond": (lambda f: lambda x, y: jax.lax.cond(x[0] > 0, total(f), lambda x, y: x @ y, x, y), (X, Y)),
    "vmap of cond": (
        lambda f: lambda x, y: jax.vmap(lambda x: jax.lax.cond(x[0] > 0, total(f), lambda x, y: x @ y, x, y))(x).sum(),
        (XS, Y),
    ),
    "checkpoint": (lambda f: total(jax.checkpoint(f)), (X, Y)),
    "checkpoint in scan": (lambda f: loop(jax.checkpoint(f), 3), (X, Y)),
    "custom_vjp around": (lambda f: total(custom_vjp(f)), (X, Y)),
    "of itself": (lambda f: total(lambda x, y: f(f(x, y), f(y, x))), (X, Y)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_gradients(context, way):
    wrap, inputs = CONTEXTS[context]
    f = KERNELS[way]

    def both(*inputs):
        return [jax.value_and_grad(wrap(f), (0, 1))(*inputs) for f in (f, reference)]

    found, expected = jax.jit(both)(*inputs)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-10, atol=1e-12), found, expected)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "vjp"])
@pytest.mark.parametrize("context", [context for context in CONTEXTS if context != "custom_vjp around"])
def test_tangents(context, way):
    wrap, inputs = CONTEXTS[context]
    f = KERNELS[way]

    def both(*inputs):
        return [jax.jvp(wrap(f), inputs, jax.tree.map(jnp.cos, inputs)) for f in (f, reference)]

    found, expected = jax.jit(both)(*inputs)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-10, atol=1e-12), found, expected)


MAPS_OF_DERIVATIVES = {
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f), (0, 1)), (0, None)),
    "vmap of jacrev": lambda f: jax.vmap(jax.jacrev(f, (0, 1)), (0, None)),
    "vmap of jacfwd": lambda f: jax.vmap(jax.jacfwd(f, (0, 1)), (0, None)),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(total(f), (0, 1)), (0, None)),
    "vmap of a cotangent": lambda f: lambda xs, y: jax.vmap(jax.vjp(f, xs[0], y)[1])(xs),
    "hessian of vmap": lambda f: jax.hessian(total(jax.vmap(f, (0, None))), 1),
    "jacrev of vmap of grad": lambda f: jax.jacrev(jax.vmap(jax.grad(total(f)), (0, None)), 1),
    "hessian of checkpoint": lambda f: lambda xs, y: jax.hessian(total(jax.checkpoint(f)), 1)(xs[0], y),
}
SECOND_ORDER = ["reference", "jvp", "vjp and reference", "all", "transpose"]


@pytest.mark.parametrize("way", SECOND_ORDER)
@pytest.mark.parametrize("derive", MAPS_OF_DERIVATIVES)
def test_maps_of_derivatives(derive, way):
    derive, f = MAPS_OF_DERIVATIVES[derive], KERNELS[way]
    found, expected = jax.jit(lambda *inputs: [derive(f)(*inputs) for f in (f, reference)])(XS, Y)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-10, atol=1e-12), found, expected)


SECOND_ORDER_DERIVATIVES = {
    "hessian": jax.hessian,
    "jvp of grad": lambda f: lambda x, y: jax.jvp(jax.grad(f), (x, y), (y, x))[1],
    "grad of grad": lambda f: jax.grad(lambda x, y: (jax.grad(f)(x, y) * y).sum()),
    "grad of jvp": lambda f: jax.grad(lambda x, y: jax.jvp(f, (x, y), (y, x))[1]),
}


@pytest.mark.parametrize("way", SECOND_ORDER)
@pytest.mark.parametrize("derive", SECOND_ORDER_DERIVATIVES)
def test_second_order_of_a_scan(derive, way):
    """JAX drops the rule of a `jax.custom_jvp` in a differentiated loop (jax < 0.12)."""
    derive = SECOND_ORDER_DERIVATIVES[derive]
    assert_allclose(derive(loop(KERNELS[way], 2))(X, Y), derive(loop(reference, 2))(X, Y), rtol=1e-10)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "vjp"])
def test_while_has_forward_mode(way):
    def grow(f):
        return lambda x: jax.lax.while_loop(lambda x: jnp.abs(x).max() < 5, lambda x: 2 * x + f(x, Y), x)

    found, expected = jax.jit(lambda: [jax.jvp(grow(f), (X,), (Y,)) for f in (KERNELS[way], reference)])()
    jax.tree.map(assert_allclose, found, expected)


def test_kernels_in_the_rules_end_the_orders():
    """The kernels of jvp= and vjp= have no derivatives."""
    with pytest.raises(DifferentiationError, match=r"running_\w+: a kernel has no derivative.*reference="):
        jax.hessian(total(KERNELS["jvp and vjp"]))(X, Y)
    only_forward = numba_kernel(running, outs=first, jvp=jvp_by_kernel)
    jax.jacfwd(only_forward)(X, Y)
    with pytest.raises(DifferentiationError, match=r"tangent: reverse mode .*give that kernel vjp= or reference="):
        jax.grad(total(only_forward))(X, Y)


# Compositions and transformations at random.

COMPOSE = {
    "alone": lambda f: f,
    "twice": lambda f: lambda x, y: f(f(x, y) / 2, y),
    "swapped": lambda f: lambda x, y: f(y, x) * y,
    "with itself": lambda f: lambda x, y: f(x, x) + jnp.exp(-y),
}
WRAP = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "grad x": lambda f: jax.grad(total(f)),
    "grad y": lambda f: jax.grad(total(f), 1),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (jnp.cos(y), x))[1],
    "vmap": lambda f: lambda x, y: jax.vmap(f, (0, None))(jnp.stack([x, y]), y).sum(0),
    "vmap both": lambda f: lambda x, y: jax.vmap(f, (1, 0))(jnp.stack([x, y], 1), jnp.stack([y, 2 * x])).prod(0),
    "jacrev": lambda f: lambda x, y: jax.jacrev(f)(x, y) @ y,
    "jacfwd": lambda f: lambda x, y: jax.jacfwd(f, 1)(x, y) @ x,
}


@given(
    way=st.sampled_from(["reference", "vjp and reference", "all", "transpose"]),
    compose=st.sampled_from(sorted(COMPOSE)),
    wraps=st.lists(st.sampled_from(sorted(WRAP)), min_size=1, max_size=3),
)
def test_random_transformations(way, compose, wraps, enable_x64):
    def build(f):
        f = COMPOSE[compose](f)
        for wrap in wraps:
            f = WRAP[wrap](f)
        return f

    with enable_x64():
        found, expected = jax.jit(lambda x, y: (build(KERNELS[way])(x, y), build(reference)(x, y)))(X, Y)
        assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
