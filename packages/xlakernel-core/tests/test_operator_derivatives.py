"""Derivatives that an operator's author declares: as for wrapped kernels, and by rules of its JAX primitive."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import DifferentiationError, ResultError

Struct = jax.ShapeDtypeStruct
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x64")]
X, Y = np.array([0.5, -1.5, 2.0]), np.array([1.5, 0.5, -0.7])


# sin(x) * y**n, where n is a static keyword.


def reference(x, y, *, n):
    return jnp.sin(x) * y**n


def jvp(primals, tangents, *, n):
    x, y = primals
    return jnp.cos(x) * y**n * tangents[0] + jnp.sin(x) * n * y ** (n - 1) * tangents[1]


def vjp(primals, out, out_bar, *, n):
    x, y = primals
    return jnp.cos(x) * y**n * out_bar, out * n / y * out_bar


DECLARED = {
    "reference": {"def_reference": reference},
    "jvp": {"def_jvp": jvp},
    "vjp": {"def_vjp": vjp},
    "jvp and vjp": {"def_jvp": jvp, "def_vjp": vjp},
    "all": {"def_vjp": vjp, "def_jvp": jvp, "def_reference": reference},
}


@pytest.fixture
def declare(new_operator):
    """Return a function that makes an operator for one result like x, with these declarations."""

    def declare_(kernel, declared):
        op = new_operator()
        op.def_jax_kernel(lambda outs, **static: functools.partial(kernel, **static))
        for method, function in declared.items():
            getattr(op, method)(function)
        return lambda x, *rest, **static: op(x, *rest, outs=Struct(x.shape, x.dtype), **static)

    return declare_


def total(f):
    return lambda *inputs: jnp.cos(f(*inputs)).sum()


REVERSE = {
    "grad": lambda f: jax.grad(total(f), (0, 1)),
    "value and grad": lambda f: jax.value_and_grad(total(f), 1),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f, 1), (0, 1)),
    "grad of vmap": lambda f: lambda x, y: jax.grad(total(jax.vmap(f, (0, None))), (0, 1))(jnp.outer(x, x), y),
    "grad of nested vmap": lambda f: (
        lambda x, y: jax.grad(total(jax.vmap(jax.vmap(f, (None, 1)), (0, None), 1)), (0, 1))(
            jnp.outer(x, x), jnp.outer(y, y[:2])
        )
    ),
    "vmap of grad": lambda f: lambda x, y: jax.vmap(jax.grad(total(f), (0, 1)), (1, None))(jnp.outer(x, y), y),
    "checkpoint": lambda f: jax.grad(total(jax.checkpoint(f)), (0, 1)),
    "scan": lambda f: jax.grad(lambda x, y: jax.lax.scan(lambda c, _: (f(c, y), c), x, length=3)[1].sum(), (0, 1)),
}
FORWARD = {
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "hessian": lambda f: jax.hessian(total(f), (0, 1)),
    "jvp of vmap": lambda f: lambda x, y: jax.jvp(jax.vmap(f, (1, None)), (jnp.outer(x, x), y), (jnp.outer(y, x), x)),
    "vmap of hessian": lambda f: lambda x, y: jax.vmap(jax.hessian(total(f), 1), (0, None))(jnp.outer(x, x), y),
}


def same(derive, f, expected, *inputs):
    found, expected = jax.jit(lambda *inputs: (derive(f)(*inputs), derive(expected)(*inputs)))(*inputs)
    jax.tree.map(functools.partial(assert_allclose, rtol=1e-9, atol=1e-12), found, expected)


@pytest.mark.parametrize("way", DECLARED)
@pytest.mark.parametrize("mode", REVERSE | FORWARD)
def test_derivatives_are_those_of_plain_jax(declare, way, mode):
    f = functools.partial(declare(reference, DECLARED[way]), n=3)
    if way == "vjp" and mode in FORWARD:
        with pytest.raises(
            DifferentiationError, match=r"test_\d+: forward mode .*only def_vjp is known. Give def_jvp or def_reference"
        ):
            FORWARD[mode](f)(X, Y)
    else:
        same((REVERSE | FORWARD)[mode], f, functools.partial(reference, n=3), X, Y)


@pytest.mark.parametrize("way", DECLARED)
def test_derivatives_are_finite_differences(declare, way):
    f = functools.partial(declare(reference, DECLARED[way]), n=2)
    check_grads(f, (X, Y), order=1, modes=["rev"] if way == "vjp" else ["fwd", "rev"])


# Linear operators.


def weighted(a, x, w):
    """Linear in a and in x."""
    return jnp.cumsum(a * x) * jnp.sin(w)


def back(out_bar):
    return jnp.cumsum(out_bar[::-1])[::-1]


TRANSPOSES = {
    0: lambda ins, cotangent: back(cotangent * jnp.sin(ins[2])) * ins[1],
    1: lambda ins, cotangent: back(cotangent * jnp.sin(ins[2])) * ins[0],
}


@pytest.fixture
def linear(new_operator):
    op = new_operator(weighted)
    for i, transpose in TRANSPOSES.items():
        op.def_transpose(i, transpose)
    op.def_reference(weighted)
    return lambda a, x, w: op(a, x, w, outs=Struct(a.shape, a.dtype))


@pytest.fixture
def together(new_operator):
    op = new_operator(lambda a, b: 2 * a + jnp.cumsum(b))
    op.def_transpose((0, 1), lambda ins, cotangent: (2 * cotangent, back(cotangent)))
    return lambda a, b: op(a, b, outs=Struct(a.shape, a.dtype))


@pytest.mark.parametrize("mode", REVERSE | FORWARD)
def test_derivatives_of_linear_operators(linear, together, mode):
    derive = (REVERSE | FORWARD)[mode]
    same(derive, lambda a, x: linear(a, x, Y), lambda a, x: weighted(a, x, Y), X, Y)
    same(derive, lambda x, w: linear(X, x, w), lambda x, w: weighted(X, x, w), X, Y)
    same(derive, together, lambda a, b: 2 * a + jnp.cumsum(b), X, Y)


@pytest.mark.parametrize(
    ("wrap", "x"), [(lambda f: f, X), (lambda f: jax.vmap(f, 1, 1), np.outer(X, Y[:2]))], ids=["alone", "vmap"]
)
def test_linear_transpose(linear, wrap, x):
    found, expected = (jax.linear_transpose(wrap(lambda x, f=f: f(X, x, Y)), x)(x) for f in (linear, weighted))
    assert_allclose(found[0], expected[0])


def test_linear_transpose_needs_a_declaration(declare):
    f = declare(lambda x: 2 * x, {"def_reference": lambda x: 2 * x})
    with pytest.raises(DifferentiationError, match=r"not linear in the inputs \[0\].*with def_transpose"):
        jax.linear_transpose(f, X)(X)


# What the functions are given.


def test_outs_are_given_to_functions_that_have_such_a_parameter(declare):
    seen = []

    def with_outs(x, *, n, outs):
        seen.append((n, outs))
        return x**n

    def with_any(primals, out, out_bar, **static):
        seen.append(static)
        return out_bar

    for method, function in (("def_reference", with_outs), ("def_vjp", with_any)):
        f = functools.partial(declare(lambda x, *, n: x**n, {method: function}), n=2)
        jax.grad(lambda x, f=f: f(x).sum())(X)
        jax.grad(lambda x, f=f: jax.vmap(f)(x).sum())(np.stack([X, X]))
    struct = Struct((3,), np.dtype(np.float64))  # of one slice, whatever is mapped
    assert seen == [(2, [struct])] * 2 + [{"n": 2}] * 2


@pytest.mark.parametrize("given", [list, tuple])
@pytest.mark.parametrize("way", ["reference", "jvp", "vjp"])
def test_several_results_are_a_list_for_the_functions(new_operator, given, way):
    op = new_operator(lambda x: (x * x, x.argmax().astype(np.int32), -5 * x))

    def back(primals, results, cotangents):
        square_bar, none, other_bar = cotangents
        assert none is None
        assert type(results) is list
        return (2 * primals[0] * square_bar - 5 * other_bar,)

    if way == "reference":
        op.def_reference(lambda x: given([x * x, x.argmax().astype(np.int32), -5 * x]))
    elif way == "jvp":
        op.def_jvp(lambda primals, tangents: given([2 * primals[0] * tangents[0], None, -5 * tangents[0]]))
    else:
        op.def_vjp(back)

    def f(x):
        return op(x, outs=(x, Struct((), np.int32), x))

    assert_allclose(jax.jacrev(lambda x: f(x)[0])(X), np.diag(2 * X))
    assert_allclose(jax.grad(lambda x: f(x)[2] @ x)(X), -10 * X)
    assert_array_equal(jax.grad(lambda x: x[f(x)[1]])(X), [0, 0, 1])
    every = jax.vmap(jax.grad(lambda x: (f(x)[0] * f(x)[2]).sum()))(np.stack([X, -X]))
    assert_allclose(every, [-15 * X**2] * 2)


def test_a_dict_is_no_list_of_results(new_operator):
    op = new_operator(lambda x: (x * x, -5 * x))
    op.def_reference(lambda x: {"square": x * x, "other": -5 * x})
    with pytest.raises(ResultError, match=r"reference returned results as .*'other'.*return them as \['float64"):
        jax.jacfwd(lambda x: op(x, outs=[x, x]))(X)
