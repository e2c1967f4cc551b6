"""Registration of kernels for deserialized programs; `xlakernel.core.deserialize` calls `prepare`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import warp

from xlakernel.core.backend import read_init, read_static, read_structs
from xlakernel.core.errors import ExportError

from ._internals import launches
from ._internals.lock import lock
from ._internals.recognition import Unrecognised
from ._internals.threads import guard
from ._kernels import cpu, gpu
from ._kernels.adjoint import AdjointKernel
from ._kernels.kernel import WarpKernel
from ._kernels.recipe import KernelCall, check_code, read_kernel
from ._kernels.recording import Recorded, record
from ._parameters import parameters_of
from ._platforms.written import check_blocks


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the kernel that *data* describes, and return a function that builds and registers its handler.

    The handler is registered as *target*, its name in the program, even if this process would name it otherwise.

    Raises:
      ExportError: if the kernel is missing or has changed since the export. The returned function raises
        this error if this version of Warp launches the kernel differently.
    """
    guard()
    kernel = read_kernel(target, data)  # may import a module
    check_blocks(f"the kernel {data['name']}", data)
    call = _call(kernel, data)
    check_code(call, data)

    def build() -> None:
        if data["platform"] != "cpu":
            gpu.register(call, target)
            return
        with lock:
            if data["native"] is None:
                cpu.register_through_python(call, target)
            else:
                cpu.register_native(call, None if call.launch.is_empty else _record(call, data), target)

    return build


def _call(kernel: Any, data: Mapping[str, Any]) -> KernelCall:
    """Return the call that the recipe *data* describes."""
    described = (WarpKernel if data["adjoint_of"] is None else AdjointKernel)(
        kernel,
        parameters_of(kernel, "deserialize"),
        tuple(data["dims"]),
        data["block_dim"],
        read_init(data["output_init"]),
        tuple(data["in_out"]),
        tuple(map(tuple, data["aliases"])),
        cpu_blocks=data["cpu_blocks"],
        adjoint_of=data["adjoint_of"],
        platform=data["platform"],
    )
    given = read_structs(data["inputs"]), read_structs(data["outs"]), read_static(data["static"])
    return KernelCall(described, described.launch(*given), *given, ordered=data["ordered"], debug=data["debug"])


def _record(call: KernelCall, data: Mapping[str, Any]) -> Recorded:
    """Have Warp record a launch; raise `ExportError` if its argument structs differ from those in the program."""
    with contextlib.suppress(Unrecognised):
        recorded = record(call.launch)
        if recorded.form == data["native"] and launches.block_dim(recorded.launch) == 1:
            return recorded
    raise ExportError(
        f"deserialize: the program has the arguments that Warp {data['checks']['warp']} passes to the kernel "
        f"{data['name']} on the CPU, and this is Warp {warp.__version__}, which passes others. Load the program with "
        "the version that exported it, or export it again with this one."
    )
