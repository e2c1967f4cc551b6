"""Errors of wrappers and calls: the request, the value found, the allowed values, and the next step."""

import re

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba.extending import overload
from numpy.testing import assert_array_equal

from xlakernel.core import errors
from xlakernel.numba import numba_kernel

Struct = jax.ShapeDtypeStruct
X = np.arange(4, dtype=np.float32)
OUT = Struct((4,), jnp.float32)


def plain(x, out):
    out[:] = x


@numba.njit
def copy(x, out):
    for i in range(x.size):
        out[i] = x[i]


run_copy = numba_kernel(copy, outs=lambda x: x)


def refuses(kind, *parts):
    """Expect an error of *kind* whose message has all of *parts*, each a regular expression."""
    return pytest.raises(kind, match="(?s)^" + "".join(f"(?=.*{part})" for part in parts))


@pytest.fixture(autouse=True)
def _a_good_call_still_works():
    yield
    assert_array_equal(run_copy(X), X)


# The kernel


@numba.vectorize
def vectorized(x):
    return x


@numba.guvectorize("float32[:], float32[:]", "(n)->(n)")
def generalized(x, out):
    out[:] = x


@pytest.mark.parametrize(
    "kernel",
    [
        *(
            plain,
            lambda x, out: None,
            copy.py_func,
            vectorized,
            generalized,
            numba.cfunc("void(float32)")(lambda x: None),
        ),
        *(jax.jit(plain), np.add, print, None, 3, "copy"),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_only_njit_functions_are_kernels(kernel):
    with refuses(errors.KernelTypeError, "numba_kernel: ", f"of type {type(kernel).__name__}; expected .* numba.njit"):
        numba_kernel(kernel, outs=OUT)


def test_the_error_for_a_plain_function_has_the_fix():
    with refuses(TypeError, r"Write numba_kernel\(numba.njit\(plain\), \.\.\.\)"):
        numba_kernel(plain, outs=OUT)


def test_njit_that_is_switched_off(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with refuses(errors.KernelTypeError, "NUMBA_DISABLE_JIT is set", "unset it"):
        numba_kernel(numba.njit(plain), outs=OUT)


@pytest.mark.parametrize(
    "kernel",
    [lambda *arrays: None, lambda x, *rest: None, lambda x, out, **scalars: None, lambda x, out, *, alpha: None],
    ids=["*", "x, *", "**", "keyword only"],
)
def test_every_parameter_is_named(kernel):
    with refuses(errors.KernelTypeError, "has the parameter", "one plain parameter for each input, output"):
        numba_kernel(numba.njit(kernel), outs=OUT)


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\ud800b", "\x1b[31m"])
def test_a_name_that_cannot_be_printed_is_refused(name):
    def kernel(x, out):
        out[0] = x[0]

    kernel.__qualname__ = name
    with refuses(errors.KernelTypeError, r"characters that cannot be printed\. Give its function another"):
        numba_kernel(numba.njit(kernel), outs=OUT)(X)


def test_an_error_in_an_overload_names_the_kernel():
    def broken(x):
        """Its declaration fails."""

    @overload(broken)
    def implement(x):
        return x.no_such_attribute

    @numba.njit
    def kernel(x, out):
        out[0] = broken(x)

    with refuses(errors.CompileError, r"kernel\(x: .*no_such_attribute"):
        numba_kernel(kernel, outs=OUT)(X)


@pytest.mark.filterwarnings("ignore::numba.NumbaWarning")
def test_object_mode():
    kernel = numba.jit(forceobj=True)(plain)
    with refuses(errors.CompileError, "plain", "object mode", "numba.njit"):
        numba_kernel(kernel, outs=OUT)(X)


@numba.njit
def returning(x, out):
    return x[0]


@numba.njit
def generating(x, out):
    yield x[0]


def test_a_kernel_that_returns():
    with refuses(
        errors.CompileError, "returning: returns float32; a kernel returns nothing", r"out\[\.\.\.\] = result"
    ):
        numba_kernel(returning, outs=OUT)(X)
    with refuses(errors.CompileError, "generating", "returns"):
        numba_kernel(generating, outs=OUT)(X)


@numba.njit
def ill_typed(x, out):
    out[0] = x.no_such_attribute


@numba.njit
def undefined_name(x, out):
    out[0] = no_such_name  # noqa: F821


@numba.njit
def wrong_rank(x, out):
    out[0, 0] = x[0]


@pytest.mark.parametrize(
    ("kernel", "reason"), [(ill_typed, "no_such_attribute"), (undefined_name, "no_such_name"), (wrong_rank, "setitem")]
)
def test_kernels_that_numba_rejects(kernel, reason):
    run = numba_kernel(kernel, outs=OUT)
    for _ in range(2):
        with refuses(errors.CompileError, kernel.__name__, "x: readonly array.*out: array", "cannot compile", reason):
            run(X)


# Inputs are read-only, and JAX's arrays never change

WRITES = [
    "x[0] = 9",
    "x[:] = 9",
    "x[0] += 9",
    "x += 9",
    "x.fill(9)",
    "x[1:][0] = 9",
    "x.reshape(2, 2)[0, 0] = 9",
    "x.view(np.int32)[0] = 9",
    "helper(x)",
]

# Numba types these as if the array were writable. (np.ascontiguousarray joined them with
# https://github.com/numba/numba/pull/10390, which releases it depends on.)
UNSEEN_WRITES = [
    "x.flat[0] = 9",
    "\n    for element in np.nditer(x): element[()] = 9",
    "np.fill_diagonal(x.reshape(2, 2), 9)",
    "np.dot(x.reshape(2, 2), out.reshape(2, 2), x.reshape(2, 2))",
]


@numba.njit
def helper(x):
    x[0] = 9


@pytest.mark.parametrize("statement", WRITES)
def test_a_kernel_cannot_write_to_an_input(statement):
    x = jnp.asarray(X)
    before = np.array(x)
    try:
        with refuses(
            errors.ReadOnlyInputError, r"writing\(x: ", "input", "read-only", "output", "input_output_aliases"
        ):
            writing(statement)(x).block_until_ready()
    finally:
        assert_array_equal(x, before)


@pytest.mark.parametrize("statement", UNSEEN_WRITES)
def test_writes_that_numba_does_not_see(statement):
    """The cases in the documentation. If one fails here, Numba rejects it now: move it up, and remove it there."""
    x = jnp.array(X)
    before = np.array(x)
    writing(statement)(x).block_until_ready()
    assert not np.array_equal(x, before)


def writing(statement):
    space = {"np": np, "helper": helper}
    exec(f"def writing(x, out):\n    out[:] = 0\n    {statement}\n", space)  # noqa: S102
    return numba_kernel(numba.njit(space["writing"]), outs=OUT)


@numba.njit
def without_attribute(x):
    return x.foo()


@numba.njit
def calls_it(x, out):
    out[0] = without_attribute(x)


def test_the_first_line_has_numbas_objection_and_its_place():
    with pytest.raises(errors.CompileError) as caught:
        numba_kernel(calls_it, outs=lambda x: x)(X)
    line = without_attribute.py_func.__code__.co_firstlineno + 2
    first = str(caught.value).splitlines()[0]
    assert first.startswith("calls_it(x: ")
    assert "Numba cannot compile the kernel: Unknown attribute 'foo' of type readonly array(float32, 1d, C)" in first
    assert first.endswith(f"test_errors.py:{line}). Numba says:")


# The number of arguments


@pytest.mark.parametrize(("given", "outs"), [(0, OUT), (2, OUT), (1, (OUT, OUT))], ids=str)
def test_arity(given, outs):
    count = len(jax.tree.leaves(outs))
    for call in (numba_kernel(copy, outs=outs), jax.jit(numba_kernel(copy, outs=outs))):
        texts = (
            f"gives {given} input",
            f"outs describes {count} output",
            "Missing: " if given + count < 2 else "Too many",
        )
        with refuses(errors.ArityError, r"copy: .*2 parameters \(x, out\)", *texts, "by keyword"):
            call(*[X] * given)


@numba.njit
def with_default(x, out, alpha=2.0):
    out[0] = alpha * x[0]


def test_a_parameter_with_a_default_may_be_left_out():
    run = numba_kernel(with_default, outs=Struct((1,), jnp.float32))
    assert run(X + 1, alpha=3.0) == 3
    assert run(X + 1) == 2
    with refuses(errors.ArityError, r"with_default: no parameter 'beta'", r"\(x, out, alpha\)"):
        run(X + 1, beta=3.0)


# What the outputs are


class Shapeless:
    dtype = np.dtype("f4")


@pytest.mark.parametrize(
    "outs",
    [
        *(None, 3, "f4", (4,), jnp.float32, [OUT, None], {"a": (4, jnp.float32)}, Shapeless(), object()),
        *(Struct((-1,), jnp.float32), Struct((1.5,), jnp.float32)),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
@pytest.mark.parametrize("as_function", [False, True])
def test_outs_that_describe_no_arrays(outs, as_function):
    with refuses(errors.OutputSpecError, r"copy: outs\[\d\] ", "expected"):
        numba_kernel(copy, outs=(lambda x: outs) if as_function else outs)(X)


def test_a_function_for_outs_that_takes_other_inputs():
    with refuses(errors.ArityError, "copy: outs is a function, called with the 1 inputs", "'y'"):
        numba_kernel(copy, outs=lambda x, y: x)(X)


@pytest.mark.parametrize("outs", [lambda x: x[:2], lambda x: x.astype("int32"), lambda x: -x])
def test_the_error_of_a_function_for_outs_that_computes_names_its_arguments(outs):
    with refuses(errors.OutputSpecError, "copy: the function outs raised", "jax.ShapeDtypeStruct for each input"):
        numba_kernel(copy, outs=outs)(X)


def test_an_error_of_this_package_inside_the_function_for_outs_is_passed_on():
    with refuses(errors.InputError, "copy: input 0 is 'text'"):
        numba_kernel(copy, outs=lambda x: numba_kernel(copy, outs=OUT)("text"))(X)


def test_a_shape_alone_does_not_describe_an_output():
    for outs in ((6,), lambda x: (6,), lambda x: x.shape):
        with refuses(errors.OutputSpecError, r"copy: outs\[0\] is ", "A shape alone has no dtype"):
            numba_kernel(copy, outs=outs)(X)


@numba.njit
def scaled(alpha, x, y, out, beta):
    out[0] = alpha * x[0] + beta * y[0]


@pytest.mark.parametrize(
    ("outs", "given", "missing"),
    [
        (lambda x, y: x, {"beta": 1.0}, "Missing: alpha (a scalar as alpha=..."),
        (lambda x, y: x, {"alpha": 1.0}, "Missing: 1 of out, beta (a scalar as beta=..."),
        (OUT, {"alpha": 1.0}, "Missing: 1 of x, y, out, beta (a scalar as beta=..."),
        (lambda *inputs: OUT, {}, "Missing: 2 of alpha, x, y, out, beta"),
    ],
)
def test_a_missing_scalar_is_named(outs, given, missing):
    with refuses(errors.ArityError, "scaled: ", "gives 2 inputs", re.escape(missing)):
        numba_kernel(scaled, outs=outs)(X, X, **given)


def test_an_array_by_keyword_is_not_a_scalar():
    run = numba_kernel(scaled, outs=lambda x, y: x)
    for call in (
        lambda: run(X, y=X, alpha=1, beta=2),
        lambda: jax.jit(lambda y: run(X, y=y, alpha=1, beta=2))(X),
        lambda: jax.vmap(lambda y: run(X, y=y, alpha=1, beta=2))(X[None]),
    ):
        with refuses(errors.StaticArgumentError, "scaled: 'y' is an array, float32", "Pass input arrays by position"):
            call()


def test_an_invalid_function_for_outs():
    with refuses(errors.ArityError, r"It takes \(x\), and the call gives 2 inputs: either may be wrong"):
        numba_kernel(scaled, outs=lambda x: x)(X, X, alpha=1, beta=2)


def test_an_error_inside_the_function_for_outs_is_passed_on():
    def outs(x):
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        numba_kernel(copy, outs=outs)(X)
    with pytest.raises(ZeroDivisionError):
        numba_kernel(copy, outs=lambda x: 1 // 0)(X)


@numba.njit
def scaled_by_an_array(x, factor, out):
    for i in range(out.size):
        out[i] = factor[()] * x[i]


def test_an_input_without_dimensions_by_keyword():
    run = numba_kernel(scaled_by_an_array, outs=lambda x: x)
    with refuses(errors.CompileError, "A number passed by keyword is a scalar", "pass it by position"):
        run(X, factor=2.0)


def test_none_is_no_input():
    run = numba_kernel(scaled_by_an_array, outs=lambda x, factor: x)
    with refuses(errors.InputError, "input 1 is None", "the cotangent of an integer result is None: leave it out"):
        run(X, None)


def test_a_missing_output():
    @numba.njit
    def two(x, first, second):
        first[:] = second[:] = x

    with refuses(errors.ArityError, "Missing: 1 of first, second", "an output in outs"):
        numba_kernel(two, outs=lambda x: x)(X)
