"""A Warp kernel as core sees it: another one runs it on each platform."""

from __future__ import annotations

import dataclasses
from typing import Any

from xlakernel.core.backend import Kernel

from ._cpu import KernelOnCpu
from ._gpu import KernelOnGpu
from ._kernel import WarpKernel
from ._parameters import Parameter
from ._platform import OnBothPlatforms


@dataclasses.dataclass(frozen=True, repr=False)
class RunnableKernel(OnBothPlatforms):
    """A Warp kernel that a program for either platform may call.

    Attributes:
      described: the kernel and how it is launched.
    """

    described: WarpKernel

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The kernel's name."""
        return self.described.name

    @property
    def kernel(self) -> Any:
        """The result of ``warp.kernel``; exports find it here behind a wrapper's name."""
        return self.described.kernel

    @property
    def parameters(self) -> tuple[Parameter, ...]:  # type: ignore[override]  # read-only here
        """The kernel's parameters."""
        return self.described.parameters

    @property
    def derivative_advice(self) -> str:  # type: ignore[override]  # read-only here
        """The end of the message of a call that has no derivative."""
        return self.described.derivative_advice

    def __repr__(self) -> str:
        return repr(self.described)

    def on(self, platform: str) -> Kernel:
        """Return what runs it there."""
        return KernelOnCpu(self.described) if platform == "cpu" else KernelOnGpu(self.described)
