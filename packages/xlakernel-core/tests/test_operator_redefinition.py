"""Operators that are defined again: the present definition applies everywhere."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax import export
from jax.interpreters import ad, batching
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import ArgumentError

Struct = jax.ShapeDtypeStruct
pytestmark = pytest.mark.usefixtures("x64")
X = np.array([0.5, -1.5, 2.0])


def scaling(factor):
    return lambda outs: lambda x: factor * x


USES = {
    "call": lambda f, bind: f(X),
    "derivative": lambda f, bind: jax.grad(lambda x: f(x).sum())(np.ones(3)) * X,
    "map": lambda f, bind: jax.vmap(f)(X[None])[0],
    "new jit": lambda f, bind: jax.jit(lambda x: f(x))(X),
    "bind": lambda f, bind: bind(X)[0],
    "loop": lambda f, bind: jax.lax.scan(lambda c, _: (f(c), None), X, length=1)[0],
    "branch": lambda f, bind: jax.lax.cond(True, f, lambda x: x, X),
    "checkpoint": lambda f, bind: jax.grad(lambda x: jax.checkpoint(f)(x).sum())(np.ones(3)) * X,
    "without jit": lambda f, bind: _without_jit(f),
    "export": lambda f, bind: export.export(jax.jit(f), platforms=["cpu"])(X).call(X),
}


def _without_jit(f):
    with jax.disable_jit():
        return f(X)


@pytest.mark.parametrize("once", [lambda f: f, jax.jit], ids=["function", "jitted"])
@pytest.mark.parametrize("use", USES)
def test_a_kernel_that_is_replaced_is_no_longer_called(new_operator, use, once):
    op = new_operator()
    op.def_transpose(0, lambda ins, cotangent: op(cotangent, outs=cotangent))
    call = once(lambda x: op(x, outs=x))
    for factor in (2, 3):
        op.def_jax_kernel(scaling(factor))
        found = USES[use](call, lambda x: op.primitive.bind(x, outs=[Struct(x.shape, x.dtype)]))
        assert_array_equal(found, factor * X)


@pytest.mark.versions
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("how", ["kernel", "operator"])
def test_a_kernel_calls_an_operator_that_is_defined_again(new_operator, use, how):
    inner, outer = new_operator(), new_operator()
    outer.def_jax_kernel(lambda outs: lambda x: 10 * inner(x, outs=x))
    outer.def_transpose(0, lambda ins, cotangent: outer(cotangent, outs=cotangent))
    for factor in (2, 3):
        if how == "operator":
            inner = XLACustomKernel(inner.name, replace=True)
        inner.def_jax_kernel(scaling(factor))
        found = USES[use](
            lambda x: outer(x, outs=x), lambda x: outer.primitive.bind(x, outs=[Struct(x.shape, x.dtype)])
        )
        assert_array_equal(found, 10 * factor * X)


def test_a_generator_that_is_registered_again_has_the_present_values(new_operator):
    op, factors = new_operator(), [2]

    def generator(outs):
        factor = factors[-1]
        return lambda x: factor * x

    for factor in (2, 3):
        factors.append(factor)
        op.def_jax_kernel(generator)
        assert_array_equal(op(X, outs=X), factor * X)


def test_the_defaults_of_another_operator_apply_to_the_next_call(new_operator):
    op, leader = new_operator(), new_operator()
    for one in (op, leader):
        one.def_jax_kernel(scaling(2))
        one.def_kernel("other", "cpu", scaling(3))
    leader.set_default("cpu", "other")
    found = [op(X, outs=X)]
    op.def_default_of(leader)
    found.append(op(X, outs=X))
    assert_array_equal(found, [2 * X, 3 * X])


@pytest.mark.versions
def test_a_reference_calls_an_operator_that_is_defined_again(new_operator):
    inner, outer = new_operator(lambda x: x), new_operator(lambda x: x)
    outer.def_reference(lambda x: inner(x, outs=x))
    for factor in (2.0, 3.0):
        inner.def_reference(lambda x, factor=factor: factor * x)
        assert_array_equal(jax.grad(lambda x: outer(x, outs=x).sum())(np.ones(3)), np.full(3, factor))


@pytest.mark.versions
@pytest.mark.parametrize("first", ["kernel", "rule"])
def test_a_kernel_and_its_derivative_are_of_one_definition(new_operator, first):
    op = new_operator()

    def step(carry, _):
        return op(carry, outs=carry), None

    @jax.jit
    def jitted(x):
        return op(jax.lax.scan(step, x, length=1)[0], outs=x).sum()

    def define(factor):
        if first == "kernel":
            op.def_jax_kernel(scaling(factor))
        op.def_reference(lambda x: factor * x)
        if first == "rule":
            op.def_jax_kernel(scaling(factor))

    for factor in (2.0, 3.0):
        define(factor)
        for f in (jitted, jax.checkpoint(jitted), jax.jit(lambda x: jitted(x))):
            value, slope = jax.value_and_grad(f)(np.ones(3))
            assert_array_equal(value, 3 * factor**2)
            assert_array_equal(slope, np.full(3, factor**2))


def test_a_definition_reaches_every_thread(new_operator):
    op = new_operator()
    op.def_jax_kernel(scaling(2))
    f = jax.jit(lambda x: op(x, outs=x))
    f(X)
    with ThreadPoolExecutor(1) as pool:
        assert_array_equal(pool.submit(f, X).result(), 2 * X)
        op.def_jax_kernel(scaling(3))
        assert_array_equal(pool.submit(f, X).result(), 3 * X)
        pool.submit(op.def_jax_kernel, scaling(4)).result()
    assert_array_equal(f(X), 4 * X)


def test_another_thread_that_fills_jaxs_caches_stops_no_definition(new_operator, monkeypatch):
    op, clear, attempts = new_operator(), jax.clear_caches, []

    def interrupted():
        attempts.append(None)
        if len(attempts) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        clear()

    f = jax.jit(lambda x: op(x, outs=x))
    monkeypatch.setattr(jax, "clear_caches", interrupted)
    for factor in (2, 3):
        op.def_kernel("own", "cpu", scaling(factor))
        assert_array_equal(f(X), factor * X)
    assert len(attempts) == 3


def test_functions_are_traced_again_only_if_they_may_call_the_operator(new_operator):
    traces = []

    @jax.jit
    def f(x):
        traces.append(None)
        return x + 1

    op = new_operator()
    for _ in range(2):
        op.def_jax_kernel(scaling(2))
        op.def_reference(lambda x: 2 * x)
        f(X)
    assert len(traces) == 1
    op(X, outs=X)
    for _ in range(2):
        op.def_jax_kernel(scaling(3))
        f(X)
    assert len(traces) == 2


def test_a_rule_replaces_one_in_the_tables_of_jax(new_operator):
    op = new_operator(lambda x: 2 * x)
    p = op.primitive
    ad.primitive_jvps[p] = lambda primals, tangents, **params: (p.bind(*primals, **params), [7.0 * tangents[0]])
    batching.primitive_batchers[p] = lambda ins, axes, **params: ([7.0 * ins[0]], axes)
    ad.primitive_transposes[p] = lambda cotangents, x, **params: [7.0 * cotangents[0]]

    def f(x):
        return op(x, outs=x)

    def check(factor):
        assert_array_equal(jax.jvp(f, (X,), (X,))[1], factor * X)
        assert_array_equal(jax.vmap(f)(X[None])[0], factor * X)
        assert_array_equal(jax.linear_transpose(f, X)(X)[0], factor * X)

    check(7.0)
    op.def_jvp_rule(lambda primals, tangents, **params: (p.bind(*primals, **params), [2.0 * tangents[0]]))
    op.def_batching_rule(lambda ins, axes, **params: ([2.0 * ins[0]], axes))
    op.def_transpose_rule(lambda cotangents, x, **params: [2.0 * cotangents[0]])
    check(2.0)


@pytest.mark.filterwarnings("ignore:.*replaced while JAX traces:UserWarning")  # which is what the function does
def test_an_operator_that_is_replaced_in_a_trace_is_replaced_later_too(new_operator):
    op = new_operator(lambda x: 1 * x)
    f = jax.jit(lambda x: op(x, outs=x))
    f(X)

    def replace(factor):
        nonlocal op
        op = XLACustomKernel(op.name, replace=True)
        op.def_jax_kernel(scaling(factor))

    jax.jit(lambda x: (replace(2), x)[1])(X)
    replace(3)
    assert_array_equal(f(X), 3 * X)
    op.def_jax_kernel(scaling(4))
    assert_array_equal(f(X), 4 * X)


def test_kernels_that_threads_register_are_all_there(new_operator):
    op, interval = new_operator(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: op.def_kernel(f"b{i}", "cpu", scaling(i)), range(400)))
    finally:
        sys.setswitchinterval(interval)
    assert sorted(op.available_backends("cpu")) == sorted(f"b{i}" for i in range(400))


def test_definitions_of_operators_that_are_not_called_clear_no_cache(new_operator, monkeypatch):
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(None))
    op, leader = new_operator(lambda x: x), new_operator(lambda x: x)
    op.def_default_of(leader)
    for one in (op, leader):
        one.def_jvp_rule(lambda primals, tangents, **params: None)
        one.def_transpose_rule(lambda cotangents, x, **params: None)
        one.def_sharding_rule("i -> i")
        one.def_jax_kernel(scaling(2))
        one.def_kernel("other", "cpu", scaling(2), asdefault=True)
    assert not cleared


@pytest.mark.versions
@pytest.mark.parametrize("where", ["function", "generator"])
def test_a_definition_in_a_traced_function_is_made_in_each_call_with_a_warning(new_operator, where):
    op, defined = new_operator(), []

    def define():
        helper = XLACustomKernel(op.name + "_helper", replace=True)
        helper.def_jax_kernel(scaling(2 + len(defined)))
        defined.append(helper)
        return helper

    def generator(outs):
        helper = define()
        return lambda x: helper(x, outs=x)

    op.def_jax_kernel(generator if where == "generator" else scaling(1))
    f = jax.jit(lambda x: (op if where == "generator" else define())(x, outs=x))
    assert_array_equal(f(X), 2 * X)
    for factor in range(3, 6):
        with pytest.warns(UserWarning, match="_helper: .* replaced while JAX traces"):
            assert_array_equal(f(X[:2]), factor * X[:2])
    assert len(defined) == 4


@pytest.mark.filterwarnings("ignore:.*replaced while JAX traces:UserWarning")  # which is what the function does
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_a_definition_in_a_traced_function_applies_there_and_a_later_one_everywhere(new_operator, transform):
    op = new_operator()

    @transform
    def f(x):
        found = []
        for factor in (2, 3):
            op.def_jax_kernel(scaling(factor))
            found.append(op(x, outs=x))
        return found

    g = jax.jit(lambda x: op(x, outs=x))
    assert_array_equal(f(X), [2 * X, 3 * X])
    assert_array_equal(g(X), 3 * X)
    op.def_jax_kernel(scaling(4))
    assert_array_equal(g(X), 4 * X)
    assert_array_equal(op(X, outs=X), 4 * X)


@pytest.mark.parametrize("use", ["bind", "without jit"])
def test_earlier_generators_are_freed(new_operator, use):
    op, generators = new_operator(), []
    for factor in range(5):
        generator = scaling(factor)
        generators.append(weakref.ref(generator))
        op.def_jax_kernel(generator)
        USES[use](lambda x: op(x, outs=x), lambda x: op.primitive.bind(x, outs=[Struct(x.shape, x.dtype)]))
    del generator
    gc.collect()
    assert sum(ref() is not None for ref in generators) == 1


def test_programs_of_earlier_definitions_are_freed(new_operator):
    op, programs = new_operator(), []
    f = jax.jit(lambda x: op(x, outs=x))
    for factor in range(20):
        op.def_jax_kernel(scaling(factor))
        f(X)
        programs.append(len(jax.devices("cpu")[0].client.live_executables()))
    assert programs[-1] <= programs[3]


def test_operators_take_new_defaults_of_the_operator_that_they_follow(new_operator):
    op, middle, leader = (new_operator() for _ in range(3))
    for one, names in ((op, "ba"), (middle, "ba"), (leader, "ab")):
        for name in names:
            one.def_kernel(name, "cpu", scaling({"a": 2, "b": 3}[name]))

    @jax.jit
    def f(x):
        return op(x, outs=x)

    def check(factor):
        for call in (f, lambda x: op(x, outs=x), jax.jit(lambda x: op(x, outs=x))):
            assert_array_equal(call(X), factor * X)

    op.def_default_of(middle)
    check(3)
    leader.set_default("cpu", "a")
    middle.def_default_of(leader)  # which was not called
    check(2)
    leader.set_default("cpu", "b")
    check(3)
    for name, factor in (("a", 2), ("b", 3), ("a", 2)):
        leader.set_default("cpu", name)
        check(factor)


def test_operators_do_not_follow_each_other_in_a_circle(new_operator):
    first, second, third = (new_operator() for _ in range(3))
    second.def_default_of(first)
    third.def_default_of(second)
    for leader in (first, second, third):
        with pytest.raises(ArgumentError, match=f"{first.name}: def_default_of was given {leader.name}"):
            first.def_default_of(leader)
    second.def_default_of(first)


@pytest.mark.parametrize("leads", ["before", "after"])
def test_a_default_that_was_set_is_not_replaced_by_another_operators(new_operator, leads):
    op, leader = new_operator(), new_operator()
    for one in (op, leader):
        one.def_kernel("first", "cpu", scaling(2))
        one.def_kernel("other", "cpu", scaling(3))
    leader.set_default("cpu", "other")
    changes = [lambda: op.def_default_of(leader), lambda: op.set_default("cpu", "first")]
    for change in changes if leads == "before" else changes[::-1]:
        change()
    assert op.get_default("cpu") == "first"
    assert_array_equal(op(X, outs=X), 2 * X)
