"""Code that depends on the configuration of a launch, of which a compiled kernel has several."""

from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, njit
from numba.cuda import codegen, dispatcher, types
from numba.cuda.cudadrv import driver
from numba.cuda.extending import intrinsic, overload

from xlakernel.core.errors import CompileError
from xlakernel.cuda._kernels import launch as _launch
from xlakernel.cuda._kernels import recipe
from xlakernel.cuda._kernels.geometry import Geometry

# `numba.cuda.launchconfig` came with version 0.30: https://github.com/NVIDIA/numba-cuda/releases
pytestmark = pytest.mark.skipif(
    not hasattr(cuda, "launchconfig"), reason="numba-cuda below 0.30 compiles no code for one launch"
)


@intrinsic
def threads(typingctx):
    """Return the threads of a block when the code is compiled."""

    def constant(context, builder, signature, arguments):
        configuration = cuda.launchconfig.ensure_current_launch_config()
        configuration.dispatcher.mark_launch_config_sensitive()
        return context.get_constant(types.int32, configuration.blockdim[0])

    return types.int32(), constant


@intrinsic
def threads_if_known(typingctx):
    """Return the threads of a block when the code is compiled, or -1."""

    def constant(context, builder, signature, arguments):
        configuration = cuda.launchconfig.current_launch_config()
        return context.get_constant(types.int32, -1 if configuration is None else configuration.blockdim[0])

    return types.int32(), constant


def declared():
    raise NotImplementedError


@overload(declared)
def _declared():
    return lambda: threads()


@pytest.fixture
def launch(monkeypatch):
    """Return a function that launches a kernel, compiled for an H100 and not run, and returns the compiled kernel."""
    launched = []
    kernel = dispatcher._Kernel
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    monkeypatch.setattr(driver, "_to_core_stream", lambda stream: stream)
    monkeypatch.setattr(codegen.CUDACodeLibrary, "_ensure_cc", lambda self, cc: cc or (9, 0))
    monkeypatch.setattr(kernel, "bind", lambda self: None)
    monkeypatch.setattr(kernel, "launch", lambda self, *arguments: launched.append(self))
    monkeypatch.setattr(_launch, "cuda", SimpleNamespace(external_stream=lambda handle: 0))
    monkeypatch.setattr(_launch.KernelLaunch, "_check_resources", lambda self: None)
    monkeypatch.setattr(_launch.Slot, "argument", lambda self, addresses: np.zeros(4, self.dtype))

    def run(own, block, function):
        slot = _launch.Slot(types.Array(types.int32, 1, "C"), 0, "int32")
        _launch.KernelLaunch("k", own, Geometry((1,), (block,)), 0, (slot,), function, (), ())(0, [0])
        return launched[-1]

    return run


def copied(kernel):
    return recipe.copy_dispatcher(kernel, recipe.COMPILER.examine(kernel))


@pytest.mark.parametrize("where", ["kernel", "device function", "njit function", "declared implementation"])
def test_code_that_needs_the_configuration_is_refused(launch, where):
    called = {
        "kernel": threads,
        "device function": cuda.jit(device=True)(lambda: threads()),
        "njit function": njit(lambda: threads()),
        "declared implementation": declared,
    }[where]

    @cuda.jit
    def kernel(x):
        x[0] = called()

    own = copied(kernel)
    for block in (32, 64):
        with pytest.raises(CompileError, match="compiled once for all launches: give it the number of threads"):
            launch(own, block, kernel.py_func)


def test_code_that_asks_for_a_configuration_gets_none(launch):
    @cuda.jit
    def kernel(x):
        x[0] = threads_if_known()

    own = copied(kernel)
    found = launch(own, 32, kernel.py_func)
    assert launch(own, 64, kernel.py_func) is found
    assert ", -1;" in found.inspect_asm((9, 0))
