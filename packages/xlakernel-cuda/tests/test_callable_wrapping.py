"""Errors of `cuda_callable` when wrapping or tracing, and the parameters of functions."""

import functools
import inspect
import re
import sys

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from jax import export as jax_export

from xlakernel.core import errors
from xlakernel.core.backend import install_command
from xlakernel.cuda import cuda_callable, numba_cuda_callable

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

Struct = jax.ShapeDtypeStruct
X = Struct((4,), jnp.float32)


def refuses(kind, *parts):
    """Expect an error of *kind* whose message has all of *parts*, each a regular expression."""
    return pytest.raises(kind, match="(?s)^" + "".join(f"(?=.*{part})" for part in parts))


def raw(func, outs=X, **options):
    """Wrap *func* for arrays that are our own buffers, which need no library."""
    return cuda_callable(func, outs, arrays=lambda buffer: buffer, **options)


def copy(x, out, stream):
    """Stands for a function that launches something."""


@cuda.jit
def kernel(x, out):
    out[0] = x[0]


@cuda.jit(device=True)
def device_function(x):
    return x


# The function


@pytest.mark.parametrize(
    ("func", "advice"),
    [
        (kernel, r"a CUDA kernel. Wrap it with numba_cuda_kernel, or .* kernel\[blocks, threads, stream\]"),
        (device_function, "a CUDA kernel"),
        (numba.njit(lambda x, out: None), "runs on the CPU.*numba_kernel"),
        (jax.jit(lambda x: x), "jax.jit returned it"),
        (None, "expected a function that launches work"),
        (3, "expected a function"),
        ("copy", "expected a function"),
        (int, "expected a function"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [numba_cuda_callable, cuda_callable])
def test_objects_other_than_functions_are_refused(wrap, func, advice):
    with refuses(errors.KernelTypeError, f"{wrap.__name__}: ", f"of type {type(func).__name__}; ", advice):
        wrap(func, X)


def test_wrapping_twice():
    with refuses(errors.KernelTypeError, "wrapped already"):
        raw(raw(copy))


@pytest.mark.parametrize(
    "func",
    [lambda *arrays: None, lambda x, out, stream, **static: None, lambda x, out, *, stream: None],
    ids=["*", "**", "keyword only"],
)
def test_every_parameter_is_named_and_positional(func):
    with refuses(errors.KernelTypeError, "has the parameter", "one for the stream: write def <lambda>"):
        raw(func)


async def launches_later(x, out, stream):
    pass


def launches_when_asked(x, out, stream):
    yield


@pytest.mark.parametrize("func", [launches_later, launches_when_asked])
def test_a_function_that_launches_when_it_is_called(func):
    with refuses(errors.KernelTypeError, "launches nothing yet", "without async and yield"):
        raw(func)


def test_a_function_without_parameters():
    with refuses(errors.KernelTypeError, "has no parameters; write def"):
        raw(lambda: None)


class Method:
    def launch(self, x, out, stream):
        pass

    def __call__(self, x, out, stream):
        pass


@pytest.mark.parametrize("func", [Method().launch, Method(), functools.partial(lambda n, x, out, s: None, 3)])
def test_whatever_can_be_called_with_arrays_and_a_stream(func):
    assert jax.eval_shape(raw(func), X).shape == (4,)


# The options


@pytest.mark.parametrize("flag", [None, 1, "no"])
def test_has_side_effect(flag):
    with refuses(errors.ArgumentError, f"has_side_effect is {flag!r}; allowed: True or False"):
        raw(copy, has_side_effect=flag)


@pytest.mark.parametrize("record", [None, 1, 0, "always", "Auto"])
def test_record(record):
    with refuses(errors.ArgumentError, f"record is {record!r}", "allowed: True, False and 'auto'"):
        raw(copy, record=record)


@pytest.mark.parametrize("arrays", ["torch", "Numba", None, 3])
def test_unknown_arrays(arrays):
    with refuses(errors.ArgumentError, f"arrays is {arrays!r}", "'numba', 'cupy', 'warp', or a function of the buffer"):
        cuda_callable(copy, X, arrays=arrays)


def test_unknown_stream():
    with refuses(errors.ArgumentError, "stream is 'torch'", "a function of the stream's handle, None"):
        cuda_callable(copy, X, stream="torch")


@pytest.mark.parametrize(
    ("arrays", "module", "install"),
    [
        ("numba", "numba_cuda", re.escape(install_command("cuda", "cuda13"))),
        ("cupy", "cupy", "pip install cupy-cuda13x"),
        ("warp", "warp", "pip install warp-lang"),
    ],
)
@pytest.mark.parametrize("parameter", ["arrays", "stream"])
def test_a_library_that_is_missing(monkeypatch, arrays, module, install, parameter):
    monkeypatch.setitem(sys.modules, module, None)
    options = {"arrays": lambda buffer: buffer, parameter: arrays}
    with refuses(errors.MissingDependencyError, f"{parameter}='{arrays}'", module, install):
        cuda_callable(copy, X, **options)


def test_the_options_of_every_wrapper_are_passed_on():
    with refuses(errors.VmapMethodError, "copy: unknown vmap_method"):
        raw(copy, vmap_method="no")
    with refuses(errors.AliasError, "copy: input_output_aliases"):
        raw(copy, input_output_aliases={0: -1})
    with refuses(errors.OutputSpecError, r"copy: outs\[0\]"):
        raw(copy, outs=3)
    ours, all_ = (set(inspect.signature(f).parameters) for f in (numba_cuda_callable, cuda_callable))
    assert all_ - ours == {"arrays", "stream"}


# The parameters


def test_a_forgotten_stream():
    with refuses(
        errors.ArityError,
        r"1 parameter \(x\); the call gives 1 input .* outs describes 1 output",
        "last parameter, 'out', takes the stream",
        r"forgotten\? Write def <lambda>\(x, out, stream\)",
    ):
        jax.eval_shape(raw(lambda x, out: None), X)


def test_too_many_inputs():
    with refuses(
        errors.ArityError,
        r"2 parameters \(x, out\); the call gives 2 inputs .* outs describes 1 output. Too many",
        "'stream' takes the stream",
    ):
        jax.eval_shape(raw(copy), X, X)


@pytest.mark.parametrize(
    "func", [lambda x, out, stream, alpha=2.0: None, lambda x, alpha, out, s: None, lambda alpha, x, out, s: None]
)
def test_static_scalars_stand_anywhere(func):
    assert jax.eval_shape(functools.partial(raw(func), alpha=1.5), X).shape == (4,)
    with refuses(errors.ArityError, "no parameter 'beta'"):
        raw(func)(np.zeros(4, np.float32), beta=1)


def test_a_traced_static_scalar():
    run = raw(lambda x, out, alpha, stream: None)
    with refuses(errors.StaticArgumentError, "'alpha' is traced", "static_argnames='alpha'"):
        jax.eval_shape(lambda x, alpha: run(x, alpha=alpha), X, 1.0)


# The call


def test_there_is_no_such_function_on_the_cpu():
    with refuses(errors.PlatformError, "copy: this kernel runs on cuda"):
        raw(copy)(np.zeros(4, np.float32))


def test_derivatives_come_from_the_reference():
    run = raw(copy, reference=lambda x: 3 * x)
    assert jax.eval_shape(jax.grad(lambda x: run(x).sum()), X).shape == (4,)
    with refuses(errors.DifferentiationError, "copy"):
        jax.eval_shape(jax.grad(lambda x: raw(copy)(x).sum()), X)


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.int2])
def test_dtypes_that_share_bytes(dtype):
    with refuses(errors.DtypeError, f"copy: input 0 has the dtype {np.dtype(dtype).name}"):
        raw(copy).xlakernel.target([Struct((4,), dtype)], [X], {})


@pytest.mark.parametrize("dtype", [jnp.float8_e5m2, jnp.float8_e4m3fn])
def test_dtypes_that_a_library_lacks(dtype):
    with refuses(errors.DtypeError, "copy: output 0 has the dtype float8", "arrays of 'numba'", "arrays=function"):
        numba_cuda_callable(copy, X).xlakernel.target([X], [Struct((4,), dtype)], {})


def test_symbolic_shapes():
    (n,) = jax_export.symbolic_shape("n")
    with refuses(errors.ExportError, "copy: input 0", "fixed shape"):
        raw(copy).xlakernel.target([Struct((n,), jnp.float32)], [X], {})
