"""Operators where a GPU is the default device and the CPU is there too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from xlakernel.core import XLACustomKernel, use_backend
from xlakernel.core.errors import BackendNotFoundError

pytestmark = [
    pytest.mark.gpu,
    # Its successor, Mosaic GPU, wants kernels written for it; any backend serves here. jax-ml/jax `pallas/triton`.
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning"),
]

N = 1024
OUT = jax.ShapeDtypeStruct((N,), jnp.float32)


def pallas_double(outs):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((128,), lambda i: (i,))
    return pl.pallas_call(kernel, out_shape=outs[0], grid=N // 128, in_specs=[block], out_specs=block)


@pytest.fixture
def double(request):
    op = XLACustomKernel(f"double_{request.node.name}")
    op.def_pallas_kernel("gpu", pallas_double)
    op.def_jax_kernel(lambda outs: lambda x: x * 2)
    return op


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_each_platform_runs_its_own_kernel(double, platform):
    x = jax.device_put(jnp.arange(N, dtype=jnp.float32), jax.devices(platform)[0])
    jitted = jax.jit(lambda x: double(x, outs=OUT))
    np.testing.assert_array_equal(jitted(x), np.arange(N) * 2)
    assert jitted(x).devices() == x.devices()
    text = jitted.lower(x).as_text()
    assert ("triton" in text or "mosaic" in text) == (platform == "gpu")


def test_a_switch_reaches_a_jitted_function(double):
    x = jnp.arange(N, dtype=jnp.float32)
    jitted = jax.jit(lambda x: double(x, outs=OUT))
    np.testing.assert_array_equal(jitted(x), np.arange(N) * 2)
    with use_backend(gpu="jax"):
        assert "custom_call" not in jitted.lower(x).as_text()
        np.testing.assert_array_equal(jitted(x), np.arange(N) * 2)


def test_vmap_maps_the_kernel_of_the_platform(double):
    x = jnp.arange(3 * N, dtype=jnp.float32).reshape(3, N)
    np.testing.assert_array_equal(jax.vmap(lambda x: double(x, outs=OUT))(x), np.asarray(x) * 2)


def test_a_backend_of_another_platform_is_no_fallback(double):
    op = XLACustomKernel("cpu_only", replace=True)
    op.def_kernel("plain", "cpu", lambda outs: lambda x: x * 2)
    with pytest.raises(BackendNotFoundError, match="'gpu'"):
        op(jnp.arange(N, dtype=jnp.float32), outs=OUT)
