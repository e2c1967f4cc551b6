"""Settings and stand-ins of several test files."""

import jax
import numpy as np
import pytest
from hypothesis import settings
from numba import cuda

from xlakernel.core.call.scalars import Scalar, operand_of
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels import device

settings.register_profile("xlakernel", deadline=None, database=None, max_examples=60)
settings.load_profile("xlakernel")


@cuda.jit
def axpy(x, y, out, alpha=1.0):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = alpha * x[i] + y[i]


@pytest.fixture(autouse=True)
def on_the_platform(request):
    """Without a GPU, or beside one, the tests that need none run on the CPU."""
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", jax.devices("cuda" if request.node.get_closest_marker("gpu") else "cpu")[0])
    yield
    jax.config.update("jax_default_device", before)


@pytest.fixture(scope="session")
def enable_x64():
    """Return the context manager that turns 64-bit types on; JAX 0.8 gave it a new name."""
    if hasattr(jax, "enable_x64"):
        return lambda: jax.enable_x64(True)
    return jax.experimental.enable_x64


@pytest.fixture
def h200(monkeypatch):
    """Bytes of shared memory that a block may have on a GPU that stands in for those of the process."""
    limits = {"H200 (GPU 0)": 232448}
    monkeypatch.setattr(device, "shared_mem_limits", lambda: limits)
    return limits["H200 (GPU 0)"]


def scalar_of(value, levels):
    """Return a number that all slices of a batch share as the operand that a call has for it."""
    if isinstance(value, Scalar):
        return value
    dtype = np.asarray(value).dtype.name
    operand = operand_of(dtype, np.asarray(value).tobytes())
    return Scalar(dtype, jax.ShapeDtypeStruct((1,) * levels + operand.shape, operand.dtype))


@pytest.fixture
def launchable_of(h200):
    """Return a function that says what a call would launch: ``launchable_of(wrapped, inputs, outs, **scalars)``.

    A scalar is a number, or a `Scalar` with a batch.
    """

    def describe(wrapped, inputs, outs, *, debug=False, levels=0, **given):
        structs = [[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays] for arrays in (inputs, outs)]
        scalars = {name: scalar_of(given[name], levels) for name in sorted(given)}
        return wrapped.xlakernel.launchable(*structs, scalars, debug=debug, levels=levels)

    return describe


@pytest.fixture(scope="session")
def make_axpy():
    """Return a function that wraps ``out = alpha * x + y`` with other options."""
    usual = {"outs": lambda x, *_: x, "launch_dims": lambda x, *_: x.size}
    return lambda **options: numba_cuda_kernel(axpy, **{**usual, **options})
