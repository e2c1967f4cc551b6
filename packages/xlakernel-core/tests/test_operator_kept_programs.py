"""Programs that are traced once and used later, when their operators are defined again: they keep one definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from numpy.testing import assert_array_equal

pytestmark = pytest.mark.usefixtures("x64")
X = np.array([0.5, -1.5, 2.0])


def scaling(factor):
    return lambda outs: lambda x: factor * x


@pytest.mark.versions
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["function", "jitted"])
@pytest.mark.parametrize("use", ["closure", "jaxpr", "ahead", "trace", "linearize"])
def test_a_kept_program_has_one_definition(new_operator, use, inner):
    op, factors = new_operator(), (2.0, 3.0, 4.0, 5.0)

    def define(factor):
        op.def_jax_kernel(scaling(factor))
        op.def_jvp(lambda primals, tangents: factor * tangents[0])

    def both(f):
        return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))

    f, x = inner(lambda x: op(x, outs=x)), jnp.asarray(X)
    define(factors[0])
    if use == "closure":
        closed = jax.closure_convert(f, x)[0]
        kept = both(closed)
    elif use == "jaxpr":
        closed = jaxpr_as_fun(jax.make_jaxpr(f)(x))
        kept = both(lambda x: closed(x)[0])
    elif use == "ahead":
        kept = jax.jit(both(f)).lower(x).compile()
    elif use == "trace":
        traced = jax.jit(both(f)).trace(x)

        def kept(x):
            return traced.lower().compile()(x)

    else:
        result, linear = jax.linearize(f, x)

        def kept(x):
            return result, linear(jnp.ones_like(x))

    for factor in factors[1:]:
        define(factor)
        value, slope = kept(x)
        assert_array_equal(value, 2 * X)
        assert_array_equal(slope, np.full(3, 2))
        assert_array_equal(f(x), factor * X)


def test_a_kept_program_has_its_rules_of_the_jax_primitive(new_operator):
    op = new_operator()

    def define(factor):
        def jvp(primals, tangents, **params):
            return op.primitive.bind(*primals, **params), [factor * tangents[0]]

        def batch(ins, axes, **params):
            return [factor * ins[0]], axes

        op.def_jax_kernel(scaling(factor))
        op.def_jvp_rule(jvp)
        op.def_batching_rule(batch)

    define(2.0)
    kept = jaxpr_as_fun(jax.make_jaxpr(lambda x: op(x, outs=x))(np.ones(3)))
    define(3.0)

    def check(f, factor):
        assert_array_equal(f(X), factor * X)
        assert_array_equal(jax.grad(lambda x: f(x).sum())(X), np.full(3, factor))
        assert_array_equal(jax.vmap(f)(np.stack([X, -X])), factor * np.stack([X, -X]))

    check(lambda x: kept(x)[0], 2.0)
    check(lambda x: op(x, outs=x), 3.0)


def test_a_kept_linearization_has_its_transpose(new_operator):
    op = new_operator()

    def define(factor):
        op.def_jax_kernel(scaling(factor))
        op.def_transpose_rule(lambda cotangents, x, **params: [factor * cotangents[0]])

    define(2.0)
    _, linear = jax.linearize(lambda x: 1 * jax.linear_transpose(lambda x: op(x, outs=x), x)(x)[0], X)
    transposed = jax.linear_transpose(jaxpr_as_fun(jax.make_jaxpr(lambda x: op(x, outs=x))(X)), X)
    define(3.0)
    assert_array_equal(linear(X), 2 * X)
    assert_array_equal(transposed([X])[0], 2 * X)
    assert_array_equal(jax.linear_transpose(lambda x: op(x, outs=x), X)(X)[0], 3 * X)


def test_a_kept_program_has_the_backend_that_was_added_before(new_operator):
    op = new_operator(lambda x: 2 * x)
    op(X, outs=X)
    op.def_kernel("other", "cpu", scaling(3))
    kept = jaxpr_as_fun(jax.make_jaxpr(lambda x: op(x, outs=x, backend="other"))(X))
    op.def_kernel("other", "cpu", scaling(5))
    assert_array_equal(kept(X)[0], 3 * X)
    assert_array_equal(op(X, outs=X, backend="other"), 5 * X)
