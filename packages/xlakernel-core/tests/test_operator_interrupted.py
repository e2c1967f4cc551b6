"""Definitions of operators that are interrupted, simultaneous, or made while JAX traces."""

import gc
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel, operators
from xlakernel.core.config import is_auto_possible

X = jnp.arange(3.0)
TRACED = pytest.mark.filterwarnings("ignore:.*replaced while JAX traces:UserWarning")  # which is what is tested


def scaling(factor):
    return lambda outs: lambda x: x * factor


def used(new_operator):
    """Return an operator that multiplies by 2, and a jitted function that has called it."""
    op = new_operator()
    op.def_kernel("a", "cpu", scaling(2))
    f = jax.jit(lambda x: op(x, outs=x))
    assert_array_equal(f(X), 2 * X)
    return op, f


def test_a_definition_after_an_interrupted_one(new_operator, monkeypatch):
    op, f = used(new_operator)

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", interrupted)
        with pytest.raises(KeyboardInterrupt):
            op.def_kernel("a", "cpu", scaling(3))
    op.def_kernel("a", "cpu", scaling(4))
    assert_array_equal(f(X), 4 * X)


def test_a_definition_returns_after_the_caches_are_cleared_though_another_thread_clears_them(new_operator, monkeypatch):
    op, f = used(new_operator)
    clear, is_clearing, go_on = jax.clear_caches, threading.Event(), threading.Event()

    def slow():
        is_clearing.set()
        assert go_on.wait(60)
        clear()

    monkeypatch.setattr(jax, "clear_caches", slow)
    first = threading.Thread(target=op.def_kernel, args=("a", "cpu", scaling(3)))
    first.start()
    assert is_clearing.wait(60)
    monkeypatch.setattr(jax, "clear_caches", clear)
    op.def_kernel("a", "cpu", scaling(4))
    found = f(X)
    go_on.set()
    first.join()
    assert_array_equal(found, 4 * X)


@TRACED
def test_a_default_that_is_set_while_a_function_is_traced(new_operator):
    op, f = used(new_operator)
    op.def_kernel("b", "cpu", scaling(3))

    @jax.jit
    def g(x):
        op.set_default("cpu", "b")
        return op(x, outs=x)

    assert_array_equal(g(X), 3 * X)
    op.set_default("cpu", "a")
    for call in (f, lambda x: op(x, outs=x), jax.jit(f)):
        assert_array_equal(call(X), 2 * X)


@TRACED
@pytest.mark.parametrize("transform", [jax.grad, jax.vmap, jax.make_jaxpr, jax.checkpoint], ids=lambda f: f.__name__)
def test_a_definition_made_while_something_is_traced_applies_to_all_later_calls(new_operator, transform):
    op, f = used(new_operator)

    def define(x):
        op.def_kernel("a", "cpu", scaling(3))
        return x

    transform(define)(1.0 if transform is jax.grad else X)
    for call in (f, jax.jit(lambda x: f(x)), jax.jit(lambda x: (f(x) + op(x, outs=x)) / 2)):
        assert_array_equal(call(X), 3 * X)
    assert_array_equal(jax.lax.scan(lambda carry, x: (carry, f(x)), 0, X)[1], 3 * X)


def test_kernel_and_derivative_of_a_call_are_of_one_definition(new_operator):
    op = new_operator()

    def define(factor):
        op.def_kernel("a", "cpu", scaling(factor))
        op.def_reference(lambda x: x * factor)

    def rule():  # called between the parts of a trace
        thread = threading.Thread(target=define, args=(3,))
        thread.start()
        thread.join()
        return "i -> i"

    define(2)
    op.def_sharding_rule(rule)
    value, pull_back = jax.vjp(lambda x: op(x, outs=x), X)
    (slope,) = pull_back(jnp.ones(3))
    op.def_sharding_rule("i -> i")
    assert (value[1], slope[1]) in ((2, 2), (3, 3))


def test_no_derivative_is_lost_if_threads_declare_several(new_operator):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            op = new_operator(lambda x: x)
            declarations = (lambda op=op: op.def_reference(lambda x: x), lambda op=op: op.def_vjp(lambda *_: None))
            threads = [threading.Thread(target=declare) for declare in declarations]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert op._rules._derivative.keys() == {"reference", "vjp"}
    finally:
        sys.setswitchinterval(before)


