"""Warp kernels under the transformations of JAX other than vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import DifferentiationError, DtypeError, SideEffectError
from xlakernel.warp import jax_kernel, warp_kernel

wp.set_module_options({"enable_backward": False})
pytestmark = pytest.mark.usefixtures("platform")

X = np.arange(5, dtype=np.float32)


@wp.kernel
def cumsum(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    """By one thread, with elements that depend on all before them, so that a mixed-up slice shows."""
    total = float(0)  # one that changes, to Warp
    for i in range(x.shape[0]):
        total += x[i]
        out[i] = total


@wp.kernel
def square_plus(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * x[i] + x[i]


@wp.kernel
def axpy(alpha: float, x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = alpha * x[i] + y[i]


@wp.kernel
def add_into(acc: wp.array(dtype=float), x: wp.array(dtype=float), out: wp.array(dtype=float)):
    """For an alias of acc and out."""
    i = wp.tid()
    out[i] = out[i] + x[i]


@wp.kernel
def double_of_64_bits(x: wp.array(dtype=wp.float64), n: wp.array(dtype=wp.int64), out: wp.array(dtype=wp.float64)):
    i = wp.tid()
    out[i] = wp.float64(2.0) * x[i] + wp.float64(n[i])


def same(x, *_):
    return x


run_cumsum = warp_kernel(cumsum, same, launch_dims=1)
run_square_plus = warp_kernel(square_plus, same)
run_axpy = warp_kernel(axpy, same)
run_add_into = warp_kernel(add_into, same, input_output_aliases={0: 0})


def jax_square_plus(x):
    return jax_kernel(square_plus)(x)[0]


BOTH = pytest.mark.parametrize("run", [run_square_plus, jax_square_plus], ids=["warp_kernel", "jax_kernel"])


def test_jit_and_eager_agree_and_trace_once():
    traced = []

    def outs(x):
        traced.append(x.shape)
        return x

    run = warp_kernel(cumsum, outs, launch_dims=1)
    for _ in range(3):
        assert_array_equal(run(X), np.cumsum(X))
    assert traced == [(5,)]
    jitted = jax.jit(run)
    for _ in range(3):
        assert_array_equal(jitted(X), np.cumsum(X))
    assert traced[1:] in ([], [(5,)])  # JAX may or may not reuse the eager call's trace
    assert_array_equal(run(X[:3]), np.cumsum(X[:3]))
    assert traced[-1] == (3,)


@BOTH
def test_without_jit(run):
    with jax.disable_jit():
        assert_array_equal(run(X), X * X + X)
        assert_array_equal(jax.vmap(run)(np.stack([X, 2 * X])), np.stack([X * X + X, 4 * X * X + 2 * X]))
        looped = jax.lax.fori_loop(0, 3, lambda _, x: run(x), X[:2])
        assert_array_equal(looped, [0, 42])


@BOTH
def test_shapes_programs_and_ahead_of_time(run):
    struct = jax.ShapeDtypeStruct((5,), jnp.float32)
    assert jax.eval_shape(run, struct) == struct
    jaxpr = jax.make_jaxpr(run)(X)
    assert "square_plus" in str(jaxpr)
    (out,) = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, X)
    assert_array_equal(out, X * X + X)
    compiled = jax.jit(run).lower(struct).compile()
    assert_array_equal(compiled(X), X * X + X)


def test_arrays_of_numpy_and_of_another_layout():
    assert_array_equal(run_square_plus(np.arange(5.0)), X * X + X)  # of 64 bits, which JAX makes 32
    assert_array_equal(run_square_plus(np.stack([X, X], axis=1)[:, 1]), X * X + X)
    assert_array_equal(jax.jit(run_cumsum)(np.arange(10, dtype=np.float32)[::-2]), np.cumsum([9, 7, 5, 3, 1]))


# Control flow


def test_scan_with_a_carry_and_stacked_outputs():
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


def test_loops():
    ones = jnp.ones(4)
    assert_array_equal(jax.lax.fori_loop(0, 10, lambda _, x: run_axpy(x, ones, alpha=1), jnp.zeros(4)), [10] * 4)

    def count(x, limit):
        return jax.lax.while_loop(lambda x: x[0] < limit, lambda x: run_axpy(x, ones, alpha=1), x)

    assert_array_equal(jax.jit(count)(jnp.zeros(4), 6), [6] * 4)
    assert_array_equal(jax.vmap(count)(jnp.zeros((2, 4)), jnp.array([3, 5])), [[3] * 4, [5] * 4])


def test_branches():
    def choose(i, x):
        return jax.lax.switch(i, [run_cumsum, run_square_plus, jnp.negative], x)

    expected = [np.cumsum(X), X * X + X, -X]
    for i, result in enumerate(expected):
        assert_array_equal(jax.jit(choose)(i, X), result)
    assert_array_equal(jax.vmap(choose)(jnp.arange(3), np.stack([X] * 3)), expected)


def test_a_thousand_steps_in_place():
    steps = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda _, acc: run_add_into(acc, x), jnp.zeros_like(x)))
    assert_array_equal(steps(X), 1000 * X)


def test_two_kernels_of_equal_arguments_in_one_program():
    def program(x):
        once = run_square_plus(x)
        return once + run_square_plus(x), run_cumsum(once), run_cumsum(x)

    both, sums, others = jax.jit(program)(X)
    assert_array_equal(both, 2 * (X * X + X))
    assert_array_equal(sums, np.cumsum(X * X + X))
    assert_array_equal(others, np.cumsum(X))


# Aliases and donation


def test_an_alias_keeps_the_caller_s_array_unless_it_is_donated():
    total = jnp.asarray(X)
    assert_array_equal(run_add_into(total, X), 2 * X)
    assert_array_equal(jax.jit(run_add_into)(total, X), 2 * X)
    assert_array_equal(total, X)
    assert_array_equal(jax.jit(run_add_into)(total, total), 2 * X)
    assert_array_equal(jax.jit(lambda t: (run_add_into(t, X), t))(total), [2 * X, X])
    assert_array_equal(jax.jit(run_add_into, donate_argnums=0)(total, X), 2 * X)
    assert total.is_deleted()


def test_an_alias_of_a_constant_is_a_copy_each_time():
    zeros = jnp.zeros(5)
    added = jax.jit(lambda x: run_add_into(zeros, x))
    for i in range(3):
        assert_array_equal(added(X + i), X + i)
    assert_array_equal(zeros, np.zeros(5))


# Derivatives that a kernel's author declares; Warp's own are in test_adjoint.py.

DECLARED = {
    "reference": warp_kernel(axpy, same, reference=lambda x, y, *, alpha: alpha * x + y),
    "jvp": warp_kernel(axpy, same, jvp=lambda _, tangents, *, alpha: run_axpy(*tangents, alpha=alpha)),
    "vjp": warp_kernel(axpy, same, vjp=lambda inputs, out, cotangent, *, alpha: (alpha * cotangent, cotangent)),
    "transpose": warp_kernel(axpy, same, transpose={(0, 1): lambda inputs, ct, *, alpha: (alpha * ct, ct)}),
}


@pytest.mark.parametrize("way", DECLARED)
def test_declared_derivatives(way):
    run = DECLARED[way]

    def loss(x, y):
        return (run(x, y, alpha=3.0) ** 2).sum()

    gradient = jax.grad(loss, (0, 1)) if way != "jvp" else jax.jacfwd(loss, (0, 1))
    ones, rows = np.ones(5, np.float32), np.stack([X, -X])
    for transform in (lambda f: f, jax.jit):
        assert_allclose(transform(gradient)(X, ones), [6 * (3 * X + 1), 2 * (3 * X + 1)], rtol=1e-6)
    mapped = jax.jit(jax.vmap(gradient, (0, None)))(rows, ones)
    assert_allclose(mapped, [6 * (3 * rows + 1), 2 * (3 * rows + 1)], rtol=1e-6)


def test_a_kernel_has_no_derivative():
    for attempt in (
        lambda: jax.grad(lambda x: run_square_plus(x).sum())(X),
        lambda: jax.jit(jax.grad(lambda x: jax_square_plus(x).sum()))(X),
        lambda: jax.jvp(run_square_plus, (X,), (X,)),
        lambda: jax.vmap(jax.grad(lambda x: run_square_plus(x).sum()))(np.stack([X, X])),
    ):
        with pytest.raises(DifferentiationError, match=r"square_plus: .*no derivative.*reference=.*stop_gradient"):
            attempt()


def test_kernels_may_stand_outside_the_derivative():
    def loss(x):
        return (x * run_square_plus(jax.lax.stop_gradient(x))).sum()

    assert_allclose(jax.grad(loss)(X), X * X + X)
    assert_allclose(jax.jit(jax.grad(jax.checkpoint(loss)))(X), X * X + X)
    assert_array_equal(jax.checkpoint(run_cumsum)(X), np.cumsum(X))


def test_a_custom_rule_around_a_kernel():
    @jax.custom_jvp
    def f(x):
        return run_square_plus(x)

    f.defjvp(lambda primals, tangents: (f(*primals), (2 * primals[0] + 1) * tangents[0]))
    assert_allclose(jax.grad(lambda x: f(x).sum())(X), 2 * X + 1)
    assert_allclose(jax.jacfwd(f)(X), np.diag(2 * X + 1))

    @jax.custom_vjp
    def g(x):
        return jax_square_plus(x)

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (run_axpy(2 * x * ct, ct, alpha=1),))  # a kernel in the rule
    assert_allclose(jax.jit(jax.grad(lambda x: g(x).sum()))(X), 2 * X + 1)
    assert_allclose(jax.grad(lambda x: jax.checkpoint(g)(x).sum())(X), 2 * X + 1)
    assert_allclose(jax.vmap(jax.grad(lambda x: g(x).sum()))(np.stack([X, -X])), [2 * X + 1, -2 * X + 1])


# 64 bits


def test_arrays_of_64_bits(enable_x64):
    run = warp_kernel(double_of_64_bits, same)
    with enable_x64():
        x, n = np.arange(3) / 3, np.array([0, 1, 2**40])
        out = run(x, n)
        assert out.dtype == np.float64
        assert_array_equal(out, 2 * x + n)
        assert_array_equal(jax.vmap(run, (0, None))(np.stack([x, -x]), n), np.stack([2 * x + n, -2 * x + n]))
        with pytest.raises(DtypeError, match="expected float32, got float64"):
            run_square_plus(jnp.arange(5.0))
        assert_array_equal(run_square_plus(X), X * X + X)
    assert_array_equal(run_square_plus(jnp.arange(5.0)), X * X + X)
    with pytest.raises(DtypeError, match="expected float64, got float32"):
        run(x, n)


@wp.kernel
def largest(x: wp.array(dtype=float), out: wp.array(dtype=int)):
    best = wp.int32(0)  # one that changes
    for i in range(x.shape[0]):
        if x[i] > x[best]:
            best = i
    out[0] = best


def test_an_integer_output_does_not_block_a_gradient():
    """As with ``jnp.argmax``."""
    index = warp_kernel(largest, outs=jax.ShapeDtypeStruct((1,), jnp.int32), launch_dims=1)
    x = jnp.array([[1.0, 5.0, 2.0], [7.0, 0.0, 3.0]])
    expected = jax.grad(lambda x: x[0, x[0].argmax()] + x[1, x[1].argmax()] ** 2)(x)

    def chosen(row):
        return row[index(row)[0]]

    assert_array_equal(jax.grad(lambda x: chosen(x[0]) + chosen(x[1]) ** 2)(x), expected)
    assert_array_equal(jax.grad(lambda x: (jax.vmap(chosen)(x) ** jnp.array([1, 2])).sum())(x), expected)
    in_scan = jax.grad(lambda x: jax.lax.scan(lambda total, row: (total + chosen(row), None), 0.0, x)[0])(x)
    assert_array_equal(in_scan, jax.grad(lambda x: x[0].max() + x[1].max())(x))


def test_a_side_effect_in_a_batch_of_branches_is_refused():
    run = warp_kernel(square_plus, outs=same, launch_dims=lambda x: x.shape, has_side_effect=True)

    def branch(taken, x):
        return jax.lax.cond(taken, run, lambda x: x, x)

    assert_array_equal(jax.jit(branch)(True, X), X * X + X)
    with pytest.raises(SideEffectError, match="cond"):
        jax.jit(jax.vmap(branch))(jnp.array([True, False]), jnp.stack([X, X]))
    with pytest.raises(SideEffectError, match="while"):
        jax.jit(jax.vmap(lambda n: jax.lax.fori_loop(0, n, lambda _, x: run(x), jnp.ones(3))))(jnp.arange(3))
