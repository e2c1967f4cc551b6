"""Declarations of derivatives that are repeated, combined, or wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import DifferentiationError, KernelTypeError

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
    assert found == [2, 3, 3, 5, 6, 7, 8]  # the rules replace what was declared before


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
