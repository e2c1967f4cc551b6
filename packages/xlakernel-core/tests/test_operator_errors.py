"""What an operator refuses, in which words, and that it works again afterwards."""

import collections
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core import XLACustomKernel, errors
from xlakernel.core.errors import (
    BackendNotFoundError,
    GeneratorError,
    InputError,
    OutputSpecError,
    ResultError,
    XLAKernelError,
)

Struct = jax.ShapeDtypeStruct
X = jnp.arange(3.0)
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
ERRORS = [kind for kind in KINDS if not issubclass(kind, Warning)]


@pytest.fixture
def scale(new_operator):
    """Multiply by the static keyword; every call that follows an error is checked with it."""
    op = new_operator()
    op.def_jax_kernel(lambda outs, *, factor=2: lambda x, *_: x * factor)
    yield op
    assert op(X, outs=X).tolist() == [0, 2, 4]
    assert jax.jit(lambda x: op(x, outs=x, factor=3))(X).tolist() == [0, 3, 6]


def raises(kind, *parts):
    """Expect an error with all *parts* in its message, in their order."""
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, parts)))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_each_error_is_ours_and_a_builtin(kind):
    assert issubclass(kind, UserWarning if kind.__name__.endswith("Warning") else XLAKernelError)
    if kind is not XLAKernelError:
        builtins = [base for base in kind.__mro__ if base.__module__ == "builtins"]
        assert not {base.__name__ for base in builtins} <= {"Exception", "BaseException", "object"}
    assert kind.__doc__
    assert kind.__name__.endswith("Error")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ERRORS], ids=lambda kind: kind.__name__)
def test_warnings_are_not_errors(kind):
    assert issubclass(kind, UserWarning) and not issubclass(kind, XLAKernelError)
    assert kind.__doc__
    assert kind.__name__.endswith("Warning")


# Inputs.

NO_ARRAYS = {
    "text": "abc",
    "bytes": b"abc",
    "None": None,
    "list": [1.0, 2.0, 3.0],
    "tuple": (X,),
    "dict": {"x": X},
    "empty list": [],
    "array of objects": np.array([None, 1]),
    "array of text": np.array(["a", "b"]),
    "array of dates": np.array(["2020-01-01"], "M8[D]"),
    "structured array": np.zeros(2, "f4,f4"),
    "NumPy text": np.str_("a"),
    "long double": np.longdouble(1),
    "function": jnp.sin,
    "object": object(),
    "struct": Struct((3,), jnp.float32),
    "type": float,
    "set": {1.0},
}


@pytest.mark.parametrize("what", NO_ARRAYS)
@pytest.mark.parametrize("position", [0, 1])
def test_an_input_that_is_no_array_is_named(scale, what, position):
    ins = [X, X]
    ins[position] = NO_ARRAYS[what]
    with raises(InputError, f"{scale.name}: input {position} is ", type(ins[position]).__name__, "jnp.asarray"):
        scale(*ins, outs=X)


@pytest.mark.parametrize("what", ["text", "None", "list", "dict", "array of objects", "function"])
def test_an_input_that_is_no_array_is_named_under_jit(scale, what):
    with raises(InputError, f"{scale.name}: input 0 is ", type(NO_ARRAYS[what]).__name__):
        jax.jit(lambda: scale(NO_ARRAYS[what], outs=X))()


def test_a_list_of_tracers_is_no_array(scale):
    with raises(InputError, f"{scale.name}: input 0 is ", "list"):
        jax.jit(lambda x: scale([x, x], outs=X))(X)


# Outs.


@pytest.mark.parametrize(
    ("outs", "where"),
    [
        (None, "outs[0] is None"),
        ((3,), "outs[0] is 3"),
        ("text", "outs[0] is 'text'"),
        ([X, None], "outs[1] is None"),
        ({"a": X, "b": 3.0}, "outs[1] is 3.0"),
        (((3,), jnp.float32), "outs[0] is 3"),
        (type("HasShape", (), {"shape": (3,)})(), "outs[0] is "),
        (type("HasBoth", (), {"shape": 3, "dtype": np.float32})(), "outs[0] is "),
        (type("BadType", (), {"shape": (3,), "dtype": "no dtype"})(), "outs[0] is "),
    ],
)
def test_outs_must_have_shapes_and_dtypes(scale, outs, where):
    with raises(
        OutputSpecError, f"{scale.name}: {where}", "expected an object with a shape and a dtype", "ShapeDtypeStruct"
    ):
        scale(X, outs=outs)


