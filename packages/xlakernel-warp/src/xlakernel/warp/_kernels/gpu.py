"""Registration of Warp kernels on GPUs: xlakernel.core records Warp's launch, and its handler replays the launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from xlakernel.core.backend import Target
from xlakernel.core.backend.gpu import Launchable, register_again
from xlakernel.core.backend.gpu import register as register_launchable
from xlakernel.core.errors import CompileError

from .._internals.lock import lock
from .._platforms.devices import check_gpu, device_set_up
from .launch import WarpLaunch
from .recipe import KernelCall


@dataclasses.dataclass(frozen=True)
class _CheckedLaunch:
    """A launch that raises `CompileError` if Warp compiled the kernel again: *code* is the key of the expected code."""

    launch: WarpLaunch
    code: str

    def prepare(self, stream: int, addresses: Sequence[int]) -> Callable[[], None]:
        with lock:
            work = self.launch.prepare(stream, addresses)
            if self.launch.code_on("cuda") != self.code:
                raise CompileError(
                    f"{self.launch.name}: a value that the kernel refers to was assigned after the program was "
                    "lowered, and Warp compiled the kernel again with the new value. Define the kernel again, and "
                    "lower again what calls it."
                )
            return work

    def run(self, stream: int, addresses: Sequence[int]) -> None:
        self.prepare(stream, addresses)()


def register(call: KernelCall, target: str | None = None) -> Target:
    """Record a launch and register the handler that replays it; *target* is its name in a loaded program.

    Raises:
      DeviceError: if there is no GPU, or Warp does not run on it.
      CompileError: if Warp refuses the kernel.
      LaunchError: if Warp or the driver refuses the launch.
    """
    check_gpu(call.described.name)
    if target is not None:
        return register_again(_launchable(call), target, debug=call.debug)
    return register_launchable(_launchable(call), once=call.ordered, debug=call.debug)


def _launchable(call: KernelCall) -> Launchable:
    launch = call.launch
    slots = [
        (repr(s.dtype), s.number, s.shape, s.adjoint, s.value is not None and (s.value.dtype, s.value.tobytes()))
        for s in launch.slots
    ]
    checked = _CheckedLaunch(launch, launch.code_on("cuda"))
    key = (checked.code, launch.dims, launch.block_dim, slots, launch.fills, launch.adjoint, call.described.aliases)
    return Launchable(
        name=call.target_name(f"{', '.join(map(str, launch.arrays))}; dim {launch.dims}", key),
        label=call.described.name,
        place=call.described.place,
        arrays=launch.arrays,
        launch=checked.run,
        prepare=checked.prepare,
        recording=device_set_up,
        closed_over=(launch.kernel,),
        aliases=call.described.aliases,
        recipe=call.recipe,
    )
