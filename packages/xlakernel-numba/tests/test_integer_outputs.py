"""Derivatives of programs with kernels that return integers or booleans: the results are constants, as JAX's are."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax.dtypes import float0
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import DifferentiationError
from xlakernel.numba import numba_kernel

X = np.array([0.5, 2.0, -1.0], np.float32)
ROWS = np.stack([X, -X, 2 * X, X[::-1]])
INDEX = jax.ShapeDtypeStruct((), np.int32)
FLAGS = jax.ShapeDtypeStruct((3,), np.bool_)
LARGEST = jax.ShapeDtypeStruct((), np.float32)


@numba.njit
def argmax(x, out):
    best = 0
    for i in range(x.size):
        if x[i] > x[best]:
            best = i
    out[()] = best


@numba.njit
def argmax_and_flags(x, out, flags):
    best = 0
    for i in range(x.size):
        flags[i] = x[i] > 0
        if x[i] > x[best]:
            best = i
    out[()] = best


@numba.njit
def largest(x, value, where):
    where[()] = 0
    for i in range(x.size):
        if x[i] > x[where[()]]:
            where[()] = i
    value[()] = x[where[()]]


def argmax_in_jax(x):
    return jnp.argmax(x).astype(jnp.int32)


operator = XLACustomKernel("test_integer_outputs")
operator.def_numba_kernel(lambda outs: numba_kernel(argmax, outs=outs[0]))
by_rule = XLACustomKernel("test_integer_outputs_by_reference")
by_rule.def_numba_kernel(lambda outs: numba_kernel(argmax, outs=outs[0]))
by_rule.def_reference(argmax_in_jax)

KERNELS = {
    "no derivative": numba_kernel(argmax, outs=INDEX),
    "in a batch": numba_kernel(argmax, outs=INDEX, vmap_method="sequential"),
    "side effect": numba_kernel(argmax, outs=INDEX, has_side_effect=True),
    "split": numba_kernel(argmax, outs=INDEX, sharding_rule="[i] ->"),
    "reference": numba_kernel(argmax, outs=INDEX, reference=argmax_in_jax),
    "vjp": numba_kernel(argmax, outs=INDEX, vjp=lambda *_: (None,)),
    "jvp": numba_kernel(argmax, outs=INDEX, jvp=lambda *_: None),
    "transpose of another input": lambda x: _of_two(x, jnp.float32(1)),
    "operator": lambda x: operator(x, outs=INDEX)[()],
    "operator with a reference": lambda x: by_rule(x, outs=INDEX)[()],
    "both kinds": lambda x: _both(x)[0],
}
_both = numba_kernel(argmax_and_flags, outs=[INDEX, FLAGS])


@numba.njit
def argmax_of_first(x, y, out):
    best = 0
    for i in range(x.size):
        if x[i] > x[best]:
            best = i
    out[()] = best


_of_two = numba_kernel(argmax_of_first, outs=INDEX, transpose={1: lambda inputs, cotangents: None})
EACH = pytest.mark.parametrize("index", KERNELS.values(), ids=KERNELS)
# One of each primitive; in longer programs, the others are marked slow.
FIRST = ("no derivative", "side effect", "vjp", "operator with a reference")
FIRST_OF_EACH = pytest.mark.parametrize(
    "index",
    [pytest.param(index, id=name, marks=[pytest.mark.slow] * (name not in FIRST)) for name, index in KERNELS.items()],
)


def picked(index):
    return lambda x: x[index(x)] ** 2


@FIRST_OF_EACH
def test_every_derivative_of_a_value_selected_by_an_integer(index):
    found, expected = picked(index), picked(argmax_in_jax)
    for derive in (
        jax.grad,
        jax.value_and_grad,
        jax.jacfwd,
        jax.jacrev,
        jax.hessian,
        lambda f: lambda x: jax.jvp(f, (x,), (x + 1,)),
        lambda f: lambda x: jax.linearize(f, x)[1](x + 1),
        lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(3)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: jax.grad(jax.jit(f)),
    ):
        for way in (lambda f: f, jax.jit):
            for value, other in zip(
                jax.tree.leaves(way(derive(found))(X)), jax.tree.leaves(derive(expected)(X)), strict=True
            ):
                assert_allclose(value, other)


@EACH
def test_under_vmap(index):
    expected = jax.vmap(jax.grad(picked(argmax_in_jax)))(ROWS)
    assert_allclose(jax.vmap(jax.grad(picked(index)))(ROWS), expected)
    assert_allclose(jax.grad(lambda rows: jax.vmap(picked(index))(rows).sum())(ROWS), expected)
    shared = jax.grad(lambda x: jax.vmap(lambda s: x[index(x)] * s)(jnp.arange(3.0)).sum())
    assert_allclose(shared(X), [0, 3, 0])


@FIRST_OF_EACH
def test_in_loops_and_branches(index):
    def loss(pick):
        def run(x):
            def step(carry, row):
                x, last = carry
                best = pick(x * row)
                return (x.at[best].mul(0.5), best + last), row[best] * x[best]

            (x, _), found = jax.lax.scan(step, (x, jnp.int32(0)), ROWS)
            chosen = jax.lax.cond(pick(x) > 0, lambda x: x[pick(x)], lambda x: x[0], x)
            return found.sum() + chosen + jax.lax.fori_loop(0, 2, lambda _, y: y * x[pick(x)], 1.0)

        return run

    expected = jax.grad(loss(argmax_in_jax))(X)
    assert_allclose(jax.grad(loss(index))(X), expected, rtol=1e-6)
    assert_allclose(jax.jit(jax.grad(loss(index)))(X), expected, rtol=1e-6)
    assert_allclose(jax.grad(jax.checkpoint(loss(index)))(X), expected, rtol=1e-6)
    expected = jax.jvp(loss(argmax_in_jax), (X,), (X,))[1]
    assert_allclose(jax.jvp(loss(index), (X,), (X,))[1], expected, rtol=1e-6)


@EACH
def test_the_tangent_of_an_integer_has_no_values(index):
    value, tangent = jax.jvp(index, (X,), (X,))
    assert value == 1
    assert (tangent.shape, tangent.dtype) == ((), float0)
    (cotangent,) = jax.vjp(index, X)[1](np.zeros((), float0))
    assert_array_equal(cotangent, np.zeros(3))


def test_booleans():
    def loss(flags):
        return lambda x: jnp.where(flags(x), x**3, 0).sum()

    expected = jax.grad(loss(lambda x: x > 0))(X)
    assert_allclose(jax.grad(loss(lambda x: _both(x)[1]))(X), expected)


def test_an_input_without_a_tangent_needs_no_derivative():
    """A kernel with a float result, and an input that is an integer or not differentiated."""

    @numba.njit
    def root(n, out):
        out[()] = np.sqrt(n[()])

    of_integer = numba_kernel(root, outs=LARGEST)
    number = jnp.int32(4)
    assert_allclose(jax.grad(lambda x: x * of_integer(number))(3.0), 2)
    assert_allclose(jax.grad(lambda x: x * of_integer(x.astype(int)))(4.0), 2)
    assert_allclose(jax.grad(lambda x: x * of_integer(jax.lax.stop_gradient(x)))(4.0), 2)
    value, slope = jax.jvp(of_integer, (number,), (np.zeros((), float0),))
    assert (value, slope) == (2, 0)
    carried = jax.grad(lambda x: jax.lax.fori_loop(0, 2, lambda i, x: x * of_integer(i + number), x))
    assert_allclose(carried(1.0), np.sqrt(20), rtol=1e-6)


def test_a_float_next_to_the_integer_needs_a_derivative():
    plain = numba_kernel(largest, outs=[LARGEST, INDEX])
    for derive in (jax.grad, jax.jacfwd, lambda f: jax.vmap(jax.grad(f)), lambda f: jax.jit(jax.grad(f))):
        with pytest.raises(DifferentiationError, match="largest: a kernel has no derivative"):
            derive(lambda x: x[plain(x)[1]])(np.stack([X, X]) if derive not in (jax.grad, jax.jacfwd) else X)


def mixed_reference(x):
    where = argmax_in_jax(x)
    return x[where], where


MIXED = {
    "reference": {"reference": mixed_reference},
    "jvp": {"jvp": lambda primals, tangents: (tangents[0][argmax_in_jax(primals[0])], None)},
    "jvp as for jax.custom_jvp": {
        "jvp": lambda primals, tangents: (tangents[0][argmax_in_jax(primals[0])], np.zeros((), float0))
    },
    "vjp": {"vjp": lambda primals, results, cotangents: jnp.zeros(3).at[results[1]].set(cotangents[0])},
    "vjp and reference": {
        "vjp": lambda primals, results, cotangents: jnp.zeros(3).at[results[1]].set(cotangents[0]),
        "reference": mixed_reference,
    },
}


# An operator passes its rules on to the same derivatives.
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("kernel", way) for way in MIXED),
        *(pytest.param("operator", way, marks=[pytest.mark.slow] * ("jax" in way or "and" in way)) for way in MIXED),
    ],
)
def test_an_integer_next_to_a_float(way, kind):
    if kind == "kernel":
        run = numba_kernel(largest, outs=(LARGEST, INDEX), **MIXED[way])
    else:
        mixed = XLACustomKernel(f"test_integer_outputs_mixed_{way}", replace=True)
        mixed.def_numba_kernel(lambda outs: numba_kernel(largest, outs=list(outs)))
        for name, rule in MIXED[way].items():
            getattr(mixed, f"def_{name}")(
                (lambda x: list(mixed_reference(x))) if name == "reference" else
                (lambda p, t, rule=rule: list(rule(p, t))) if name == "jvp" else rule
            )  # fmt: skip

        def run(x):
            return tuple(mixed(x, outs=[LARGEST, INDEX]))

    def loss(run):
        def total(x):
            value, where = run(x)
            return value * x[(where + 1) % 3] * where

        return total

    expected = jax.grad(loss(mixed_reference))
    assert_allclose(jax.grad(loss(run))(X), expected(X))
    assert_allclose(jax.jit(jax.vmap(jax.grad(loss(run))))(ROWS), jax.vmap(expected)(ROWS))
    assert_allclose(jax.grad(jax.checkpoint(loss(run)))(X), expected(X))
    only_where = jax.grad(lambda x: x[run(x)[1]])
    assert_allclose(only_where(X), [0, 1, 0])
    scanned = jax.grad(lambda x: jax.lax.scan(lambda c, row: (c, loss(run)(row * c)), x, ROWS)[1].sum())
    known = jax.grad(lambda x: jax.lax.scan(lambda c, row: (c, loss(mixed_reference)(row * c)), x, ROWS)[1].sum())
    assert_allclose(scanned(X), known(X), rtol=1e-6)
    if way != "vjp":
        assert jax.jvp(run, (X,), (X,))[1][1].dtype == float0
        assert_allclose(jax.hessian(loss(run))(X), jax.hessian(loss(mixed_reference))(X))
