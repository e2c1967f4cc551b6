"""For the tests and for the examples in docstrings."""

import jax
import pytest


@pytest.fixture(autouse=True)
def on_the_cpu(request):
    """Numba's kernels are the CPU's, also where a GPU is the default device."""
    if "gpu" in request.keywords:
        yield
    else:
        before = jax.config.jax_default_device
        jax.config.update("jax_default_device", jax.devices("cpu")[0])  # of every thread
        yield
        jax.config.update("jax_default_device", before)
