"""Code that depends on its launch configuration, compiled without a GPU; `test_values` runs it on one."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from numba.cuda import codegen, dispatcher, types
from numba.cuda.cudadrv import driver
from numba.cuda.extending import intrinsic

from xlakernel.cuda._kernels import launch as _launch
from xlakernel.cuda._kernels import recipe
from xlakernel.cuda._kernels.geometry import Geometry

pytestmark = pytest.mark.skipif(
    not hasattr(cuda, "launchconfig"), reason="numba-cuda below 0.30 compiles no code for one launch"
)

MARK = 54_321_000


@intrinsic
def threads(typingctx):
    """Return the threads of a block when the code is compiled, and a number by which PTX shows them."""

    def constant(context, builder, signature, arguments):
        configuration = cuda.launchconfig.ensure_current_launch_config()
        configuration.dispatcher.mark_launch_config_sensitive()
        return context.get_constant(types.int32, MARK + configuration.blockdim[0])

    return types.int32(), constant


@pytest.fixture
def launched(monkeypatch):
    """Return the list of kernels that were launched: they are compiled for an H100, and not run."""
    kernels, limits = [], {}

    class Library:
        def get_cufunc(self):
            return SimpleNamespace(handle=id(self))

    def launch(kernel, arguments, grid, block, stream=0, shared_mem=0):
        assert not shared_mem or limits[id(kernel.library)] >= shared_mem
        kernels.append(kernel)

    def allow(function, nbytes):
        limits[function] = max(limits.get(function, 0), nbytes)

    kernel = dispatcher._Kernel
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    monkeypatch.setattr(driver, "_to_core_stream", lambda stream: stream)
    monkeypatch.setattr(codegen.CUDACodeLibrary, "_ensure_cc", lambda self, cc: cc or (9, 0))
    monkeypatch.setattr(codegen.CUDACodeLibrary, "get_cufunc", Library.get_cufunc)
    monkeypatch.setattr(kernel, "bind", lambda self: None)
    monkeypatch.setattr(kernel, "launch", launch)
    for name, value in (("shared_mem_per_block", 0), ("max_threads_per_block", 1024), ("cooperative", True)):
        monkeypatch.setattr(kernel, name, value, raising=False)
    monkeypatch.setattr(
        kernel,
        "max_cooperative_grid_blocks",
        lambda self, block, shared_mem: int(limits[id(self.library)] >= shared_mem),
    )
    monkeypatch.setattr(recipe, "driver", SimpleNamespace(load_kernel=lambda handle: handle, allow_shared_mem=allow))
    monkeypatch.setattr(_launch, "cuda", SimpleNamespace(external_stream=lambda handle: 0))
    monkeypatch.setattr(_launch, "shared_mem_limits", lambda: {"H100": 232_448})
    monkeypatch.setattr(_launch.Slot, "argument", lambda self, addresses: np.zeros(4, self.dtype))
    return kernels


def copied(kernel, loads=None):
    return recipe.copy_dispatcher(kernel, recipe.COMPILER.examine(kernel), loads=loads)


def marks(kernel):
    """Return the threads that the code of a kernel contains."""
    return {int(found) - MARK for found in re.findall(r"\b54321\d{3}\b", kernel.inspect_asm((9, 0)))}


@pytest.mark.parametrize("where", ["in the kernel", "in a helper", "beside a scalar", "in a helper beside a scalar"])
def test_each_launch_has_code_of_its_own(launched, where):
    helper = cuda.jit(device=True)(lambda: threads())
    called = helper if "helper" in where else threads
    if "scalar" in where:

        @cuda.jit
        def first(x, s):
            x[0] = called() + s

        @cuda.jit
        def second(x, s):
            x[1] = called() + s
    else:

        @cuda.jit
        def first(x):
            x[0] = called()

        @cuda.jit
        def second(x):
            x[1] = called()

    x, s = np.zeros(4, np.int32), np.zeros((), np.int32)
    arguments, loads = ((x, s), {"s": "()"}) if "scalar" in where else ((x,), None)
    first, second = copied(first, loads), copied(second, loads)
    for own, block in ((first, 32), (first, 64), (second, 96), (first, 32), (first, 64)):
        own[128, block](*arguments)  # fewer blocks would make Numba warn
        assert launched[-1].launch_config_sensitive
        assert marks(launched[-1]) == {block}
    assert launched[3:] == launched[:2]


def test_the_resources_are_those_of_the_launched_kernel(launched):
    @cuda.jit
    def kernel(x):
        x[0] = threads()

    own = copied(kernel)
    for dtype, block, shared_mem in (("int32", 32, 2048), ("int64", 64, 100 << 10), ("int32", 64, 100 << 10)):
        slot = _launch.Slot(types.Array(getattr(types, dtype), 1, "C"), 0, dtype)
        launch = _launch.KernelLaunch("k", own, Geometry((1,), (block,)), shared_mem, (slot,), kernel.py_func, (), ())
        launch(0, [0])
        assert marks(launched[-1]) == {block}
    assert len(launched) == 3
