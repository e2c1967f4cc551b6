"""Static keywords: any name and any hashable value, each a program of its own."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import StaticArgumentError

Struct = jax.ShapeDtypeStruct
X = jnp.arange(3.0)


@pytest.fixture
def scale(new_operator):
    """Multiply by the static keyword; every call that follows an error is checked with it."""
    op = new_operator()
    op.def_jax_kernel(lambda outs, *, factor=2: lambda x, *_: x * factor)
    yield op
    assert op(X, outs=X).tolist() == [0, 2, 4]
    assert jax.jit(lambda x: op(x, outs=x, factor=3))(X).tolist() == [0, 3, 6]


def refused(*parts):
    return pytest.raises(StaticArgumentError, match=".*".join(map(re.escape, parts)))


def test_a_traced_static_keyword_is_named(scale):
    with refused(f"{scale.name}: the static keyword 'factor' is traced", "static_argnames='factor'"):
        jax.jit(lambda x, n: scale(x, outs=x, factor=n))(X, 2)
    with refused("the static keyword 'factor' is traced"):
        jax.grad(lambda n: scale(X, outs=X, factor=(1, n))[0])(2.0)
    with refused("the static keyword 'factor' is traced"):
        jax.vmap(lambda n: scale(X, outs=X, factor={"a": n}))(X)


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}, np.ones(2), jnp.ones(2), (1, [2]), bytearray(b"a")], ids=repr)
def test_an_unhashable_static_keyword_is_named(scale, value):
    kind = type(value).__name__
    with refused(f"{scale.name}: the static keyword 'factor' is ", f"unhashable type {kind}", "tuple"):
        scale(X, outs=X, factor=value)


def test_the_keyword_dispatch_is_taken(scale):
    with refused(f"{scale.name}: the keyword 'dispatch'", "rename it"):
        scale(X, outs=X, dispatch=1)


@dataclasses.dataclass(frozen=True)
class Settings:
    value: object


# Equal in Python, and other programs.
LOOKALIKES = {
    "numbers": [1, 1.0, True, 1 + 0j, np.int32(1), np.float32(1), np.bool_(True)],
    "tuples": [(1, 2), (1.0, 2), (True, 2), (1, 2.0)],
    "nested tuples": [(0, (1, "a")), (0, (True, "a")), (0, (1.0, "a")), (False, (1, "a"))],
    "frozensets": [frozenset({1}), frozenset({True}), frozenset({1.0})],
    "zeros": [0.0, -0.0],
    "zeros in a tuple": [(0.0, 1), (-0.0, 1)],
    "frozen dataclasses": [Settings(1), Settings(1.0), Settings(True)],
}


def kinds(value):
    return repr(value), str(type(value))


@pytest.mark.parametrize("case", LOOKALIKES)
@pytest.mark.parametrize("together", [False, True], ids=["eager", "in one jit"])
def test_static_values_that_are_equal_are_not_confused(op, case, together):
    made = []

    def generator(outs, *, value):
        made.append(value)
        return lambda x: x

    op.def_jax_kernel(generator)
    values = LOOKALIKES[case]

    def call(x):
        return [op(x, outs=x, value=value) for value in values]

    program = jax.jit(call) if together else call
    for _ in range(2):
        program(X)
        assert sorted(map(kinds, made)) == sorted(map(kinds, values))


@pytest.mark.parametrize(
    "name", ["op", "platform", "context", "who", "function", "operands", "kernel", "args", "name", "ins", "axes", "x"]
)
def test_a_static_keyword_may_have_any_name(op, name):
    op.def_jax_kernel(lambda outs, **static: lambda x: x * static[name])
    for wrap in (lambda f: f, jax.jit, jax.vmap):
        assert wrap(lambda x: op(x, outs=Struct(x.shape, x.dtype), **{name: 3}))(X).tolist() == [0, 3, 6]


@pytest.mark.parametrize("name", ["primals", "tangents", "tangent", "rule", "user_rule", "cotangents", "op"])
def test_a_static_keyword_of_a_differentiated_operator_may_have_any_name(op, name):
    op.def_jax_kernel(lambda outs, **static: lambda x: x * static[name])
    op.def_jvp_rule2(lambda t, x, **params: t * params[name])
    apply = functools.partial(op, outs=X, **{name: 3})
    assert jax.jvp(apply, (X,), (jnp.ones(3),))[1].tolist() == [3, 3, 3]
    apply = functools.partial(op, outs=Struct((), jnp.float32), **{name: 3})
    assert jax.vmap(jax.grad(apply))(X).tolist() == [3, 3, 3]


NAMES = [
    *("args", "attributes", "axes", "call", "context", "cotangents", "ctx", "fn", "function", "ins", "kernel", "name"),
    *("kwargs", "op", "operands", "params", "platform", "primals", "self", "static", "tangents", "who"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_keyword_may_have_any_name(new_operator, name):
    """Functions of ours and of JAX's that keywords pass through have parameters, which may not meet them."""
    op = new_operator()
    op.def_jax_kernel(lambda outs, **static: lambda x: static[name] * x)
    op.def_vjp(lambda primals, results, cotangents, /, **static: static[name] * cotangents)
    op.def_call(lambda x, **static: op(x, outs=x, **static))
    assert op.call(X, **{name: 3}).tolist() == [0, 3, 6]
    back = jax.grad(lambda x: op(x, outs=x, **{name: 3}).sum())
    assert back(X).tolist() == [3, 3, 3]
    assert jax.vmap(back)(X[None]).tolist() == [[3, 3, 3]]
