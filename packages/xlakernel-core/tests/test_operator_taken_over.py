"""Definitions that take over a name, and definitions that end with an error."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel, operators

X = jnp.arange(3.0)


def scaling(factor):
    return lambda outs: lambda x: x * factor


class OfItsOwn(XLACustomKernel):
    """An operator of a class that hides `replace`: each is a new object."""

    def __init__(self, name, factor):
        super().__init__(name, replace=True)
        self.def_kernel("a", "cpu", scaling(factor))


def test_a_name_is_taken_over_after_an_interrupted_attempt(new_operator, monkeypatch):
    op = OfItsOwn("taken_over", 2)
    f = jax.jit(lambda x: op(x, outs=x))
    assert_array_equal(f(X), 2 * X)
    follower = new_operator()
    for backend, factor in (("a", 5), ("b", 7)):
        follower.def_kernel(backend, "cpu", scaling(factor))
    follower.def_default_of(op)
    g = jax.jit(lambda x: follower(x, outs=x))
    assert_array_equal(g(X), 5 * X)

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", interrupted)
        with pytest.raises(KeyboardInterrupt):
            OfItsOwn("taken_over", 3)
    assert operators()["taken_over"] is op
    op = OfItsOwn("taken_over", 3)
    assert_array_equal(f(X), 3 * X)
    op.def_kernel("b", "cpu", scaling(4), asdefault=True)
    assert_array_equal(f(X), 4 * X)
    assert_array_equal(g(X), 7 * X)


def test_a_warning_that_is_an_error_leaves_a_whole_definition(new_operator):
    op = new_operator()
    op.def_kernel("a", "cpu", scaling(2))
    f = jax.jit(lambda x: op(x, outs=x))
    assert_array_equal(f(X), 2 * X)

    def define(x):
        op.def_kernel("a", "cpu", scaling(3))
        return x

    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match="while JAX traces"):
        jax.make_jaxpr(define)(X)
    assert_array_equal(f(X), 3 * X)
    assert_array_equal(op(X, outs=X), 3 * X)
