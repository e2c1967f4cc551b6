"""Targets of kernels in loaded programs: `prepare` is called by `xlakernel.core.deserialize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import warp

from xlakernel.core.backend import read_init, read_static, read_structs
from xlakernel.core.errors import ExportError

from . import _inside
from ._adjoint import AdjointKernel
from ._alone import guard
from ._cpu import KernelOnCpu
from ._gpu import KernelOnGpu, check_device
from ._kernel import WarpKernel
from ._launch import WarpLaunch
from ._parameters import parameters_of
from ._recipe import Origin, check_kernel, read_kernel
from ._recorded import Recorded, record


def prepare(target: str, data: Mapping[str, Any]) -> Callable[[], None]:
    """Find the kernel that *data* describes, and return what makes and registers its target.

    The name is the program's, also where this version of Warp would give another one.

    Raises:
      ExportError: if the kernel is not the one that was exported, or this Warp does not launch it as that one did.
    """
    guard()
    kernel = read_kernel(target, data)  # which may import a module
    _check_blocks(data["name"], data["launch"])
    origin = _origin(kernel, data["launch"])
    with _inside.lock:
        check_kernel(data["name"], origin.launch, kernel, data)

    def build() -> None:
        if origin.platform != "cpu":
            _register_on_gpus(origin, target)
            return
        with _inside.lock:
            _register_on_the_cpu(origin, target, data)

    return build


def _check_blocks(name: str, call: Mapping[str, Any]) -> None:
    if call["platform"] == "cpu" and call["cpu_blocks"] != _inside.cpu_blocks():
        raise ExportError(
            f"deserialize: the kernel {name} was exported with warp.config.enable_cpu_blocks = {call['cpu_blocks']}, "
            "and with the other blocks that it has here it may be another kernel. Set it before the program is loaded."
        )


def _origin(kernel: Any, call: Mapping[str, Any]) -> Origin:
    """Return what `Origin.recipe` wrote."""
    adjoint = call["adjoint_of"] is not None
    described = (AdjointKernel if adjoint else WarpKernel)(
        kernel,
        parameters_of(kernel, "deserialize"),
        tuple(call["dims"]),
        call["block_dim"],
        output_init=read_init(call["output_init"]),
        in_out=tuple(call["in_out"]),
        aliased=frozenset(call["aliased"]),
        cpu_blocks=call["cpu_blocks"],
        **({"count": call["adjoint_of"]} if adjoint else {}),
    )
    inputs, outs, static = read_structs(call["inputs"]), read_structs(call["outs"]), read_static(call["static"])
    launch = described.launch(inputs, outs, static)
    settings = {"ordered": call["ordered"], "debug": call["debug"]}
    return Origin.of(described, launch, inputs, outs, static, call["platform"], **settings)


def _register_on_the_cpu(origin: Origin, target: str, data: Mapping[str, Any]) -> None:
    kernel = KernelOnCpu(origin.described)
    if data["native"] is None:
        kernel.register_through_python(origin, target)
        return
    recorded = None if origin.launch.is_empty else _record_alike(origin.launch, data)
    kernel.register_native(origin, recorded, target)


def _register_on_gpus(origin: Origin, target: str) -> None:
    from xlakernel.core.backend.gpu import register_again

    check_device(origin.described.name)
    launchable = KernelOnGpu(origin.described).launchable(origin.launch, origin.recipe)
    register_again(launchable, target, debug=origin.debug)


def _record_alike(launch: WarpLaunch, data: Mapping[str, Any]) -> Recorded:
    """Have Warp record a launch, whose structs must be those that the program has."""
    try:
        recorded = record(launch)
    except _inside.Unrecognised as error:
        reason = f"does not launch kernels in a way that is known: {error}"
    else:
        if recorded.form == data["native"] and _inside.block_dim(recorded.launch) == 1:
            return recorded
        reason = "passes it something else"
    raise ExportError(
        f"deserialize: the program has what Warp {data['checks']['warp']} passes to the kernel {data['name']} on the "
        f"CPU, and this is Warp {warp.__version__}, which {reason}. Load the program with the version that exported "
        "it, or export it again with this one."
    )
