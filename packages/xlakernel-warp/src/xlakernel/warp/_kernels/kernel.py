"""A Warp kernel for programs on the CPU and on GPUs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

from xlakernel.core.backend import Struct, Target

from .._internals.launches import cpu_blocks
from .._internals.lock import lock
from .._platforms.base import Static
from . import cpu, gpu
from .description import KernelDescription
from .recipe import KernelCall

# The registered targets, by kernel and launch: recording a launch again would take about a millisecond.
_targets: weakref.WeakKeyDictionary[Any, dict[Any, Target]] = weakref.WeakKeyDictionary()


class WarpKernel(KernelDescription):
    """A Warp kernel and its launch, with their registration for the platform that a program is lowered for."""

    def register(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Register the handler of a call, unless that was done before."""
        launch = self.launch(inputs, outs, static)
        on_cpu = self.platform == "cpu"
        with lock if on_cpu else contextlib.nullcontext():
            known = _targets.setdefault(self.kernel, {})
            settings = (launch.code_on(self.platform), cpu_blocks(), ordered, debug, self.platform)
            structs = tuple((s.shape, s.dtype) for s in (*inputs, *outs))
            scalars = tuple((name, value.dtype, value.tobytes()) for name, value in sorted(static.items()))
            key = (self.identity, launch.dims, structs, scalars, settings)
            if key not in known:
                call = KernelCall(self, launch, inputs, outs, static, ordered, debug)
                known[key] = cpu.register(call) if on_cpu else gpu.register(call)
            return known[key]
