"""Kernels under JAX's transformations other than vmap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import DifferentiationError

X = np.arange(5, dtype=np.float32)


def test_jit_and_eager_agree_and_trace_once(make_cumsum):
    traced = []

    def outs(x):
        traced.append(x.shape)
        return x

    run = make_cumsum(outs=outs)
    for _ in range(3):
        assert_array_equal(run(X), np.cumsum(X))
    assert traced == [(5,)]
    jitted = jax.jit(run)
    for _ in range(3):
        assert_array_equal(jitted(X), np.cumsum(X))
    assert traced[1:] in ([], [(5,)])  # JAX may or may not reuse the eager call's trace
    run(X[:3])
    assert traced[-1] == (3,)


def test_without_jit(run_cumsum):
    with jax.disable_jit():
        assert_array_equal(run_cumsum(X), np.cumsum(X))
        assert_array_equal(jax.vmap(run_cumsum)(np.stack([X, X])), [np.cumsum(X)] * 2)


def test_shapes_without_running(run_square_plus):
    out = jax.eval_shape(run_square_plus, jax.ShapeDtypeStruct((2, 3), jnp.int16))
    assert (out.shape, out.dtype) == ((2, 3), jnp.int16)
    assert "square_plus" in str(jax.make_jaxpr(run_square_plus)(X))


def test_ahead_of_time_compilation(run_square_plus):
    compiled = jax.jit(run_square_plus).lower(jax.ShapeDtypeStruct((5,), jnp.float32)).compile()
    assert_array_equal(compiled(X), X * X + X)


def test_evaluating_a_jaxpr(run_axpy):
    jaxpr = jax.make_jaxpr(functools.partial(run_axpy, alpha=2.0))(X, X)
    (out,) = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, X, X)
    assert_array_equal(out, 3 * X)


# Control flow


def test_scan_with_a_carry_and_stacked_outputs(run_axpy):
    def step(carry, x):
        new = run_axpy(carry, x, alpha=0.5)
        return new, new

    xs = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    last, every = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(5), xs))()
    carry = np.zeros(5, np.float32)
    for x, found in zip(xs, every, strict=True):
        carry = np.float32(0.5) * carry + x
        assert_allclose(found, carry, rtol=1e-6)
    assert_array_equal(last, every[-1])


def test_loops(run_axpy):
    ones = jnp.ones(4)
    assert_array_equal(jax.lax.fori_loop(0, 10, lambda _, x: run_axpy(x, ones, alpha=1), jnp.zeros(4)), [10] * 4)

    def count(x, limit):
        return jax.lax.while_loop(lambda x: x[0] < limit, lambda x: run_axpy(x, ones, alpha=1), x)

    assert_array_equal(jax.jit(count)(jnp.zeros(4), 6), [6] * 4)
    assert_array_equal(jax.vmap(count, (0, 0))(jnp.zeros((2, 4)), jnp.array([3, 5])), [[3] * 4, [5] * 4])


def test_branches(run_cumsum, run_square_plus):
    def choose(i, x):
        return jax.lax.switch(i, [run_cumsum, run_square_plus, lambda x: -x], x)

    expected = [np.cumsum(X), X * X + X, -X]
    for i, result in enumerate(expected):
        assert_array_equal(jax.jit(choose)(i, X), result)
    assert_array_equal(jax.vmap(choose)(jnp.arange(3), np.stack([X] * 3)), expected)
    assert_array_equal(jax.lax.cond(True, run_cumsum, run_square_plus, X), np.cumsum(X))


def test_a_thousand_steps_in_place(run_add_into):
    out = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda _, acc: run_add_into(acc, x), jnp.zeros_like(x)))(X)
    assert_array_equal(out, 1000 * X)


# Derivatives


def test_a_kernel_has_no_derivative(run_square_plus):
    def loss(x):
        return run_square_plus(x).sum()

    differentiate = [
        lambda: jax.grad(loss)(X),
        lambda: jax.jit(jax.grad(loss))(X),
        lambda: jax.jvp(run_square_plus, (X,), (X,)),
        lambda: jax.linearize(run_square_plus, X),
        lambda: jax.jacrev(run_square_plus)(X),
        lambda: jax.vmap(jax.grad(loss))(np.stack([X, X])),
        lambda: jax.grad(lambda x: jax.lax.scan(lambda c, _: (run_square_plus(c), None), x, length=2)[0].sum())(X),
    ]
    for attempt in differentiate:
        with pytest.raises(
            DifferentiationError, match=r"square_plus: .*no derivative.*reference=.*jvp=.*vjp=.*stop_gradient"
        ):
            attempt()
    assert_array_equal(run_square_plus(X), X * X + X)


def test_kernels_may_stand_outside_the_derivative(run_square_plus, run_cumsum):
    def loss(x, index):
        fixed = run_square_plus(jax.lax.stop_gradient(x))
        order = run_cumsum(index)  # integers have no tangent
        return (x * fixed * order).sum()

    index = jnp.arange(5)
    expected = (X * X + X) * np.cumsum(index)
    assert_allclose(jax.grad(loss)(X, index), expected)
    assert_allclose(jax.jit(jax.grad(jax.checkpoint(loss)))(X, index), expected)
    assert_array_equal(jax.checkpoint(run_cumsum)(X), np.cumsum(X))


def test_a_custom_rule_around_a_kernel(run_square_plus):
    @jax.custom_jvp
    def f(x):
        return run_square_plus(x)

    f.defjvp(lambda primals, tangents: (f(*primals), (2 * primals[0] + 1) * tangents[0]))
    assert_allclose(jax.grad(lambda x: f(x).sum())(X), 2 * X + 1)
    assert_allclose(jax.vmap(jax.grad(f))(X), 2 * X + 1)
    assert_allclose(jax.jacfwd(f)(X), np.diag(2 * X + 1))

    @jax.custom_vjp
    def g(x):
        return run_square_plus(x)

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (run_square_plus(x) * ct,))  # a kernel in the rule
    assert_allclose(jax.jit(jax.grad(lambda x: g(x).sum()))(X), X * X + X)
    assert_allclose(jax.grad(lambda x: jax.checkpoint(g)(x).sum())(X), X * X + X)
