"""Registration of kernels for deserialized programs; `xlakernel.core.deserialize` calls `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xlakernel.core.backend import Scalar, read_init, read_structs
from xlakernel.core.backend.gpu import register_again
from xlakernel.core.backend.native import read_kernel

from ._environment import numba_cuda
from ._kernels.compile import NumbaCudaKernel
from ._kernels.geometry import LaunchForm
from ._kernels.recipe import COMPILER


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the launch that *data* describes, and return a function that records and registers it as *target*.

    *target* is the name in the program. A call of the kernel in this process may use another name, which depends on the
    versions of Numba CUDA and its libraries.

    Raises:
      ExportError: if the kernel has changed since the export.
    """
    numba_cuda()
    dispatcher = read_kernel(COMPILER, target, data)
    form = LaunchForm(dispatcher.py_func.__name__, data["grid"], data["block"], batch_axis=data["batch_axis"])
    init, aliases = read_init(data["output_init"]), tuple(map(tuple, data["aliases"]))
    kernel = NumbaCudaKernel(dispatcher, form.checked(), data["shared_mem"], init, aliases)
    launchable = kernel.launchable(
        read_structs(data["inputs"]),
        read_structs(data["outs"]),
        {name: Scalar(dtype, *read_structs([struct])) for name, (dtype, struct) in data["scalars"].items()},
        debug=data["debug"],
        levels=data["levels"],
    )

    def build() -> None:
        register_again(launchable, target, debug=data["debug"])

    return build