@pytest.mark.parametrize("outs", [{"b": X, "a": X}, [X, {"a": X}], collections.OrderedDict(b=X, a=X)], ids=str)
def test_outs_must_have_an_order(scale, outs):
    """Kernels return their results in an order, and the sorted keys of a dictionary are none that one would guess."""
    with raises(OutputSpecError, f"{scale.name}: outs has a dictionary with the keys", "'a'", "a named tuple"):
        scale(X, outs=outs)


@pytest.mark.parametrize("outs", [(), [], {}, ((), [])], ids=str)
def test_a_call_without_outputs_needs_a_side_effect(scale, new_name, outs):
    with raises(OutputSpecError, f"{scale.name}: outs describes no output", "has_side_effect=True"):
        scale(X, outs=outs)
    op = XLACustomKernel(new_name(), has_side_effect=True)
    op.def_jax_kernel(lambda outs: lambda x: ())
    assert op(X, outs=outs) == outs


def test_a_kernel_returns_no_dictionary(op):
    op.def_jax_kernel(lambda outs: lambda x: {"b": x, "a": x})
    with raises(ResultError, "returned 1 result; outs describes 2", "A dictionary has no order"):
        op(X, outs=[X, X])


def test_keys_that_cannot_be_sorted(scale):
    with raises(OutputSpecError, f"{scale.name}: outs is ", "does not take for a pytree"):
        scale(X, outs={"a": X, 1: X})


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (2.5,), ("a",), (None,)], ids=repr)
def test_shapes_must_be_sizes(scale, shape):
    outs = type("Out", (), {"shape": shape, "dtype": np.float32})()
    with raises(OutputSpecError, f"{scale.name}: outs[0] has the shape {shape}", "non-negative integers"):
        scale(X, outs=outs)


def test_outs_is_required(scale):
    with pytest.raises(TypeError, match="outs"):
        scale(X)


# Generators and kernels.


def broken(*_, **__):
    raise ZeroDivisionError("no such luck")


def causes(error):
    """Yield the causes of *error*, without the notes that JAX puts in between."""
    while error := error.__cause__ or error.__context__:
        yield error


@pytest.mark.parametrize(
    "call", [lambda f: f(X), lambda f: jax.jit(f)(X), lambda f: jax.vmap(f)(X[None])], ids=["eager", "jit", "vmap"]
)
@pytest.mark.parametrize("who", ["generator", "kernel"])
def test_a_failing_backend_is_named_and_the_others_are_listed(op, who, call):
    op.def_kernel("bad", "cpu", broken if who == "generator" else lambda outs: broken)
    op.def_kernel("good", "cpu", lambda outs: lambda x: x)
    subject = "the generator of the 'bad' kernel for 'cpu'" if who == "generator" else "the 'bad' kernel for 'cpu'"
    words = (f"{op.name}: {subject} failed with ZeroDivisionError: no such luck", "Other backends for 'cpu': ['good']")
    with raises(GeneratorError, *words) as caught:
        call(lambda x: op(x, outs=X))
    assert ZeroDivisionError in map(type, causes(caught.value))
    assert call(lambda x: op(x, outs=X, backend="good")).shape[-1:] == (3,)


def test_a_lone_generator_that_raises(op):
    op.def_kernel("bad", "cpu", broken)
    with raises(GeneratorError, "failed with ZeroDivisionError", "There is no other backend."):
        op(X, outs=X)
    op.def_kernel("bad", "cpu", lambda outs: lambda x: x)
    assert op(X, outs=X).tolist() == X.tolist()


def test_our_own_errors_pass_through_unchanged(op):
    error = BackendNotFoundError("from within")

    def generator(outs):
        raise error

    op.def_jax_kernel(generator)
    with pytest.raises(BackendNotFoundError) as caught:
        op(X, outs=X)
    assert caught.value is error


