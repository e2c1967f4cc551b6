"""Declarations of derivatives that are repeated, combined, or wrong."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import ad, batching
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import ArgumentError, DifferentiationError, KernelTypeError

Struct = jax.ShapeDtypeStruct
pytestmark = pytest.mark.usefixtures("x64")
X = np.array([0.5, -1.5, 2.0])


# Rules that are set again, and beside each other.


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_later_traces_follow_the_last_rule(new_operator, jitted):
    op = new_operator(lambda x: x * x)

    def slope():
        f = jax.grad(lambda x: op(x, outs=Struct((), x.dtype)))
        return float((jax.jit(f) if jitted else f)(1.0))

    with pytest.raises(DifferentiationError, match="no derivative"):
        slope()
    found = []
    for change in (
        lambda: op.def_reference(lambda x: 2.0 * x),
        lambda: op.def_reference(lambda x: 3.0 * x),
        lambda: op.def_jvp(lambda primals, tangents: 4.0 * tangents[0]),
        lambda: op.def_vjp(lambda primals, out, out_bar: 5.0 * out_bar),
        lambda: op.def_jvp_rule2(lambda tangent, x, **params: 6.0 * tangent),
        lambda: op.def_jvp_rule(lambda p, t, **params: (op.primitive.bind(*p, **params), [7.0 * t[0]])),
        lambda: op.def_reference(lambda x: 8.0 * x),
    ):
        change()
        found.append(slope())
    assert found == [2, 3, 3, 5, 6, 7, 5]  # the declared VJP stays, whatever the reference


def test_a_transpose_that_is_set_again(new_operator):
    op = new_operator(lambda x: 2 * x)
    for factor in (2, 3):
        op.def_transpose(0, lambda ins, cotangent, factor=factor: factor * cotangent)
        assert_array_equal(jax.grad(lambda x: op(x, outs=x).sum())(X), np.full(3, factor))
        assert_array_equal(jax.linear_transpose(lambda x: op(x, outs=x), X)(X)[0], factor * X)


def test_a_transpose_that_is_set_again_under_another_spelling(new_operator):
    op = new_operator(lambda x: 2 * x)
    for inputs, factor in ((0, 2), ((0,), 3), (np.int64(0), 4)):
        op.def_transpose(inputs, lambda ins, cotangent, factor=factor: factor * cotangent)
        assert_array_equal(jax.grad(lambda x: op(x, outs=x).sum())(X), np.full(3, factor))


def test_an_input_that_no_transpose_covers(new_operator):
    op = new_operator(lambda x, y: x * y)
    op.def_transpose(0, lambda ins, cotangent: cotangent * ins[1])
    with pytest.raises(
        DifferentiationError, match=r"no derivative with respect to input 1; def_transpose covers .*def_reference"
    ):
        jax.grad(lambda y: op(X, y, outs=y).sum())(X)


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
        kept = lambda x: traced.lower().compile()(x)  # noqa: E731
    else:
        result, linear = jax.linearize(f, x)
        kept = lambda x: (result, linear(jnp.ones_like(x)))  # noqa: E731
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
    for f, factor in ((lambda x: kept(x)[0], 2.0), (lambda x: op(x, outs=x), 3.0)):
        assert_array_equal(f(X), factor * X)
        assert_array_equal(jax.grad(lambda x: f(x).sum())(X), np.full(3, factor))  # noqa: B023  # used at once
        assert_array_equal(jax.vmap(f)(np.stack([X, -X])), factor * np.stack([X, -X]))


def test_a_rule_replaces_one_in_the_tables_of_jax(new_operator):
    op = new_operator(lambda x: 2 * x)
    p = op.primitive
    ad.primitive_jvps[p] = lambda primals, tangents, **params: (p.bind(*primals, **params), [7.0 * tangents[0]])
    batching.primitive_batchers[p] = lambda ins, axes, **params: ([7.0 * ins[0]], axes)
    ad.primitive_transposes[p] = lambda cotangents, x, **params: [7.0 * cotangents[0]]

    def check(factor):
        f = lambda x: op(x, outs=x)  # noqa: E731
        assert_array_equal(jax.jvp(f, (X,), (X,))[1], factor * X)
        assert_array_equal(jax.vmap(f)(X[None])[0], factor * X)
        assert_array_equal(jax.linear_transpose(f, X)(X)[0], factor * X)

    check(7.0)
    op.def_jvp_rule(lambda primals, tangents, **params: (p.bind(*primals, **params), [2.0 * tangents[0]]))
    op.def_batching_rule(lambda ins, axes, **params: ([2.0 * ins[0]], axes))
    op.def_transpose_rule(lambda cotangents, x, **params: [2.0 * cotangents[0]])
    check(2.0)


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


@pytest.mark.versions
@pytest.mark.parametrize("where", ["function", "generator"])
def test_a_definition_in_a_traced_function_is_made_once_for_each_trace(new_operator, where):
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
    assert_array_equal(f(X[:2]), 3 * X[:2])
    for _ in range(5):
        f(X[:2])
    assert len(defined) == 2


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


def test_a_kept_program_has_the_backend_that_was_added_before(new_operator):
    op = new_operator(lambda x: 2 * x)
    op(X, outs=X)
    op.def_kernel("other", "cpu", scaling(3))
    kept = jaxpr_as_fun(jax.make_jaxpr(lambda x: op(x, outs=x, backend="other"))(X))
    op.def_kernel("other", "cpu", scaling(5))
    assert_array_equal(kept(X)[0], 3 * X)
    assert_array_equal(op(X, outs=X, backend="other"), 5 * X)


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


def test_a_batching_rule_that_is_set_again(new_operator):
    op = new_operator(lambda x: 2 * x)
    for scale in (3.0, 4.0):
        op.def_batching_rule(lambda ins, axes, *, scale=scale, **params: ([scale * ins[0]], [axes[0]]))
        assert_array_equal(jax.vmap(lambda x: op(x, outs=Struct((), x.dtype)))(X), scale * X)


def test_reverse_mode_transposes_a_declared_jvp_by_a_rule_of_jax(new_operator):
    """def_jvp calls another operator, which has a rule of its JAX primitive for the transpose."""
    inner = new_operator(lambda x, t: jnp.cos(x) * t)
    outer = new_operator(jnp.sin)
    outer.def_jvp(lambda primals, tangents: inner(*primals, *tangents, outs=Struct(X.shape, X.dtype)))

    def f(x):
        return outer(x, outs=x).sum()

    assert_allclose(jax.jvp(f, (X,), (X,))[1], np.cos(X) @ X)
    with pytest.raises(DifferentiationError, match=f"{inner.name}: .*no transpose.*def_transpose.*def_vjp or def_ref"):
        jax.grad(f)(X)
    inner.def_transpose_rule(lambda cotangents, x, t, **params: [None, jnp.cos(x) * cotangents[0]])
    assert_allclose(jax.grad(f)(X), np.cos(X))


@pytest.mark.parametrize("derive", [jax.grad, jax.value_and_grad])
@pytest.mark.parametrize("method", ["def_reference", "def_vjp", "def_transpose"])
def test_an_effect_happens_once(new_name, derive, method):
    op, seen = XLACustomKernel(new_name(), has_side_effect=True), []

    @op.def_jax_kernel
    def generate(outs):
        def kernel(x):
            jax.debug.callback(lambda x: seen.append(float(x[0])), x)
            return 2 * x

        return kernel

    functions = {
        "def_reference": lambda x: 2 * x,
        "def_vjp": lambda primals, out, out_bar: 2 * out_bar,
        "def_transpose": lambda ins, cotangent: 2 * cotangent,
    }
    getattr(op, method)(*[0] * (method == "def_transpose"), functions[method])
    f = jax.jit(derive(lambda x: op(x, outs=x).sum()))
    jax.block_until_ready(f(X))
    jax.effects_barrier()
    assert seen == [X[0]]


# Wrong declarations.


@pytest.mark.parametrize("method", ["def_reference", "def_jvp", "def_vjp"])
@pytest.mark.parametrize("value", [3, None])
def test_a_rejected_declaration_changes_nothing(new_operator, method, value):
    op = new_operator(lambda x: 2 * x)
    op.def_reference(lambda x: 2 * x)
    with pytest.raises(KernelTypeError, match=f"{op.name}: {method} takes a function; got {value!r} of type"):
        getattr(op, method)(value)
    assert_array_equal(jax.grad(lambda x: op(x, outs=x).sum())(X), [2, 2, 2])


@pytest.mark.parametrize("inputs", [-1, (), (0, 0), "x", 1.0, True, None, [0], abs], ids=repr)
def test_wrong_inputs_of_a_transpose(new_operator, inputs):
    op = new_operator(lambda x: 2 * x)
    with pytest.raises(KernelTypeError, match=rf"{op.name}: def_transpose was given .*def_transpose\(inputs, fn\)"):
        op.def_transpose(inputs, abs)


def test_a_transpose_that_is_no_function(new_operator):
    op = new_operator(lambda x: 2 * x)
    with pytest.raises(KernelTypeError, match="def_transpose was given 0 and None; expected"):
        op.def_transpose(0, None)


def test_transposes_that_overlap_or_are_not_there(new_operator):
    op = new_operator(lambda x: 2 * x)
    op.def_transpose((0, 3), lambda ins, cotangent: (cotangent, cotangent))
    with pytest.raises(KernelTypeError, match="each occurs once"):
        op.def_transpose(0, lambda ins, cotangent: cotangent)
    message = f"{op.name}: def_transpose names the input 3, but the call has 1 input, counted"
    for use in (lambda x: op(x, outs=x), jax.grad(lambda x: op(x, outs=x).sum())):
        with pytest.raises(KernelTypeError, match=message):
            use(X)
    with pytest.raises(KernelTypeError, match="def_transpose already defines the derivative that def_jvp and"):
        op.def_vjp(lambda primals, out, out_bar: out_bar)


def test_the_decorators_return_the_function(new_operator):
    op = new_operator(lambda x: 2 * x)
    for method in ("def_reference", "def_jvp", "def_vjp"):
        assert getattr(op, method)(abs) is abs
    other = new_operator(lambda x: 2 * x)
    assert other.def_transpose(0, abs) is abs
