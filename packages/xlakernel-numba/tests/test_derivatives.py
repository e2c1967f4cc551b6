"""Declared derivatives of kernels: each way to declare one, in each mode, against plain JAX and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose

from xlakernel.core.errors import DifferentiationError
from xlakernel.numba import numba_kernel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x64")]
FORWARD_IS_MISSING = r"gather: forward mode .*only vjp= is known. Give jvp= or reference= too, or use reverse mode"

# alpha * sin(x) * y[index]**2: elementwise in x, a gather of y (whose cotangents add up), an integer input between the
# smooth ones, and a static scalar.


@numba.njit
def gather(x, index, y, out, alpha):
    for i in range(out.size):
        out[i] = alpha * np.sin(x[i]) * y[index[i]] ** 2


@numba.njit
def gather_tangent(x, index, y, x_dot, y_dot, out, alpha):
    for i in range(out.size):
        y_i = y[index[i]]
        out[i] = alpha * (np.cos(x[i]) * y_i**2 * x_dot[i] + np.sin(x[i]) * 2 * y_i * y_dot[index[i]])


@numba.njit
def gather_cotangent(x, index, y, out_bar, x_bar, y_bar, alpha):
    y_bar[:] = 0
    for i in range(x.size):
        y_i = y[index[i]]
        x_bar[i] = alpha * np.cos(x[i]) * y_i**2 * out_bar[i]
        y_bar[index[i]] += alpha * np.sin(x[i]) * 2 * y_i * out_bar[i]


run_tangent = numba_kernel(gather_tangent, outs=lambda x, *_: x)
run_cotangent = numba_kernel(gather_cotangent, outs=lambda x, index, y, out_bar: (x, y))


def reference(x, index, y, *, alpha):
    return alpha * jnp.sin(x) * y[index] ** 2


def jvp(primals, tangents, *, alpha):
    x, index, y = primals
    x_dot, none, y_dot = tangents
    assert none is None
    return alpha * (jnp.cos(x) * y[index] ** 2 * x_dot + jnp.sin(x) * 2 * y[index] * y_dot[index])


def vjp(primals, out, out_bar, *, alpha):
    x, index, y = primals
    y_bar = jnp.zeros_like(y).at[index].add(alpha * jnp.sin(x) * 2 * y[index] * out_bar)
    return out / jnp.tan(x) * out_bar, None, y_bar  # higher orders go through the result, too


def jvp_by_kernel(primals, tangents, *, alpha):
    return run_tangent(*primals, tangents[0], tangents[2], alpha=alpha)


def vjp_by_kernel(primals, out, out_bar, *, alpha):
    x_bar, y_bar = run_cotangent(*primals, out_bar, alpha=alpha)
    return x_bar, None, y_bar


WAYS = {
    "reference": {"reference": reference},
    "jvp": {"jvp": jvp},
    "vjp": {"vjp": vjp},
    "jvp and vjp": {"jvp": jvp, "vjp": vjp},
    "jvp and reference": {"jvp": jvp_by_kernel, "reference": reference},
    "vjp and reference": {"vjp": vjp_by_kernel, "reference": reference},
    "all": {"jvp": jvp_by_kernel, "vjp": vjp_by_kernel, "reference": reference},
}
EACH_WAY = pytest.mark.parametrize("way", WAYS)

# Modes, as functions of a function of x and y.
REVERSE = {
    "grad": lambda f: jax.grad(lambda x, y: jnp.cos(f(x, y)).sum(), (0, 1)),
    "grad in one": lambda f: jax.grad(lambda x, y: jnp.cos(f(x, y)).sum(), 1),
    "value and grad": lambda f: jax.value_and_grad(lambda x, y: jnp.cos(f(x, y)).sum(), (0, 1)),
    "vjp": lambda f: lambda x, y: jax.vjp(f, x, y)[1](jnp.cos(f(x, y))),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1)),
    "used twice": lambda f: jax.grad(lambda x, y: f(x, x * f(x, y)[: y.size]).sum(), (0, 1)),
}
FORWARD = {
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (jnp.cos(x), jnp.sin(y))),
    "jvp in one": lambda f: lambda x, y: jax.jvp(lambda y: f(x, y), (y,), (y,)),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](x, y),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "jacfwd of jacrev": lambda f: jax.jacfwd(jax.jacrev(f, (0, 1)), (0, 1)),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f, 0), 1),
    "hessian": lambda f: jax.hessian(lambda x, y: jnp.cos(f(x, y)).sum(), (0, 1)),
}
THIRD = {
    "reverse": lambda f: jax.jacrev(jax.jacrev(jax.jacrev(f, 1), 0), 1),
    "mixed": lambda f: jax.jacfwd(jax.jacrev(jax.jacfwd(f, 0), 0), 1),
}
INDEX = np.array([2, 0, 0, 1], np.int32)
X, Y = np.array([0.5, -1.2, 0.9, 2.0]), np.array([1.5, -0.7, 0.4, 0.0])


def make(way, alpha=2.0):
    run = numba_kernel(gather, outs=lambda x, *_: x, **WAYS[way])
    return lambda x, y: run(x, INDEX, y, alpha=alpha)


def plain(x, y):
    return reference(x, INDEX, y, alpha=2.0)


def same(transform, f, expected, *inputs):
    """Check that *transform* has equal results for both; one program for the two is one compilation."""
    found, expected = jax.jit(lambda *inputs: (transform(f)(*inputs), transform(expected)(*inputs)))(*inputs)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-9, atol=1e-12), found, expected)


@EACH_WAY
@pytest.mark.parametrize("mode", REVERSE)
def test_reverse_mode(way, mode):
    same(REVERSE[mode], make(way), plain, X, Y)


@EACH_WAY
@pytest.mark.parametrize("mode", FORWARD)
def test_forward_mode(way, mode):
    f = make(way)
    if way == "vjp":
        with pytest.raises(DifferentiationError, match=FORWARD_IS_MISSING):
            FORWARD[mode](f)(X, Y)
        with pytest.raises(DifferentiationError, match=FORWARD_IS_MISSING):
            jax.jit(FORWARD[mode](f))(X, Y)
    else:
        same(FORWARD[mode], f, plain, X, Y)


@pytest.mark.parametrize("way", ["reference", "vjp and reference", "all"])
@pytest.mark.parametrize("mode", THIRD)
def test_third_order(way, mode):
    same(THIRD[mode], make(way), plain, X, Y)


@EACH_WAY
def test_finite_differences(way):
    modes = ["rev"] if way == "vjp" else ["fwd", "rev"]
    check_grads(make(way), (X, Y), order=1, modes=modes)


@EACH_WAY
@pytest.mark.parametrize("disable_jit", [False, True], ids=["eager", "without jit"])
def test_without_jit_around(way, disable_jit):
    expected = jax.grad(lambda y: plain(X, y).sum())(Y)
    with jax.disable_jit(disable_jit):
        assert_allclose(jax.grad(lambda y: make(way)(X, y).sum())(Y), expected, rtol=1e-12)


@EACH_WAY
def test_all_inputs_behind_stop_gradient(way):
    def loss(x):
        return (make(way)(jax.lax.stop_gradient(x), Y) * x).sum()

    assert_allclose(jax.grad(loss)(X), plain(X, Y))


@EACH_WAY
def test_an_integer_input_has_a_cotangent_without_a_value(way):
    run = numba_kernel(gather, outs=lambda x, *_: x, **WAYS[way])
    found = jax.grad(lambda *inputs: run(*inputs, alpha=2.0).sum(), (0, 1, 2), allow_int=True)(X, INDEX, Y)
    assert found[1].dtype == jax.dtypes.float0
    assert found[1].shape == INDEX.shape
    expected = jax.grad(lambda x, y: plain(x, y).sum(), (0, 1))(X, Y)
    assert_allclose(found[0], expected[0])
    assert_allclose(found[2], expected[1])


@pytest.mark.parametrize("way", ["reference", "jvp", "jvp and vjp", "all"])
def test_an_integer_input_has_a_tangent_without_a_value(way):
    run = numba_kernel(gather, outs=lambda x, *_: x, **WAYS[way])
    none = np.zeros(INDEX.shape, jax.dtypes.float0)
    found = jax.jvp(lambda *inputs: run(*inputs, alpha=2.0), (X, INDEX, Y), (X, none, Y))
    jax.tree.map(assert_allclose, found, jax.jvp(plain, (X, Y), (X, Y)))


# Linear kernels: scale * a @ x * sin(w), which is linear in a and in x; and 2 a + cumsum(b), linear in both together.


@numba.njit
def bilinear(a, x, w, out, scale):
    for i in range(out.size):
        total = 0.0
        for j in range(x.size):
            total += a[i, j] * x[j]
        out[i] = scale * total * np.sin(w[i])


@numba.njit
def joint(a, b, out):
    total = 0.0
    for i in range(out.size):
        total += b[i]
        out[i] = 2 * a[i] + total


def bilinear_reference(a, x, w, *, scale):
    return scale * (a @ x) * jnp.sin(w)


TRANSPOSES = {
    0: lambda inputs, out_bar, *, scale: jnp.outer(scale * jnp.sin(inputs[2]) * out_bar, inputs[1]),
    1: lambda inputs, out_bar, *, scale: (scale * jnp.sin(inputs[2]) * out_bar) @ inputs[0],
}
A, W = np.arange(1.0, 7).reshape(2, 3) / 3, np.array([0.3, 1.1])
V = np.array([0.5, -1.0, 2.0])

run_bilinear = numba_kernel(bilinear, outs=lambda a, x, w: w, transpose=TRANSPOSES)
run_with_reference = numba_kernel(bilinear, outs=lambda a, x, w: w, transpose=TRANSPOSES, reference=bilinear_reference)
run_joint = numba_kernel(
    joint,
    outs=lambda a, b: a,
    transpose={(0, 1): lambda inputs, out_bar: (2 * out_bar, jnp.cumsum(out_bar[::-1])[::-1])},
)

LINEAR = {
    "bilinear": (
        lambda a, x: run_bilinear(a, x, W, scale=3.0),
        lambda a, x: bilinear_reference(a, x, W, scale=3.0),
        (A, V),
    ),
    "a nonlinear input by reference": (
        lambda x, w: run_with_reference(A, x, w, scale=3.0),
        lambda x, w: bilinear_reference(A, x, w, scale=3.0),
        (V, W),
    ),
    "together": (run_joint, lambda a, b: 2 * a + jnp.cumsum(b), (V, V**2)),
    "the same twice": (
        lambda a, x: run_joint(x, x) * a.sum(),
        lambda a, x: (2 * x + jnp.cumsum(x)) * a.sum(),
        (A, V),
    ),
}
MODES = {name: mode for name, mode in (REVERSE | FORWARD | THIRD).items() if name != "used twice"}


@pytest.mark.parametrize("kernel", LINEAR)
@pytest.mark.parametrize("mode", MODES)
def test_linear_kernels(kernel, mode):
    f, expected, inputs = LINEAR[kernel]
    same(MODES[mode], f, expected, *inputs)


@pytest.mark.parametrize("kernel", LINEAR)
def test_linear_kernels_by_finite_differences(kernel):
    f, _, inputs = LINEAR[kernel]
    check_grads(f, inputs, order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_linear_transpose(wrap):
    out_bar = np.array([1.0, -2.0])
    transposed = jax.linear_transpose(wrap(lambda x: run_bilinear(A, x, W, scale=3.0)), V)
    assert_allclose(transposed(out_bar)[0], (3 * np.sin(W) * out_bar) @ A)
    both = jax.linear_transpose(wrap(run_joint), V, V)(V)
    assert_allclose(both[0], 2 * V)
    assert_allclose(both[1], np.cumsum(V[::-1])[::-1])


def test_linear_transpose_needs_inputs_that_are_linear_together():
    with pytest.raises(DifferentiationError, match=r"bilinear: not linear in the inputs \[0, 1\] together.*\(0,\)"):
        jax.linear_transpose(lambda a, x: run_bilinear(a, x, W, scale=3.0), A, V)(W)


def test_an_input_that_no_transpose_covers_has_no_derivative():
    message = r"bilinear: no derivative with respect to input 2; transpose= covers only \[\(0,\), \(1,\)\].*reference="
    with pytest.raises(DifferentiationError, match=message):
        jax.grad(lambda w: run_bilinear(A, V, w, scale=3.0).sum())(W)


def test_a_linear_kernel_of_integers_and_floats():
    """A kernel serves every dtype: the integers of a call have no derivative, its floats have."""
    whole = np.array([1, 0, 2])
    found = jax.grad(lambda a: run_bilinear(a, whole, W, scale=3.0).sum())(A)
    assert_allclose(found, np.outer(3 * np.sin(W), whole))
    assert_allclose(jax.jvp(lambda a: run_joint(a, whole), (V,), (V,))[1], 2 * V)
    assert_allclose(jax.grad(lambda b: run_joint(b, whole) @ V)(V), 2 * V)
    assert_allclose(jax.grad(lambda b: run_joint(V, b) @ V)(V), np.cumsum(V[::-1])[::-1])