def test_a_derivative_that_a_rule_replaced_does_not_come_back(new_operator):
    op = new_operator(lambda x: 2 * x)
    op.def_reference(lambda x: 10 * x)
    op.def_jvp_rule(lambda p, t, **params: (op.primitive.bind(*p, **params), [20 * t[0]]))
    op.def_vjp(lambda primals, out, cotangent: 30 * cotangent)
    assert jax.grad(lambda x: op(x, outs=x).sum())(X)[0] == 30
    with pytest.raises(Exception, match="only def_vjp"):
        jax.jvp(lambda x: op(x, outs=x), (X,), (X,))


def test_an_operator_that_is_made_again_and_again_leaves_nothing(new_name):
    name, kept = new_name(), []
    for factor in range(20):
        op = XLACustomKernel(name, replace=True)
        weight = np.full(3, factor, np.float32)
        kept.append(weakref.ref(weight))
        op.def_kernel("a", "cpu", lambda outs, weight=weight: lambda x: x * weight)
        op.set_default("cpu", "auto")
        assert_array_equal(op(X, outs=X), factor * X)
        assert operators()[name] is op and is_auto_possible()
        del weight
    XLACustomKernel(name, replace=True)
    assert not is_auto_possible()
    gc.collect()
    assert sum(ref() is not None for ref in kept) <= 1


def test_followers_follow_an_operator_that_is_made_again(new_operator):
    leader, op = new_operator(), new_operator()
    for one in (leader, op):
        one.def_kernel("a", "cpu", scaling(2))
        one.def_kernel("b", "cpu", scaling(3))
    op.def_default_of(leader)
    again = XLACustomKernel(leader.name, replace=True)
    again.def_kernel("a", "cpu", scaling(2))
    again.def_kernel("b", "cpu", scaling(3))
    again.set_default("cpu", "b")
    assert op.defaults == {"cpu": "b"}


def pull_back_of(f):
    pull_back = jax.vjp(jax.checkpoint(f), X)[1]
    return lambda cotangent: pull_back(cotangent)[0]


def jaxpr_of(f):
    traced = jax.make_jaxpr(f)(X)
    return lambda x: jax.core.eval_jaxpr(traced.jaxpr, traced.consts, x)[0]


def lowered_later(f):
    traced = jax.jit(f).trace(X)
    return lambda x: traced.lower().compile()(x)


KEPT = {
    "linearize": lambda f: jax.linearize(f, X)[1],
    "pull-back": pull_back_of,
    "jaxpr": jaxpr_of,
    "traced": lowered_later,
}


@pytest.mark.parametrize("keep", KEPT)
def test_kept_programs_keep_their_kernels_if_the_backends_get_other_names(new_name, keep):
    def define(name, factor):
        op = XLACustomKernel(operator, replace=True)
        op.def_kernel(name, "cpu", scaling(factor))
        op.def_transpose(0, lambda ins, cotangent: factor * cotangent)
        return op

    operator = new_name()
    op = define("numba", 2)

    def f(x):
        return op(x, outs=x)

    kept = KEPT[keep](f)
    XLACustomKernel(operator, replace=True)
    assert_array_equal(kept(X), 2 * X)
    define("jax", 3)
    assert_array_equal(kept(X), 2 * X)
    assert_array_equal(jax.jit(f)(X), 3 * X)


def test_followers_change_with_an_operator_that_is_emptied(new_operator):
    first, middle, last = new_operator(), new_operator(), new_operator()
    for one in (first, middle, last):
        one.def_kernel("a", "cpu", scaling(2))
        one.def_kernel("b", "cpu", scaling(3))
    last.def_default_of(middle)
    middle.def_default_of(first)
    f = jax.jit(lambda x: last(x, outs=x))
    for emptied in (first, middle):
        first.def_kernel("b", "cpu", scaling(3), asdefault=True)
        middle.def_default_of(first)
        assert_array_equal(f(X), 3 * X)
        XLACustomKernel(emptied.name, replace=True)
        assert_array_equal(f(X), 2 * X)
        assert last.defaults == {"cpu": "a"}


def test_a_default_is_set_after_an_interruption(new_operator, monkeypatch):
    op, f = used(new_operator)
    op.def_kernel("b", "cpu", scaling(3))

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", interrupted)
        with pytest.raises(KeyboardInterrupt):
            op.set_default("cpu", "b")
    op.set_default("cpu", "b")
    assert_array_equal(f(X), 3 * X)


def test_a_default_that_is_set_again_clears_no_cache(new_operator, monkeypatch):
    op, f = used(new_operator)
    op.def_kernel("b", "cpu", scaling(3), asdefault=True)
    assert_array_equal(f(X), 3 * X)
    monkeypatch.setattr(jax, "clear_caches", lambda: pytest.fail("cleared"))
    op.set_default("cpu", "b")


