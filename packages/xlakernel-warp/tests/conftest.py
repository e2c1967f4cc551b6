"""Settings that several test files share."""

import jax
import pytest
from hypothesis import settings

# Several devices on one machine; set before JAX starts, which some files do when collected.
if jax.config.jax_num_cpu_devices != 4:
    jax.config.update("jax_num_cpu_devices", 4)

# Programs for processes of their own.
collect_ignore_glob = ["export/exported/*", "programs/*"]

settings.register_profile("xlakernel", deadline=None, database=None, max_examples=40)
settings.load_profile("xlakernel")


@pytest.fixture(autouse=True)
def on_the_platform(request):
    """Run tests on the CPU, even where there is a GPU, unless they are marked for it."""
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", jax.devices("cuda" if request.node.get_closest_marker("gpu") else "cpu")[0])
    yield
    jax.config.update("jax_default_device", before)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def platform(request):
    """For tests that run on both platforms, each by itself: ``pytest.mark.usefixtures("platform")``."""
    return request.param


@pytest.fixture(scope="session")
def enable_x64():
    """Return the context manager that turns 64-bit types on; JAX 0.8 gave it a new name."""
    if hasattr(jax, "enable_x64"):
        return lambda: jax.enable_x64(True)
    return jax.experimental.enable_x64


@pytest.fixture
def x64(enable_x64):
    with enable_x64():
        yield
