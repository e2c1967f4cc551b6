"""Derivative rules of operators: their arguments, their results, and the error without a rule."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import ad
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DifferentiationError, XLAKernelError

Struct = jax.ShapeDtypeStruct
X = np.array([1.5, 0.5, 2.0])
pytestmark = pytest.mark.usefixtures("x64")


def test_the_rule_is_given_symbolic_zeros(new_operator):
    op, seen = new_operator(lambda x, y, i: x * y), []

    def rule(primals, tangents, *, outs, **params):
        seen.append([type(tangent) is ad.Zero for tangent in tangents])
        return op.primitive.bind(*primals, outs=outs, **params), [ad.instantiate_zeros(tangents[0]) * primals[1]]

    op.def_jvp_rule(rule)
    assert_array_equal(jax.jacfwd(lambda x: op(x, X, 1, outs=x))(X), np.diag(X))
    assert seen
    assert all(zeros == [False, True, True] for zeros in seen)


def test_a_rule_of_none_drops_the_tangent(new_operator):
    op = new_operator(lambda x, y: x * y)
    op.def_jvp_rule2(None, lambda tangent, x, y, **params: x * tangent)
    f = functools.partial(op, outs=Struct((3,), jnp.float64))
    ones = np.ones(3)
    assert_array_equal(jax.jvp(f, (X, X), (ones, ones))[1], X)
    assert_array_equal(jax.grad(lambda x, y: f(x, y).sum(), (0, 1))(X, X), [0 * X, X])
    assert_array_equal(jax.jvp(lambda x: f(x, X), (X,), (ones,))[1], 0 * X)


def test_a_rule_is_given_tuples_mapped_or_not(new_operator):
    op, seen = new_operator(lambda x, y: x * y), []

    def f(x, y):
        return op(x, y, outs=Struct((), x.dtype))

    def rule(primals, tangents, **params):
        seen.append((type(primals), type(tangents)))
        return op.primitive.bind(*primals, **params), [tangents[0] * primals[1] + tangents[1] * primals[0]]

    op.def_jvp_rule(rule)
    jax.jvp(f, (1.0, 1.0), (1.0, 1.0))
    jax.jvp(jax.vmap(f), (X, X), (X, X))
    assert set(seen) == {(tuple, tuple)}


def test_rules_of_inputs_without_a_tangent_are_not_called(new_operator):
    op = new_operator(lambda x, i: x * i)
    op.def_jvp_rule2(lambda tangent, x, i, **params: tangent * i, lambda *_, **__: pytest.fail("called"))
    assert_array_equal(jax.grad(lambda x: op(x, 3, outs=x).sum())(X), [3, 3, 3])


@pytest.mark.parametrize("wrap", [list, tuple, lambda tangents: tangents[0]], ids=["list", "tuple", "array"])
def test_a_rule_returns_an_array_or_a_sequence(new_operator, wrap):
    op = new_operator(lambda x: x * 2)
    op.def_jvp_rule2(lambda tangent, x, **params: wrap([tangent * 2]))
    assert_array_equal(jax.grad(lambda x: op(x, outs=x).sum())(X), [2, 2, 2])


@pytest.mark.parametrize("rules", [(), (None,), (None, None, None)], ids=len)
def test_a_wrong_number_of_rules_is_counted(new_operator, rules):
    op = new_operator(lambda x, y: x * y)
    op.def_jvp_rule2(*rules)
    f = functools.partial(op, outs=Struct((3,), jnp.float64))
    with pytest.raises(
        XLAKernelError, match=f"{op.name}: def_jvp_rule2 was given {len(rules)} rules?, .* has 2 inputs"
    ):
        jax.jvp(f, (X, X), (X, X))
    assert_array_equal(f(X, X), X * X)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_tangents_is_counted(new_operator, count):
    op = new_operator(lambda x: (x, x))
    op.def_jvp_rule2(lambda tangent, x, **params: [tangent] * count)
    with pytest.raises(XLAKernelError, match=f"{op.name}: .*def_jvp_rule2 returned {count} tangents? for 2 results"):
        jax.jvp(lambda x: op(x, outs=[x, x]), (X,), (X,))


def test_a_rule_set_again_replaces_the_first(new_operator):
    op = new_operator(lambda x: x)
    for factor in (2, 3):
        op.def_jvp_rule2(lambda tangent, x, factor=factor, **params: factor * tangent)
    assert_array_equal(jax.grad(lambda x: op(x, outs=x).sum())(X), [3, 3, 3])


@pytest.mark.parametrize("mapped", [False, True])
def test_the_transpose_is_given_symbolic_zeros(new_operator, mapped):
    op, seen = new_operator(lambda x: (2 * x, 3 * x)), []

    def transpose(cotangents, x, **params):
        seen.append([type(cotangent) is ad.Zero for cotangent in cotangents])
        return (2 * ad.instantiate_zeros(cotangents[0]) + 3 * ad.instantiate_zeros(cotangents[1]),)

    def f(x):
        return op(x, outs=[Struct((3,), jnp.float64)] * 2)[1]

    op.def_jvp_rule2(lambda tangent, x, **params: op.primitive.bind(tangent, **params))
    op.def_transpose_rule(transpose)
    x = np.stack([X, X]) if mapped else X
    assert_array_equal(jax.grad(lambda x: (jax.vmap(f) if mapped else f)(x).sum())(x), np.full(x.shape, 3.0))
    assert seen == [[True, False]]


@pytest.mark.parametrize(
    "derive",
    [jax.grad, jax.jacfwd, jax.jacrev, lambda f: lambda x: jax.jvp(f, (x,), (x,)), lambda f: jax.vmap(jax.grad(f))],
)
def test_a_missing_derivative_error_lists_the_declarations(new_operator, derive):
    op = new_operator(lambda x: x * 2)
    x = X if derive.__name__ == "<lambda>" else 1.0
    with pytest.raises(
        DifferentiationError, match=f"{op.name}: .*no derivative.*def_reference.*def_jvp.*def_vjp.*stop_gradient"
    ) as caught:
        derive(lambda x: op(x, outs=Struct(x.shape, x.dtype)))(jnp.asarray(x))
    assert isinstance(caught.value, NotImplementedError)


def test_a_missing_transpose_error_lists_the_declarations(new_operator):
    op = new_operator(lambda x: x * 2)
    op.def_jvp_rule2(lambda tangent, x, **params: op.primitive.bind(tangent, **params))
    f = functools.partial(op, outs=Struct((3,), jnp.float64))
    assert_array_equal(jax.jacfwd(f)(X), 2 * np.eye(3))
    for derive in (lambda: jax.grad(lambda x: f(x).sum())(X), lambda: jax.linear_transpose(f, X)(X)):
        with pytest.raises(DifferentiationError, match=f"{op.name}: .*no transpose.*def_transpose_rule.*forward mode"):
            derive()


def test_the_alternatives_in_the_error_work(new_operator):
    op = new_operator(lambda x: x * x)

    @jax.custom_jvp
    def f(x):
        return op(x, outs=x)

    f.defjvp(lambda primals, tangents: (f(*primals), 2 * primals[0] * tangents[0]))
    assert_array_equal(jax.grad(lambda x: f(x).sum())(X), 2 * X)
    assert_array_equal(jax.grad(lambda x: (x * op(jax.lax.stop_gradient(x), outs=x)).sum())(X), X * X)
