"""Errors of invalid declarations, when they are made and when they are used."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose

from xlakernel.core.errors import DifferentiationError, KernelTypeError, ResultError
from xlakernel.numba import numba_kernel

X = np.array([0.5, -1.5, 2.0], np.float32)


@numba.njit
def add(x, y, out):
    for i in range(x.size):
        out[i] = x[i] + y[0]


@numba.njit
def both(x, b, a):
    for i in range(x.size):
        b[i], a[i] = x[i], 2 * x[i]


def make(**declared):
    return numba_kernel(add, outs=lambda x, y: x, **declared)


def make_both(**declared):
    return numba_kernel(both, outs=lambda x: {"b": x, "a": x}, **declared)


def forward(f, *inputs):
    return jax.jvp(f, inputs, inputs)


def reverse(f, *inputs):
    return jax.grad(lambda *inputs: sum(leaf.sum() for leaf in jax.tree.leaves(f(*inputs))), range(len(inputs)))(
        *inputs
    )


def says(*parts):
    return "(?s)" + ".*".join(map(re.escape, parts))


def returns(value):
    return lambda *_: value


# When they are made.


@pytest.mark.parametrize("keyword", ["reference", "jvp", "vjp"])
@pytest.mark.parametrize("value", [3, "jvp", {0: abs}], ids=repr)
def test_no_function(keyword, value):
    with pytest.raises(KernelTypeError, match=says(f"add: {keyword} is {value!r} of type", "expected a function")):
        make(**{keyword: value})


NO_TRANSPOSES = [
    abs, 3, [abs], {}, {0: None}, {0: 3}, {"x": abs}, {None: abs}, {-1: abs}, {0.0: abs}, {True: abs}, {(): abs},
    {(0, -1): abs}, {(0, 0): abs}, {(0, 1): abs, 1: abs}, {(0,): abs, 0: abs}, {(0, (1,)): abs}, {0: abs, "x": abs},
]  # fmt: skip


@pytest.mark.parametrize("value", NO_TRANSPOSES, ids=lambda value: repr(value).partition(" at 0x")[0])
def test_no_transposes(value):
    with pytest.raises(KernelTypeError, match=says("add: transpose is", "{input: function, ...}", "counted from 0")):
        make(transpose=value)


@pytest.mark.parametrize("other", [{"jvp": abs}, {"vjp": abs}, {"jvp": abs, "vjp": abs, "reference": abs}], ids=str)
def test_a_transpose_excludes_jvp_and_vjp(other):
    with pytest.raises(KernelTypeError, match=says("add: transpose=", "jvp= and vjp=", "Give either")):
        make(transpose={0: abs}, **other)


@pytest.mark.parametrize("index", [np.int64(0), (np.int32(0),), (0,)], ids=repr)
def test_positions_may_be_numpy_integers(index):
    f = make(transpose={index: lambda inputs, out_bar: 2 * out_bar})
    assert_allclose(jax.grad(lambda x: f(x, X).sum())(X), [2, 2, 2])


# When they are used.


@pytest.mark.parametrize("value", [{2: abs}, {(0, 7): abs}, {0: abs, 9: abs}], ids=str)
@pytest.mark.parametrize("use", [lambda f: f(X, X), lambda f: reverse(f, X, X)], ids=["call", "derivative"])
def test_a_transpose_of_a_missing_input(value, use):
    with pytest.raises(KernelTypeError, match=says("add: transpose= names the input", "the call has 2 inputs")):
        use(make(transpose=value))


SIGNATURES = [
    ({"reference": lambda x: x}, forward, "reference(*inputs)"),
    ({"reference": lambda x, y, *, z: x}, forward, "reference(*inputs)"),
    ({"jvp": lambda primals: primals}, forward, "jvp(primals, tangents)"),
    ({"vjp": lambda primals, cotangents: cotangents}, reverse, "vjp(primals, results, cotangents)"),
    ({"transpose": {0: lambda cotangents: cotangents, 1: abs}}, reverse, "transpose(inputs, cotangents)"),
]


@pytest.mark.parametrize(("declared", "derive", "expected"), SIGNATURES, ids=[str(case[2]) for case in SIGNATURES])
def test_a_function_of_other_arguments(declared, derive, expected):
    keyword = next(iter(declared))
    with pytest.raises(KernelTypeError, match=says(f"add: {keyword} cannot be called as {expected}: ")):
        derive(make(**declared), X, X)


@numba.njit
def scaled(x, out, factor):
    for i in range(x.size):
        out[i] = factor * x[i]


def test_a_function_without_the_static_scalars():
    f = numba_kernel(scaled, outs=lambda x: x, reference=lambda x, scale: x * scale)
    with pytest.raises(KernelTypeError, match=says("scaled: reference cannot be called as", "factor=...", "scale")):
        forward(functools.partial(f, factor=2.0), X)


OF_X = [
    (X[:2], "float32[2]"),
    (X[:, None], "float32[3,1]"),
    (X.astype(np.float16), "float16[3]"),
    (X.astype(np.int32), "int32[3]"),
    (X + 1j, "complex64[3]"),
    (1.0, "1.0 of type float"),
    ("text", "'text' of type str"),
    (jax.ShapeDtypeStruct((3,), np.float32), "float32[3]"),
]
EACH_WRONG = pytest.mark.parametrize(("wrong", "found"), OF_X, ids=[found for _, found in OF_X])
#: A function of f and where it has its input x.
MAPPED = pytest.mark.parametrize(
    ("wrap", "x"), [(lambda f: f, X), (lambda f: jax.vmap(f, (1, None), 1), X[:, None])], ids=["alone", "vmap"]
)


@EACH_WRONG
@pytest.mark.parametrize("keyword", ["reference", "jvp"])
def test_results_and_tangents_of_another_type(keyword, wrong, found):
    with pytest.raises(ResultError, match=says(f"add: result 0 of {keyword} is {found}; outs[0] is float32[3]")):
        forward(make(**{keyword: returns(wrong)}), X, X)


@EACH_WRONG
@MAPPED
def test_cotangents_of_another_type(wrong, found, wrap, x):
    message = says(f"add: vjp returned {found} as the cotangent of input 0, which is float32[3]", "None for zero")
    with pytest.raises(ResultError, match=message):
        reverse(wrap(make(vjp=returns((wrong, X)))), x, X)


@EACH_WRONG
@MAPPED
def test_transposes_of_another_type(wrong, found, wrap, x):
    message = says("add: the transpose for inputs (0, 1) returned", f"{found} as the cotangent of input 0, which is")
    with pytest.raises(ResultError, match=message):
        reverse(wrap(make(transpose={(0, 1): returns([wrong, X])})), x, X)


NUMBERS = [
    ({"reference": returns((X, X))}, forward, "reference returned 2 results; the kernel has 1"),
    ({"reference": returns(())}, forward, "reference returned 0 results; the kernel has 1"),
    ({"jvp": returns([X, X])}, forward, "jvp returned 2 tangents of the results; the kernel has 1"),
    ({"reference": returns((X, X, X))}, reverse, "reference returned 3 results; the kernel has 1 result."),
    ({"jvp": returns((X,) * 3)}, forward, "jvp returned 3 tangents of the results; the kernel has 1 result."),
    ({"jvp": returns(None)}, forward, "jvp returned None; return the tangents of the results (does it lack a return?)"),
    ({"reference": returns(None)}, forward, "reference returned None; return the results (does it lack a return?)"),
    ({"vjp": returns(X)}, reverse, "vjp returned 1 cotangent for 2 inputs; return one for each"),
    ({"vjp": returns((X, X, X))}, reverse, "vjp returned 3 cotangents for 2 inputs"),
    ({"vjp": returns({0: X, 1: X})}, reverse, "vjp returned 1 cotangent for 2 inputs"),
    (
        {"transpose": {(0, 1): returns(X)}},
        reverse,
        "the transpose for inputs (0, 1) returned 1 cotangent for 2 inputs;",
    ),
    ({"transpose": {0: returns((X, X)), 1: returns(X)}}, reverse, "the transpose for inputs (0,) returned 2"),
]


@pytest.mark.parametrize(("declared", "derive", "message"), NUMBERS, ids=[case[2] for case in NUMBERS])
@MAPPED
def test_another_number(declared, derive, message, wrap, x):
    with pytest.raises(ResultError, match=says(f"add: {message}")):
        derive(wrap(make(**declared)), x, X)


FORGOTTEN = "return a tuple of {} (does it lack a return?). For zero return {}."
ONE, TWO = ("1 cotangent", "(None,)"), ("2 cotangents", "(None, None)")
RETURNED_NONE = [
    ({"vjp": returns(None)}, "vjp", TWO),
    ({"transpose": {(0, 1): returns(None)}}, "the transpose for inputs (0, 1)", TWO),
    ({"transpose": {0: returns(None), 1: returns(X)}}, "the transpose for inputs (0,)", ONE),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "who", "words"), RETURNED_NONE, ids=[case[1] for case in RETURNED_NONE])
@MAPPED
def test_a_forgotten_return_is_an_error(declared, who, words, wrap, x):
    with pytest.raises(ResultError, match=says(f"add: {who} returned None; {FORGOTTEN.format(*words)}")):
        reverse(wrap(make(**declared)), x, X)


@pytest.mark.parametrize(
    "declared",
    [{"vjp": returns((None,))}, {"transpose": {0: returns((None,))}}],
    ids=lambda declared: next(iter(declared)),
)
def test_a_none_among_the_cotangents_is_zero(declared):
    f = numba_kernel(twice, outs=lambda x: x, **declared)
    assert_allclose(reverse(f, X)[0], [0, 0, 0])


@numba.njit
def twice(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]


def test_one_input_has_one_cotangent():
    one = "vjp returned None; " + FORGOTTEN.format(*ONE)
    for value, message in ((None, one), ((X, X), "vjp returned 2 cotangents for 1 input;")):
        with pytest.raises(ResultError, match=says(f"twice: {message}")):
            reverse(numba_kernel(twice, outs=lambda x: x, vjp=returns(value)), X)


@pytest.mark.parametrize(
    ("f", "found"),
    [
        (lambda jvp: make(jvp=jvp), (X, X)),
        (lambda jvp: make_both(jvp=jvp), ({"a": X, "b": X}, {"a": X, "b": X})),
    ],
    ids=["one", "several"],
)
def test_a_jvp_returns_only_the_tangents(f, found):
    f = f(returns(found))
    hint = "Return only the tangents, unlike the function given to jax.custom_jvp's defjvp."
    with pytest.raises(ResultError, match=says("jvp returned", hint)):
        forward(f, *[X] * (2 if isinstance(found[0], np.ndarray) else 1))


USES = {
    "TypeError": lambda inputs, out_bar: inputs[0] * out_bar,
    "AttributeError": lambda inputs, out_bar: out_bar.astype(inputs[0].dtype),
}


@pytest.mark.parametrize("kind", USES)
@MAPPED
def test_a_transpose_has_no_linear_inputs(kind, wrap, x):
    with pytest.raises(
        KernelTypeError, match=says(f"add: the transpose for inputs (0,) failed with {kind}: ", "inputs are None")
    ):
        jax.grad(lambda x: wrap(make(transpose={0: USES[kind]}))(x, X).sum())(x)


def test_other_failures_of_a_transpose_are_passed_on():
    def transpose(inputs, out_bar):
        raise TypeError("the user's own")

    with pytest.raises(TypeError, match="the user's own") as caught:
        jax.grad(lambda x: make(transpose={0: transpose})(x, X).sum())(X)
    assert type(caught.value) is TypeError


@pytest.mark.parametrize("keyword", ["reference", "jvp"])
@pytest.mark.parametrize("structure", [(X, X), {"a": X, "c": X}, {"a": (X,), "b": X}, [[X, X]]], ids=str)
def test_results_in_another_structure(keyword, structure):
    """Without the check a tuple would be matched to the sorted keys."""
    with pytest.raises(ResultError, match=says(f"both: {keyword} returned", "return them as {'a': 'float32[3]', 'b'")):
        forward(make_both(**{keyword: returns(structure)}), X)


# What cannot be had.


def test_no_derivative_names_every_way():
    for derive in (forward, reverse):
        with pytest.raises(DifferentiationError, match=says("add: ", "reference=", "jvp=", "vjp=", "transpose=")):
            derive(make(), X, X)


def test_a_traced_value_in_a_rule():
    functions = {
        "reference": lambda a: lambda x, y: a * x + y[0],
        "jvp": lambda a: lambda primals, tangents: a * tangents[0],
        "vjp": lambda a: lambda primals, out, out_bar: (a * out_bar, None),
        "transpose": lambda a: {0: functools.partial(lambda a, inputs, out_bar: a * out_bar, a)},
    }
    for keyword, function in functions.items():

        def loss(a, keyword=keyword, function=function):
            return jax.grad(lambda x: make(**{keyword: function(a)})(x, X).sum())(X).sum()

        assert_allclose(loss(2.0), 6)  # a number, not traced
        for transform in (jax.grad, jax.jit, lambda f: lambda a: jax.vmap(f)(jnp.ones(2) * a)):
            with pytest.raises(
                DifferentiationError, match=says(f"add: {keyword} uses the traced value", "as an input")
            ):
                transform(loss)(2.0)


class Factor:
    def __init__(self, factor):
        self.factor = factor

    def times(self, x, y):
        return self.factor * x + y[0]

    def __call__(self, x, y):
        return self.times(x, y)


REACHED = {}


@pytest.fixture
def reached():
    yield REACHED
    REACHED.clear()
    vars(HELD).clear()


TRACED = {
    "method": lambda a: Factor(a).times,
    "callable object": Factor,
    "attribute": lambda a: (lambda own: lambda x, y: own.times(x, y))(Factor(a)),
    "default": lambda a: lambda x, y, a=a: a * x + y[0],
    "keyword default": lambda a: lambda x, y, *, a=a: a * x + y[0],
    "nested": lambda a: (lambda inner: lambda x, y: inner(x) + y[0])(lambda x: a * x),
    "jit": lambda a: jax.jit(lambda x, y: a * x + y[0]),
    "partial": lambda a: functools.partial(Factor(a).times),
    "global": lambda a: REACHED.update(a=a) or reads_a_global,
    "attribute of a global": lambda a: setattr(HELD, "a", a) or reads_an_attribute,
    "helper": lambda a: REACHED.update(a=a) or calls_a_helper,
}


def reads_a_global(x, y):
    return REACHED["a"] * x + y[0]


HELD = types.SimpleNamespace()


def reads_an_attribute(x, y):
    return HELD.a * x + y[0]


def calls_a_helper(x, y):
    return reads_a_global(x, y)


@pytest.mark.parametrize("form", TRACED)
@pytest.mark.usefixtures("reached")
def test_a_traced_value_that_a_reference_gets_in_any_way(form):
    def slope(a):
        return jax.grad(lambda x: make(reference=TRACED[form](a))(x, X).sum())(X).sum()

    assert_allclose(slope(2.0), 6)
    for transform in (
        jax.grad(slope),
        jax.jit(jax.grad(slope)),
        jax.jit(slope),
    ):
        with pytest.raises(DifferentiationError, match="reference uses the traced value"):
            transform(2.0)


MIXED = {1: 2.0, "two": 3.0}


def test_a_reference_reads_a_global_that_is_no_pytree():
    def of_closure(x, y, table=MIXED):
        return table[1] * x + y[0]

    for reference in (reads_a_mixed_table, of_closure):
        assert_allclose(reverse(make(reference=reference), X, X)[0], jnp.full(3, 2.0))


def reads_a_mixed_table(x, y):
    return MIXED[1] * x + y[0]


def test_an_exception_of_a_rule_is_passed_on():
    def reference(x, y):
        raise LookupError("the user's own")

    with pytest.raises(LookupError, match="the user's own"):
        reverse(make(reference=reference), X, X)


def test_a_kernel_works_if_only_its_derivative_is_wrong():
    assert_allclose(make(reference=returns(3))(X, X), X + X[0])
    assert_allclose(make(transpose={0: returns(3)})(X, X), X + X[0])


def test_a_rule_runs_once_under_a_check_for_leaks():
    runs = []

    def reference(x, y):
        runs.append(1)
        return 2 * x + y[0]

    with jax.checking_leaks():
        jax.jit(jax.grad(lambda x: make(reference=reference)(x, X).sum())).lower(X)
    assert len(runs) == 1
