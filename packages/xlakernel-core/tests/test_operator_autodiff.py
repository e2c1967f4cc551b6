"""Derivatives of an operator by its author's rules, against finite differences and against jax.numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

Struct = jax.ShapeDtypeStruct
pytestmark = pytest.mark.usefixtures("x64")


def random(*shape):
    return np.random.default_rng(len(shape)).uniform(0.5, 2.0, shape)


def same(transform, f, reference, *ins):
    """Check that *transform* makes the same of both; one program for the two is one compilation."""
    found, expected = jax.jit(lambda *ins: (transform(f)(*ins), transform(reference)(*ins)))(*ins)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-10), found, expected)


@pytest.fixture
def power(new_operator):
    """x**n for a static n. The rule calls the operator again, so every order has a derivative."""
    op = new_operator()
    op.def_jax_kernel(lambda outs, *, n: lambda x: x**n)

    def rule(tangent, x, *, n, outs, **params):
        return n * op(x, outs=x, n=n - 1) * tangent

    op.def_jvp_rule2(rule)
    return lambda x, n=3: op(x, outs=x, n=n)


@pytest.fixture
def product(new_operator):
    """Matrix times vector, linear in each: derivatives are the operator itself, and transposes of it."""
    op = new_operator(jnp.dot)

    def transpose(cotangents, a, x, **params):
        (cotangent,) = cotangents
        if ad.is_undefined_primal(x):
            return None, a.T @ cotangent
        return jnp.outer(cotangent, x), None

    op.def_jvp_rule2(
        lambda tangent, a, x, **params: op.primitive.bind(tangent, x, **params),
        lambda tangent, a, x, **params: op.primitive.bind(a, tangent, **params),
    )
    op.def_transpose_rule(transpose)
    return lambda a, x: op(a, x, outs=Struct(a.shape[:1], a.dtype))


@pytest.fixture
def top(new_operator):
    """The largest element, its position, and the sum of all: an integer result between two smooth ones."""
    op = new_operator(lambda x: (x.max(), x.argmax().astype(jnp.int32), x.sum()))

    def rule(primals, tangents, **params):
        results = op.primitive.bind(*primals, **params)
        tangent = ad.instantiate_zeros(tangents[0])
        index = ad.Zero(jax.core.ShapedArray((), jax.dtypes.float0))
        return results, [tangent[results[1]], index, tangent.sum()]

    op.def_jvp_rule(rule)
    scalar = Struct((), jnp.float64)
    return lambda x: op(x, outs=(scalar, Struct((), jnp.int32), scalar))


X = np.array([1.5, 0.5, 2.0])


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_derivatives_are_finite_differences(power, product, wrap):
    check_grads(wrap(power), (X,), order=2, modes=("fwd", "rev"))
    check_grads(wrap(product), (random(2, 3), random(3)), order=1, modes=("fwd", "rev"))


DERIVATIVES = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": lambda f: jax.hessian(lambda x: f(x).sum()),
    "third order": lambda f: jax.jacfwd(jax.jacfwd(jax.jacrev(f))),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.cos(x)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "chain": lambda f: jax.value_and_grad(lambda x: f(f(x)).prod()),
}


@pytest.mark.parametrize("derive", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_are_those_of_jax_numpy(power, derive):
    same(derive, power, lambda x: x * x * x, X)


def test_derivatives_without_jit(power, product):
    assert_allclose(jax.grad(lambda x: power(x).sum())(X), 3 * X**2)
    assert_allclose(jax.grad(lambda x: product(np.eye(3), x).sum())(X), np.ones(3))


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
@pytest.mark.parametrize("derive", [jax.jacfwd, jax.jacrev, jax.hessian])
def test_a_linear_operator_of_two_inputs(product, derive, argnums):
    same(lambda f: derive(lambda a, x: jnp.sin(f(a, x)), argnums), product, jnp.dot, random(2, 3), random(3))


def test_linear_transpose(product):
    a, x, y = random(2, 3), random(3), random(2)
    assert_allclose(jax.linear_transpose(lambda x: product(a, x), x)(y)[0], a.T @ y)
    assert_allclose(jax.linear_transpose(lambda a: product(a, x), a)(y)[0], np.outer(y, x))


def test_the_derivative_keeps_the_static_keywords(power):
    assert_allclose(jax.grad(lambda x: power(x, 5))(2.0), 5 * 2.0**4)
    assert_allclose(jax.grad(lambda x: power(x, 2) + power(x, 4))(2.0), 4 + 32)


def test_in_scan(power):
    def f(x, step):
        return jax.lax.scan(lambda c, _: (step(c) / 2, c), x, length=4)[1].sum()

    same(lambda step: jax.grad(functools.partial(f, step=step)), power, lambda x: x**3, X)


# Several results, and an integer among them.


def test_an_integer_result_has_a_tangent_without_a_value(top):
    results, tangents = jax.jvp(top, (X,), (jnp.array([1.0, 10, 100]),))
    assert results == (2.0, 2, 4.0)
    assert tangents[::2] == (100, 111)
    assert tangents[1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_through_some_of_the_results(top, wrap):
    assert_array_equal(wrap(jax.grad(lambda x: top(x)[0]))(X), [0, 0, 1])
    assert_array_equal(wrap(jax.grad(lambda x: top(x)[2]))(X), [1, 1, 1])
    assert_array_equal(wrap(jax.grad(lambda x: 2 * top(x)[2] + top(x)[0]))(X), [2, 2, 3])
    assert_array_equal(wrap(jax.grad(lambda x: x[top(x)[1]] ** 2))(X), [0, 0, 4])


def test_rules_by_input_may_leave_an_integer_result_out(new_operator):
    op = new_operator(lambda x: (x * 2, x.argmax().astype(jnp.int32)))
    float0 = ad.Zero(jax.core.ShapedArray((), jax.dtypes.float0))
    op.def_jvp_rule2(lambda tangent, x, **params: [tangent * 2, float0])

    def f(x):
        return op(x, outs=[x, Struct((), jnp.int32)])

    assert_array_equal(jax.grad(lambda x: f(x)[0].sum())(X), [2, 2, 2])
    assert_array_equal(jax.jacfwd(lambda x: f(x)[0])(X), 2 * np.eye(3))
    assert_array_equal(jax.vmap(jax.grad(lambda x: f(x)[0].sum()))(np.stack([X, X])), np.full((2, 3), 2))
