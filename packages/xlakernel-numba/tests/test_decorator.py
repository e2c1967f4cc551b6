"""`numba_kernel` as a decorator, with its arguments other than the kernel."""

import inspect

import jax
import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import KernelTypeError
from xlakernel.numba import numba_kernel

X = np.arange(3, dtype=np.float32)


@numba_kernel(outs=lambda x: x, vjp=lambda primals, out, out_bar: 2 * out_bar)
@numba.njit
def double(x, out):
    for i in range(x.size):
        out[i] = 2 * x[i]


def test_a_decorated_kernel_is_a_function_of_arrays():
    assert_array_equal(double(X), 2 * X)
    assert_array_equal(jax.jit(jax.vmap(double))(X[None]), [2 * X])
    assert_array_equal(jax.grad(lambda x: double(x).sum())(X), [2, 2, 2])
    assert double.__name__ == "double"


def test_the_kernel_may_still_come_first_or_by_name():
    kernel = double.xlakernel.dispatcher
    outs = jax.ShapeDtypeStruct((3,), np.float32)
    for run in (numba_kernel(kernel, outs), numba_kernel(kernel, outs=outs), numba_kernel(kernel=kernel, outs=outs)):
        assert_array_equal(run(X), 2 * X)


def test_invalid_options_are_reported_before_anything_is_decorated():
    with pytest.raises(TypeError, match=r"numba_kernel\(\): missing a required argument: 'outs'"):
        numba_kernel()
    with pytest.raises(TypeError, match=r"numba_kernel\(\): got an unexpected keyword argument 'vmap'"):
        numba_kernel(outs=X, vmap="native")
    with pytest.raises(KernelTypeError, match=r"numba_kernel: .*numba\.njit"):
        numba_kernel(outs=X)(lambda x, out: None)


def test_tools_see_the_signature():
    assert list(inspect.signature(numba_kernel).parameters)[:2] == ["kernel", "outs"]
