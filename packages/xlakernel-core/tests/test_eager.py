"""Calls outside of every program: compiled once, with their checks."""

import sys

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core import XLACustomKernel, use_backend
from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import InputError, StaticArgumentError


def python_calls(function):
    """Return how many functions of Python a call runs."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


def doubling(name, factor=2):
    op = XLACustomKernel(name, replace=True)
    op.def_jax_kernel(lambda outs, **_: lambda x: x * factor)
    return op


def test_a_second_call_of_an_operator_checks_nothing_again():
    op, x = doubling("eager_checks"), jnp.ones(4)
    outs = [jax.ShapeDtypeStruct((4,), jnp.float32)]
    op(x, outs=outs, shape=(2, 3), flag=True)
    assert len(python_calls(lambda: op(x, outs=outs, shape=(2, 3), flag=True))) <= 25


EQUAL = [(1, True), (1, 1.0), ((1, 2), (1, True)), (0.0, -0.0), ((0.0,), (-0.0,))]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_keywords_of_other_kinds_are_other_calls(first, second):
    seen = []
    op = XLACustomKernel("eager_kinds", replace=True)
    op.def_jax_kernel(lambda outs, *, value: (seen.append(repr(value)), lambda x: x)[1])
    for value in (first, second, first):
        op(jnp.ones(2), outs=jnp.ones(2), value=value)
    assert seen == [repr(first), repr(second)]


def test_a_wrong_keyword_is_an_error_each_time():
    op, x = doubling("eager_errors"), jnp.ones(2)
    for _ in range(2):
        with pytest.raises(StaticArgumentError, match="unhashable type list"):
            op(x, outs=x, value=[1])


def test_a_function_is_compiled_and_checks_once():
    traced = []

    @jit_when_eager
    def add(x, y):
        traced.append(None)
        return x + y

    for _ in range(3):
        assert add(jnp.ones(2), jnp.ones(2)).tolist() == [2, 2]
    assert len(traced) == 1
    assert jax.jit(lambda x: add(x, x))(jnp.ones(2)).tolist() == [2, 2]
    assert "pjit" not in str(jax.make_jaxpr(add)(jnp.ones(2), jnp.ones(2)))


def test_the_functions_own_error_replaces_that_of_jax():
    @jit_when_eager
    def size(x):
        if not hasattr(x, "shape"):
            raise InputError("size: x has no shape.")
        return x.size

    with pytest.raises(InputError, match=r"has no shape\.$") as caught:
        size(object())
    assert caught.value.__context__ is None
    assert not hasattr(caught.value, "__notes__")


def test_an_error_of_a_check_has_no_note_of_jax():
    @jit_when_eager
    def refuse(x):
        raise InputError("refuse: no.")

    with pytest.raises(InputError, match=r"refuse: no\.$") as caught:
        refuse(jnp.ones(2))
    assert not hasattr(caught.value, "__notes__")


def test_a_function_follows_the_kernels_of_its_operators():
    op, x = doubling("eager_followed"), jnp.ones(2)
    op.def_kernel("other", "cpu", lambda outs: lambda x: x * 3)
    apply = jit_when_eager(lambda x: op(x, outs=x))
    assert apply(x).tolist() == [2, 2]
    with use_backend(cpu="other"):
        assert apply(x).tolist() == [3, 3]
    op.def_jax_kernel(lambda outs: lambda x: x * 5)
    assert apply(x).tolist() == [5, 5]


def test_a_function_gets_arrays_if_backends_may_be_measured():
    seen = []

    @jit_when_eager
    def look(x, backend=None):
        seen.append(isinstance(x, jax.core.Tracer))
        return x

    with use_backend("auto"):
        look(jnp.ones(2))
    look(jnp.ones(2), backend="auto")
    assert seen == [False, False]
