"""Wrong kernels and wrong calls, and what Numba cannot compile."""

import functools

import jax
import jax.numpy as jnp
import numba
import pytest
from numba import cuda
from numba.core.errors import NumbaError

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import (
    ArityError,
    CompileError,
    GeneratorError,
    KernelTypeError,
    PlatformError,
    ReadOnlyInputError,
    StaticArgumentError,
)
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels.arrays import array_type
from xlakernel.cuda._kernels.errors import compile_error


def plain(x, out):
    out[0] = x[0]


class Callable:
    def __call__(self, x, out):
        pass


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        (plain, r"plain is of type function.*Write numba_cuda_kernel\(cuda.jit\(plain\)"),
        (numba.njit(plain), "compiled for the CPU.*xlakernel-numba"),
        (cuda.jit(device=True)(plain), "device function"),
        (functools.partial(plain, 1), "Decorate the plain Python function"),
        (Callable(), "Decorate the plain Python function"),
        (None, "None is of type NoneType"),
    ],
)
def test_objects_other_than_kernels_are_refused_with_advice(kernel, advice):
    with pytest.raises(KernelTypeError, match=f"(?s)numba_cuda_kernel: .*{advice}"):
        numba_cuda_kernel(kernel, lambda x: x, launch_dims=1)


def test_a_wrapped_kernel_is_not_wrapped_again(make_axpy):
    with pytest.raises(KernelTypeError, match="wrapped already"):
        numba_cuda_kernel(make_axpy(), lambda x: x, launch_dims=1)


def star(x, *outs):
    pass


def keyword_only(x, out, *, alpha):
    pass


@pytest.mark.parametrize(("kernel", "parameter"), [(star, r"\*outs"), (keyword_only, "alpha")])
def test_parameters_are_plain(kernel, parameter):
    with pytest.raises(KernelTypeError, match=f"has the parameter {parameter}"):
        numba_cuda_kernel(cuda.jit(kernel), lambda x: x, launch_dims=1)


X = jnp.ones(3)


@pytest.mark.parametrize(("inputs", "scalars"), [((X,), {}), ((X, X, X, X), {}), ((X, X), {"beta": 1})])
def test_a_call_fills_each_parameter_once(make_axpy, inputs, scalars):
    with pytest.raises(ArityError, match=r"axpy: .*x, y, out, alpha"):
        make_axpy()(*inputs, **scalars)


def test_a_kernel_is_no_generator_of_an_operator():
    operator = XLACustomKernel("tests.kernel_for_a_generator")
    with pytest.raises(KernelTypeError, match=r"is itself a kernel.*lambda outs: numba_cuda_kernel\(kernel, outs\[0\]"):
        operator.def_numba_cuda_kernel(cuda.jit(plain))


def test_a_traced_scalar_that_the_launch_depends_on_names_static_argnames(make_axpy):
    run = make_axpy(launch_dims=lambda x, y, alpha: int(alpha))
    with pytest.raises(StaticArgumentError, match=r"has a parameter of this name.*static_argnames='alpha'"):
        jax.jit(run)(X, X, alpha=2.0)


def test_a_kernel_does_not_run_on_the_cpu(make_axpy):
    with pytest.raises(PlatformError, match="axpy: this kernel runs on cuda; the program is compiled for cpu"):
        make_axpy()(X, X)


# Compile errors of Numba


def failure(function, *types):
    """Return what is raised for a kernel that does not compile for arrays of these types."""
    with pytest.raises(NumbaError) as raised:
        cuda.compile(function, types, device=False, abi="numba", output="ptx", cc=(9, 0))
    return compile_error(function.__name__, function, types, raised.value)


IN, OUT = (array_type("float32", 1, "x", readonly=readonly) for readonly in (True, False))
SCALAR = array_type("float32", 0, "x", readonly=True)


def writes_to_its_input(x, out):
    x[0] = 1


def calls_what_is_plain(x, out):
    out[0] = plain(x, out)


def calls_nothing(x, out):
    out[0] = nothing(x)  # noqa: F821


def reads_a_scalar_like_a_vector(x, out):
    out[0] = x[0]


def test_writing_to_an_input_is_a_read_only_input_error():
    error = failure(writes_to_its_input, IN, OUT)
    assert isinstance(error, ReadOnlyInputError)
    assert "writes_to_its_input(x: readonly array(float32, 1d, C), out: array(float32, 1d, C)): writes" in str(error)
    assert "input_output_aliases" in str(error)


@pytest.mark.parametrize(
    ("kernel", "first", "message"),
    [
        (calls_what_is_plain, IN, "cuda.jit.device=True"),
        (calls_nothing, IN, "name 'nothing' is not defined"),
        (reads_a_scalar_like_a_vector, SCALAR, r"read with x\[\(\)\]"),
    ],
)
def test_numbas_message_is_kept_with_advice(kernel, first, message):
    error = failure(kernel, first, OUT)
    assert type(error) is CompileError
    with pytest.raises(CompileError, match=f"(?s)Numba cannot compile the kernel.*{message}|{message}.*Numba says"):
        raise error


def test_an_unwrapped_kernel_of_a_generator_is_an_error_that_names_the_wrapper():
    op = XLACustomKernel("an_unwrapped_cuda_kernel", replace=True)
    op.def_kernel("mine", "cpu", lambda outs: cuda.jit(plain))
    with pytest.raises(
        GeneratorError, match=r"with output parameters.*Wrap it with xlakernel\.cuda\.numba_cuda_kernel"
    ):
        op(jnp.ones(1), outs=jax.ShapeDtypeStruct((1,), jnp.float32))
