"""A Warp kernel on GPUs: its launch by Warp, recorded and replayed by core."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import warp

from xlakernel.core.backend import Recipe, Struct, Target
from xlakernel.core.backend.gpu import Launchable
from xlakernel.core.errors import DeviceError

from ._kernel import WarpKernel
from ._launch import WarpLaunch
from ._names import target_name
from ._platform import OnPlatform, Static
from ._recipe import Origin

_targets: weakref.WeakKeyDictionary[Any, dict[Any, Target]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class KernelOnGpu(OnPlatform):
    """A Warp kernel on GPUs."""

    described: WarpKernel

    platforms = ("cuda",)

    def registered(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Record the launch, unless that was done before."""
        from xlakernel.core.backend.gpu import register

        launch = self.described.launch(inputs, outs, static)
        known = _targets.setdefault(self.described.kernel, {})
        settings = (launch.code_on("cuda"), ordered, debug)
        key = (*self.described.call_key(launch, inputs, outs, static), settings)
        if key not in known:
            check_device(self.name)
            origin = Origin.of(self.described, launch, inputs, outs, static, "cuda", debug=debug)
            known[key] = register(self.launchable(launch, origin.recipe), once=ordered, debug=debug)
        return known[key]

    def launchable(self, launch: WarpLaunch, recipe: Callable[[], Recipe]) -> Launchable:
        """Return what a call does, for core to record, and how to make its target in another process."""
        slots = [
            (repr(s.dtype), s.number, s.shape, s.adjoint, s.value is not None and (s.value.dtype, s.value.tobytes()))
            for s in launch.slots
        ]
        what = (launch.code_on("cuda"), launch.dims, launch.block_dim, slots, launch.fills, launch.adjoint)
        arrays = ", ".join(map(str, launch.arrays))
        return Launchable(
            name=target_name(self.described, f"{arrays}; dim {launch.dims}", what),
            label=self.name,
            place=self.described.place,
            arrays=launch.arrays,
            launch=launch.run_on_a_gpu,
            prepare=launch.prepare,
            recording=device_set_up,
            closed_over=(launch.kernel,),
            aliased=self.described.aliased,
            recipe=recipe,
        )


def check_device(name: str) -> None:
    """Raise `DeviceError` if Warp does not run on a GPU here."""
    from xlakernel.core.backend.gpu import driver

    driver.devices()
    if not warp.is_cuda_available():
        raise DeviceError(
            f"{name}: this build of Warp does not include CUDA support, or finds no driver. Install a wheel from PyPI, "
            "pip install warp-lang, and look at what warp.init() prints."
        )


@contextlib.contextmanager
def device_set_up() -> Iterator[None]:
    """Have Warp set up the device before something is recorded there."""
    from xlakernel.core.backend.gpu import driver, warp_streams

    warp_streams.set_up(driver.current_device())
    yield
