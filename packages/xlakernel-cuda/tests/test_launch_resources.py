"""Checks of a compiled kernel's resources, with a stand-in for the driver."""

from types import SimpleNamespace

import pytest

from xlakernel.core.errors import LaunchError
from xlakernel.cuda._kernels import launch as _launch
from xlakernel.cuda._kernels.geometry import Geometry

SHARED_MEM = 149_760
BLOCKS, FIXED = 128, 9 * 1024


class Kernel:
    """A compiled cooperative kernel that may have 48 KiB, less its arrays of a fixed size, until it is allowed more."""

    cooperative, max_threads_per_block, regs_per_thread = True, 1024, 16
    handle, shared_mem_per_block = 7, FIXED

    def __init__(self):
        self.allowed, self.launched = 48 * 1024 - FIXED, []
        self.library = SimpleNamespace(get_cufunc=lambda: self)

    def max_cooperative_grid_blocks(self, block, shared_mem):
        return BLOCKS if shared_mem <= self.allowed else 0


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def launch_of(kernel, monkeypatch):
    """Return a function that returns a launch with so much shared memory, of so many blocks."""

    def allow(function, nbytes):
        assert function == ("loaded", kernel.handle)
        kernel.allowed = max(kernel.allowed, nbytes)

    def launch(shared_mem, blocks=32):
        dispatcher = SimpleNamespace(overloads={(): kernel}, signatures=[()], compile=lambda signature: kernel)
        return _launch.KernelLaunch("k", dispatcher, Geometry((blocks,), (608,)), shared_mem, (), None, (), ())

    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(_launch, "cuda", SimpleNamespace(external_stream=lambda handle: stream))
    driver = SimpleNamespace(allow_shared_mem=allow, load_kernel=lambda handle: ("loaded", handle))
    monkeypatch.setattr(_launch, "driver", driver)
    monkeypatch.setattr(_launch, "shared_mem_limits", lambda: {"H200": 232_448})

    def configured(self, on):
        return lambda: kernel.launched.append((self.shared_mem, kernel.allowed))

    monkeypatch.setattr(_launch.KernelLaunch, "_configured", configured)
    return launch


@pytest.mark.parametrize("shared_mem", [48 * 1024 - FIXED + 1, SHARED_MEM])
def test_a_cooperative_kernel_is_allowed_its_shared_memory_before_the_launch(kernel, launch_of, shared_mem):
    launch_of(shared_mem)(0, [])
    assert kernel.launched == [(shared_mem, shared_mem)]


def test_the_limit_of_a_kernel_without_dynamic_shared_memory_is_not_raised(kernel, launch_of):
    usual = kernel.allowed
    launch_of(0)(0, [])
    assert kernel.launched == [(0, usual)]


def test_the_error_of_a_cooperative_kernel_that_does_not_fit_has_its_shared_memory(launch_of):
    with pytest.raises(LaunchError, match=rf"200 blocks; only 128 fit, with 608 threads and {SHARED_MEM} bytes"):
        launch_of(SHARED_MEM, 200)(0, [])


def test_the_error_of_a_block_with_too_much_shared_memory_has_both_kinds(launch_of):
    with pytest.raises(LaunchError, match=rf"{FIXED} bytes of shared arrays .* and 230000 bytes of .* allows 232448"):
        launch_of(230_000)(0, [])
