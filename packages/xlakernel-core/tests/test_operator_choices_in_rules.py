"""Which backend the operators in rules have, and which rule or declaration is in force."""

import jax
import jax.numpy as jnp
import pytest

from xlakernel.core import XLACustomKernel, use_backend
from xlakernel.core.errors import BackendNotFoundError, DifferentiationError

X = jnp.ones(3)


def operator(name):
    """Return an operator with the backends "a", which doubles, and "b", which triples."""
    op = XLACustomKernel(name, replace=True)
    for backend, factor in (("a", 2), ("b", 3)):
        op.def_kernel(backend, "cpu", lambda outs, factor=factor: lambda x: factor * x)
    return op


def test_a_bound_primitive_has_the_backend_of_context_and_default():
    op = operator("bound_in_a_rule")

    @op.def_jvp_rule
    def rule(primals, tangents, *, outs, **_):
        return op.primitive.bind(*primals, outs=outs), op.primitive.bind(*tangents, outs=outs)

    f = jax.jit(lambda x: op(x, outs=x))

    def values():
        return [float(f(X)[0]), *(float(x[0]) for x in jax.jvp(f, (X,), (X,)))]

    assert values() == [2, 2, 2]
    with use_backend("b"):
        assert values() == [3, 3, 3]
    with use_backend("nonsense"), pytest.raises(BackendNotFoundError):
        jax.jvp(f, (X,), (X,))
    op.set_default("cpu", "b")
    assert values() == [3, 3, 3]


def test_choices_of_another_operator_leave_the_own_default():
    one, other = operator("passes_its_choices"), operator("gets_choices")

    @one.def_jvp_rule
    def rule(primals, tangents, **params):
        return one.primitive.bind(*primals, **params), other.primitive.bind(*tangents, **params)

    other.set_default("cpu", "b")
    found = jax.jvp(lambda x: one(x, outs=x), (X,), (X,))
    assert [float(x[0]) for x in found] == [2, 3]
    found = jax.jvp(lambda x: one(x, outs=x, backend="a"), (X,), (X,))
    assert [float(x[0]) for x in found] == [2, 2]


@pytest.mark.parametrize("declare", ["transpose", "reference", "jvp and vjp", "rule"])
def test_rules_have_the_backend_of_the_call(declare):
    """A context in a differentiated function applies to its derivative too."""
    op = operator("differentiated_in_a_context")
    if declare == "transpose":
        op.def_transpose(0, lambda ins, ct: op(ct, outs=ct))
    elif declare == "reference":
        inner = operator("called_by_a_reference")
        inner.def_transpose(0, lambda ins, ct: inner(ct, outs=ct))
        op.def_reference(lambda x: inner(x, outs=x))
    elif declare == "jvp and vjp":
        op.def_jvp(lambda primals, tangents: op(tangents[0], outs=tangents[0]))
        op.def_vjp(lambda primals, results, ct: [op(ct, outs=ct)])
    else:
        op.def_jvp_rule(lambda p, t, **params: (op.primitive.bind(*p, **params), op.primitive.bind(*t, **params)))
        op.def_transpose_rule(lambda cts, x, *, outs, **_: op.primitive.bind(*cts, outs=outs))

    def f(x):
        return op(x, outs=x)

    def gradient(x):
        with use_backend("b"):
            return op(x, outs=x).sum()

    assert jax.grad(gradient)(X)[0] == 3
    assert jax.jit(jax.grad(gradient))(X)[0] == 3
    assert jax.grad(jax.jit(gradient))(X)[0] == 3
    with use_backend("b"):
        value, pullback = jax.vjp(f, X)
    assert (value[0], pullback(X)[0][0]) == (3, 3)
    pullback = jax.vjp(f, X)[1]
    with use_backend("b"):  # the call requested none
        assert pullback(X)[0][0] == 3
    assert pullback(X)[0][0] == 2


def test_a_rule_replaces_a_declaration_and_a_declaration_a_rule():
    op = operator("declared_and_ruled")
    op.def_transpose(0, lambda ins, ct: 7 * ct)
    f = jax.jit(jax.grad(lambda x: op(x, outs=x).sum()))
    assert f(X)[0] == 7
    op.def_transpose_rule(lambda cts, x, **_: [5 * cts[0]])
    with pytest.raises(DifferentiationError):
        f(X)
    op.def_jvp_rule(lambda p, t, **params: (op.primitive.bind(*p, **params), op.primitive.bind(*t, **params)))
    assert f(X)[0] == 5
    op.def_reference(lambda x: 4 * x)
    assert f(X)[0] == 4


def test_a_kernel_that_is_added_after_a_trace_is_no_part_of_another_definition():
    op = operator("extended_after_a_trace")
    op.def_reference(lambda x: 2 * x)
    with use_backend("c"):
        kept = jax.make_jaxpr(lambda x: op(x, outs=x))(X)
    op.def_kernel("c", "cpu", lambda outs: lambda x: 2 * x)
    assert jax.jit(jax.extend.core.jaxpr_as_fun(kept))(X)[0][0] == 2
    op.def_reference(lambda x: 9 * x)
    with pytest.raises(BackendNotFoundError, match="after"):
        jax.jit(lambda x: jax.extend.core.jaxpr_as_fun(kept)(x))(X)


def test_followers_of_an_operator_follow_the_one_that_takes_its_name():
    class Leader(XLACustomKernel):
        def __init__(self, name):
            super().__init__(name, replace=True)
            for backend, factor in (("a", 2), ("b", 3)):
                self.def_kernel(backend, "cpu", lambda outs, factor=factor: lambda x: factor * x)

    leader, follower = Leader("leads_and_is_replaced"), operator("follows_a_replaced_one")
    follower.def_default_of(leader)
    again = Leader("leads_and_is_replaced")
    assert again is not leader
    assert follower(X, outs=X)[0] == 2
    again.set_default("cpu", "b")
    assert follower(X, outs=X)[0] == 3
