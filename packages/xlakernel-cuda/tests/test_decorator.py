"""The wrappers as decorators, traced without a GPU."""

import jax
import numpy as np
import pytest
from numba import cuda

from xlakernel.cuda import cuda_callable, numba_cuda_callable, numba_cuda_kernel

# Numba thinks that small launches are not worth it.
pytestmark = pytest.mark.filterwarnings("ignore:.*Grid size")

X = np.arange(3, dtype=np.float32)


@numba_cuda_kernel(outs=lambda x: x, launch_dims=lambda x: x.shape)
@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


@numba_cuda_callable(outs=lambda x: x, record=True)
def copy(x, out, stream):
    out[:] = x


@cuda_callable(outs=lambda x: x, arrays=lambda buffer: buffer.ptr, stream=int)
def nothing(x, out, stream):
    pass


@pytest.mark.parametrize("function", [double, copy, nothing])
def test_a_decorated_function_is_one_of_arrays(function):
    assert jax.eval_shape(function, X) == jax.ShapeDtypeStruct((3,), np.float32)


@pytest.mark.gpu
def test_a_decorated_kernel_runs():
    np.testing.assert_array_equal(double(X), 2 * X)
    np.testing.assert_array_equal(copy(X), X)
