"""Checks of a compiled kernel's resources, with a stand-in for the driver."""

from types import SimpleNamespace

import pytest

from xlakernel.core.errors import LaunchError
from xlakernel.cuda._kernels import launch as _launch
from xlakernel.cuda._kernels.geometry import Geometry

SHARED_MEM = 149_760
BLOCKS = 128


class Kernel:
    """A compiled cooperative kernel that may have 48 KiB until it is allowed more."""

    cooperative, max_threads_per_block, regs_per_thread = True, 1024, 16

    def __init__(self):
        self.allowed, self.launched = 48 * 1024, []

    def max_cooperative_grid_blocks(self, block, shared_mem):
        return BLOCKS if shared_mem <= self.allowed else 0


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def launch(kernel, monkeypatch):
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(_launch, "cuda", SimpleNamespace(external_stream=lambda handle: stream))
    dispatcher = SimpleNamespace(overloads={(): kernel}, signatures=[()])
    made = _launch.KernelLaunch("k", dispatcher, Geometry((32,), (608,)), SHARED_MEM, (), None, (), ())

    def configured(self, on, shared_mem):
        return lambda: kernel.launched.append(shared_mem)

    monkeypatch.setattr(_launch.KernelLaunch, "_configured", configured)
    return made


def test_a_cooperative_kernel_is_found_before_it_is_allowed_more_shared_memory(kernel, launch):
    launch.without_shared_mem(0, [])
    kernel.allowed = SHARED_MEM
    launch(0, [])
    assert kernel.launched == [0, SHARED_MEM]


def test_the_error_of_a_cooperative_kernel_that_does_not_fit_has_its_shared_memory(kernel, launch):
    with pytest.raises(LaunchError, match=f"32 blocks, and 0 of 608 threads with {SHARED_MEM} bytes"):
        launch(0, [])