@pytest.mark.parametrize("kernel", [None, 3, "text", jnp.zeros(3)], ids=lambda value: type(value).__name__)
def test_a_generator_returns_a_function(op, kernel):
    op.def_kernel("mine", "cpu", lambda outs: kernel)
    with raises(
        GeneratorError, f"{op.name}: the generator of the 'mine' kernel for 'cpu' returned", "expected a function"
    ):
        op(X, outs=X)


def test_a_kernel_of_another_library_is_to_be_wrapped(op):
    """The packages for CUDA and Warp try theirs."""
    numba = pytest.importorskip("numba")
    op.def_kernel("mine", "cpu", lambda outs: numba.njit(lambda x, out: None))
    words = (
        f"{op.name}: the generator of the 'mine' kernel",
        "a compiled kernel with output parameters",
        "xlakernel.numba.numba_kernel",
    )
    with raises(GeneratorError, *words):
        op(X, outs=X)


def test_a_function_of_another_library_that_takes_jax_arrays_is_called(op):
    kernel = type("FfiKernel", (), {"__module__": "warp._src.jax.ffi", "__call__": lambda self, x: 2 * x})()
    op.def_kernel("mine", "cpu", lambda outs: kernel)
    assert op(X, outs=X).tolist() == [0, 2, 4]


def test_an_unexpected_static_keyword(op):
    op.def_jax_kernel(lambda outs: lambda x: x)
    with raises(
        GeneratorError, f"{op.name}: the generator of the 'jax' kernel", "TypeError", "unexpected keyword", "'n'"
    ):
        op(X, outs=X, n=3)
    assert op(X, outs=X).tolist() == X.tolist()


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda x: (x, x), "returned 2 results; outs describes 1"),
        (lambda x: [], "returned 0 results; outs describes 1"),
        (lambda x: x[:2], "result 0 of the 'jax' kernel for 'cpu' is float32[2]; outs[0] is float32[3]"),
        (lambda x: x[None], "is float32[1,3]; outs[0] is float32[3]"),
        (lambda x: x[0], "is float32[]; outs[0] is float32[3]"),
        (lambda x: x.astype(jnp.int32), "is int32[3]; outs[0] is float32[3]"),
        (lambda x: x.astype(jnp.bfloat16), "is bfloat16[3]; outs[0] is float32[3]"),
        (lambda x: None, "result 0 of the 'jax' kernel for 'cpu' is None; outs[0] is float32[3]"),
        (lambda x: 3.0, "is 3.0 of type float; outs[0] is float32[3]"),
        (lambda x: {"a": x}, "is {'a': "),
        (lambda x: "text", "is 'text' of type str; outs[0] is float32[3]"),
        (lambda x: [[x]], "; outs[0] is float32[3]"),
    ],
)
def test_results_must_match_outs(op, result, words):
    op.def_jax_kernel(lambda outs: result)
    for call in (lambda f: f(X), lambda f: jax.jit(f)(X), lambda f: jax.vmap(f)(X[None])):
        with raises(ResultError, f"{op.name}: ", words):
            call(lambda x: op(x, outs=X))
    op.def_jax_kernel(lambda outs: lambda x: x)
    assert op(X, outs=X).tolist() == X.tolist()


def test_the_result_that_is_wrong_is_counted(op):
    op.def_jax_kernel(lambda outs: lambda x: (x, x))
    with raises(ResultError, "result 1 of", "is float32[3]; outs[1] is int32[3]"):
        op(X, outs=[X, Struct((3,), jnp.int32)])


# Kernels that are not there yet.


@pytest.mark.parametrize("platform", [None, "gpu", "tpu"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_kernel_may_come_after_a_call_that_missed_it(op, platform, wrap):
    if platform is not None:
        op.def_kernel("elsewhere", platform, lambda outs: lambda x: x)
    f = wrap(lambda x: op(x, outs=x))
    with raises(
        BackendNotFoundError, f"{op.name}: no kernel for platform 'cpu'", "def_kernel(backend, 'cpu', generator)"
    ):
        f(X)
    op.def_kernel("late", "cpu", lambda outs: lambda x: x + 1)
    assert f(X).tolist() == [1, 2, 3]


def test_call_without_def_call(op):
    with raises(XLAKernelError, f"{op.name}: no function to call", "def_call"):
        op.call(X)
