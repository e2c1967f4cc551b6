"""CPU kernels in a process whose default device is a GPU."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import PlatformError
from xlakernel.numba import numba_kernel

pytestmark = pytest.mark.gpu


@numba.njit
def double_kernel(x, out):
    for i in range(out.size):
        out[i] = x[i] * 2


double = numba_kernel(double_kernel, outs=lambda x: x)


def test_arrays_on_the_gpu_are_refused_and_the_advice_helps():
    x = jax.device_put(jnp.arange(4.0), jax.devices("gpu")[0])
    with pytest.raises(PlatformError, match="device_put"):
        double(x)
    moved = jax.device_put(x, jax.devices("cpu")[0])
    np.testing.assert_array_equal(double(moved), [0, 2, 4, 6])
    assert double(moved).devices() == {jax.devices("cpu")[0]}


def test_a_default_device_makes_the_call_run_on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        np.testing.assert_array_equal(jax.jit(double)(jnp.arange(4.0)), [0, 2, 4, 6])


def test_one_operator_runs_numba_on_the_cpu_and_jax_on_the_gpu():
    op = XLACustomKernel("double_on_both")
    op.def_numba_kernel(lambda outs: double)
    op.def_kernel("jax", "gpu", lambda outs: lambda x: x * 2)
    for platform in ("cpu", "gpu"):
        x = jax.device_put(jnp.arange(4.0), jax.devices(platform)[0])
        result = jax.jit(lambda x: op(x, outs=x))(x)
        np.testing.assert_array_equal(result, [0, 2, 4, 6])
        assert result.devices() == x.devices()
