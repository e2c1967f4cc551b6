"""Derivatives that an operator's author declares: the same ways that kernels have, beside rules of JAX's own kind."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import DifferentiationError, KernelTypeError, ResultError

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
    with pytest.raises(DifferentiationError, match=r"no transpose.*def_transpose, .*def_transpose_rule"):
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
        return op(x, outs={"a": x, "b": Struct((), np.int32), "c": x})

    assert_allclose(jax.jacrev(lambda x: f(x)["a"])(X), np.diag(2 * X))
    assert_allclose(jax.grad(lambda x: f(x)["c"] @ x)(X), -10 * X)
    assert_array_equal(jax.grad(lambda x: x[f(x)["b"]])(X), [0, 0, 1])
    every = jax.vmap(jax.grad(lambda x: (f(x)["a"] * f(x)["c"]).sum()))(np.stack([X, -X]))
    assert_allclose(every, [-15 * X**2] * 2)


def test_a_dict_is_no_list_of_results(new_operator):
    op = new_operator(lambda x: (x * x, -5 * x))
    op.def_reference(lambda x: {"square": x * x, "other": -5 * x})
    with pytest.raises(ResultError, match=r"reference returned results as .*'other'.*return them as \['float64"):
        jax.jacfwd(lambda x: op(x, outs=[x, x]))(X)


# Rules that are set again, and beside each other.


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_what_is_traced_later_follows_the_last_rule(new_operator, jitted):
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
    with pytest.raises(DifferentiationError, match=r"no derivative in input 1; def_transpose covers .*def_reference"):
        jax.grad(lambda y: op(X, y, outs=y).sum())(X)


def scaling(factor):
    return lambda outs: lambda x: factor * x


USES = {
    "call": lambda f, bind: f(X),
    "derivative": lambda f, bind: jax.grad(lambda x: f(x).sum())(np.ones(3)) * X,
    "map": lambda f, bind: jax.vmap(f)(X[None])[0],
    "new jit": lambda f, bind: jax.jit(lambda x: f(x))(X),
    "bind": lambda f, bind: bind(X)[0],
}


@pytest.mark.parametrize("use", USES)
def test_a_kernel_that_is_replaced_is_no_longer_called(new_operator, use):
    op = new_operator()
    op.def_transpose(0, lambda ins, cotangent: op(cotangent, outs=cotangent))
    for factor in (2, 3):
        op.def_jax_kernel(scaling(factor))
        found = USES[use](lambda x: op(x, outs=x), lambda x: op.primitive.bind(x, outs=[Struct(x.shape, x.dtype)]))
        assert_array_equal(found, factor * X)


def test_what_users_have_jitted_keeps_its_kernel(new_operator):
    op = new_operator()
    op.def_jax_kernel(scaling(2))
    f = jax.jit(lambda x: op(x, outs=x))
    assert_array_equal(f(X), 2 * X)
    op.def_jax_kernel(scaling(3))
    assert_array_equal(f(X), 2 * X)
    assert_array_equal(f(X[:2]), 3 * X[:2])  # traced again


def test_a_batching_rule_that_is_set_again(new_operator):
    op = new_operator(lambda x: 2 * x)
    for scale in (3.0, 4.0):
        op.def_batching_rule(lambda ins, axes, *, scale=scale, **params: ([scale * ins[0]], [axes[0]]))
        assert_array_equal(jax.vmap(lambda x: op(x, outs=Struct((), x.dtype)))(X), scale * X)


def test_a_rule_of_jax_transposes_what_a_declared_jvp_does(new_operator):
    """def_jvp calls another operator, which has a transpose rule of JAX's own kind."""
    inner = new_operator(lambda x, t: jnp.cos(x) * t)
    outer = new_operator(jnp.sin)
    outer.def_jvp(lambda primals, tangents: inner(*primals, *tangents, outs=Struct(X.shape, X.dtype)))

    def f(x):
        return outer(x, outs=x).sum()

    assert_allclose(jax.jvp(f, (X,), (X,))[1], np.cos(X) @ X)
    with pytest.raises(DifferentiationError, match=f"{inner.name}: no transpose.*def_transpose.*def_vjp or def_refer"):
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
def test_what_is_no_function_changes_nothing(new_operator, method, value):
    op = new_operator(lambda x: 2 * x)
    op.def_reference(lambda x: 2 * x)
    with pytest.raises(KernelTypeError, match=f"{op.name}: {method} takes a function; got {value!r} of type"):
        getattr(op, method)(value)
    assert_array_equal(jax.grad(lambda x: op(x, outs=x).sum())(X), [2, 2, 2])


@pytest.mark.parametrize("inputs", [-1, (), (0, 0), "x", 1.0, True, None, [0]], ids=repr)
def test_wrong_inputs_of_a_transpose(new_operator, inputs):
    op = new_operator(lambda x: 2 * x)
    with pytest.raises(
        KernelTypeError, match=rf"{op.name}: def_transpose was given .*def_transpose\(inputs, fn\)"
    ) as caught:
        op.def_transpose(inputs, abs)
    assert "swapped" not in str(caught.value)


@pytest.mark.parametrize(("inputs", "function", "swapped"), [(abs, 0, True), (abs, (0, 1), True), (0, None, False)])
def test_arguments_of_a_transpose_that_are_swapped(new_operator, inputs, function, swapped):
    op = new_operator(lambda x: 2 * x)
    with pytest.raises(KernelTypeError, match=r"def_transpose was given .*def_transpose\(inputs, fn\)") as caught:
        op.def_transpose(inputs, function)
    assert ("the arguments are swapped" in str(caught.value)) == swapped


def test_transposes_that_overlap_or_are_not_there(new_operator):
    op = new_operator(lambda x: 2 * x)
    op.def_transpose((0, 3), lambda ins, cotangent: (cotangent, cotangent))
    with pytest.raises(KernelTypeError, match="each input once"):
        op.def_transpose(0, lambda ins, cotangent: cotangent)
    message = f"{op.name}: def_transpose names the input 3, but the call has 1 input, counted"
    for use in (lambda x: op(x, outs=x), jax.grad(lambda x: op(x, outs=x).sum())):
        with pytest.raises(KernelTypeError, match=message):
            use(X)
    with pytest.raises(KernelTypeError, match=r"def_transpose already says what def_jvp and def_vjp would"):
        op.def_vjp(lambda primals, out, out_bar: out_bar)


def test_the_decorators_return_the_function(new_operator):
    op = new_operator(lambda x: 2 * x)
    for method in ("def_reference", "def_jvp", "def_vjp"):
        assert getattr(op, method)(abs) is abs
    other = new_operator(lambda x: 2 * x)
    assert other.def_transpose(0, abs) is abs