def test_an_operator_follows_another_only_once(new_operator):
    leader, other, op = new_operator(), new_operator(), new_operator()
    for _ in range(3):
        op.def_default_of(leader)
    op.def_default_of(other)
    assert leader._backends._followers == [] and other._backends._followers == [op._backends]


def test_a_subclass_that_is_defined_again(new_name):
    name, found = new_name(), []
    for factor in (2, 3):

        class Scaling(XLACustomKernel):
            number = factor

        op = Scaling(name, replace=True)
        op.def_jax_kernel(scaling(factor))
        found.append(op)
    assert found[0] is found[1] and op.number == 3
    assert_array_equal(found[0](X, outs=X), 3 * X)


def test_a_default_of_a_leader_in_another_thread_is_not_skipped(new_operator, monkeypatch):
    leader, op = new_operator(), new_operator()
    for one in (leader, op):
        one.def_kernel("a", "cpu", scaling(2))
        one.def_kernel("b", "cpu", scaling(3))
    op.def_default_of(leader)
    f = jax.jit(lambda x: op(x, outs=x))
    assert_array_equal(f(X), 2 * X)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            leader.set_default("cpu", "b")
    op.set_default("cpu", "b")
    assert_array_equal(f(X), 3 * X)


def test_an_operator_that_follows_auto_may_be_auto_itself(new_operator):
    leader, op = new_operator(lambda x: x), new_operator(lambda x: x)
    op.def_default_of(leader)
    for one in (leader, op):
        one.set_default("cpu", "auto")
    leader.set_default("cpu", "jax")
    assert is_auto_possible()


@pytest.mark.parametrize("how", ["set_default", "def_kernel"])
def test_any_definition_completes_an_interrupted_one(new_operator, monkeypatch, how):
    op, f = used(new_operator)
    op.set_default("cpu", "a")
    assert_array_equal(f(X), 2 * X)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            op.def_kernel("a", "cpu", scaling(3))
    if how == "set_default":
        op.set_default("cpu", "a")
    else:
        op.def_kernel("other", "cpu", scaling(4))
    assert_array_equal(f(X), 3 * X)


def test_an_interrupted_reset_keeps_no_derivative(new_operator, monkeypatch):
    op, f = used(new_operator)
    op.def_jvp(lambda primals, tangents: 2 * tangents[0])
    op.def_vjp(lambda primals, out, cotangent: 2 * cotangent)
    assert_array_equal(f(X), 2 * X)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            XLACustomKernel(op.name, replace=True)
    op.def_kernel("a", "cpu", scaling(3))
    op.def_vjp(lambda primals, out, cotangent: 3 * cotangent)
    assert_array_equal(jax.grad(lambda x: f(x).sum())(X), [3, 3, 3])
    with pytest.raises(Exception, match="only def_vjp"):
        jax.jvp(f, (X,), (X,))


def test_a_failing_constructor_changes_nothing(new_name):
    class Tenfold(XLACustomKernel):
        def __call__(self, *ins, **options):
            return 10 * super().__call__(*ins, **options)

    op = Tenfold(new_name())
    op.def_jax_kernel(scaling(2))
    with pytest.raises(TypeError, match="has_side_effects"):
        XLACustomKernel(op.name, replace=True, has_side_effects=True)
    assert type(op) is Tenfold
    assert_array_equal(op(X, outs=X), 20 * X)


def test_an_operator_of_another_class_takes_the_name_over(new_name):
    class Mine(XLACustomKernel):
        def __init__(self, name):
            super().__init__(name, replace=True)

    name = new_name()
    operators_made = []
    f = jax.jit(lambda x: operators_made[-1](x, outs=x))
    for factor in (2, 3):
        operators_made.append(Mine(name))
        operators_made[-1].def_jax_kernel(scaling(factor))
        assert_array_equal(f(X), factor * X)


def test_a_reset_removes_rules_of_jax(new_operator):
    op, _ = used(new_operator)
    jax.interpreters.mlir.register_lowering(
        op.primitive, jax.interpreters.mlir.lower_fun(lambda x, **_: [7 * x], multiple_results=True), platform="cpu"
    )
    op.primitive.def_impl(lambda x, **_: [7 * x])
    assert_array_equal(jax.jit(lambda x: op(x, outs=x))(X), 7 * X)
    again = XLACustomKernel(op.name, replace=True)
    again.def_kernel("a", "cpu", scaling(3))
    assert_array_equal(jax.jit(lambda x: op(x, outs=x))(X), 3 * X)
    assert_array_equal(op.primitive.bind(X, outs=[jax.ShapeDtypeStruct(X.shape, X.dtype)])[0], 3 * X)
