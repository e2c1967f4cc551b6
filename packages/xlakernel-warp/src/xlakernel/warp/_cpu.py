"""A Warp kernel on the CPU: its native entry, called by machine code of core's."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import warp
from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.backend import Handler, Struct, Target, ensure_registered, warn
from xlakernel.core.backend.gpu import Launchable
from xlakernel.core.backend.native import HANDLER_VERSION, Argument, build_handler
from xlakernel.core.errors import RecordingWarning

from . import _alone, _inside
from ._entry import WarpEntry
from ._kernel import WarpKernel
from ._launch import WarpLaunch
from ._names import target_name
from ._platform import OnPlatform, Static
from ._python import python_target
from ._recipe import Origin
from ._recorded import Recorded, record

_targets: weakref.WeakKeyDictionary[Any, dict[Any, Target]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class KernelOnCpu(OnPlatform):
    """A Warp kernel on the CPU."""

    described: WarpKernel

    platforms = ("cpu",)

    def registered(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Record the launch and build its handler, unless that was done before."""
        launch = self.described.launch(inputs, outs, static)
        with _inside.lock:
            known = _targets.setdefault(self.described.kernel, {})
            settings = (launch.code_on("cpu"), _inside.cpu_blocks(), ordered, debug)
            key = (*self.described.call_key(launch, inputs, outs, static), settings)
            if key not in known:
                known[key] = self._register(
                    Origin.of(self.described, launch, inputs, outs, static, "cpu", ordered=ordered, debug=debug)
                )
            return known[key]

    def _register(self, origin: Origin) -> Target:
        if origin.launch.is_empty:
            return Target(self.register_native(origin, None))
        try:
            recorded = record(origin.launch)
            if _inside.block_dim(recorded.launch) == 1:
                name = self.register_native(origin, recorded)
                return Target(name, {"launch": np.frombuffer(recorded.data, np.uint8)})
        except _inside.Unrecognised as error:
            _say_once(str(error))
        return self.register_through_python(origin)

    def register_native(self, origin: Origin, recorded: Recorded | None, target: str | None = None) -> str:
        """Register a handler that calls what was recorded, for calls with any extents.

        Args:
          origin: one of these calls.
          recorded: its launch; None: there is none.
          target: the name; None: the one that says all that the handler depends on.
        """
        launch, ordered, debug = origin.launch, origin.ordered, origin.debug
        alone = recorded is not None and _inside.must_run_alone(recorded.launch)
        if target is None:
            code = None if recorded is None else _inside.content(launch.kernel, 1)
            layout = recorded and recorded.layout
            what = code, layout, launch.fills, alone, launch.adjoint, ordered, debug, HANDLER_VERSION
            types_ = ", ".join(f"{a.source[0]}{a.index} {a.dtype}[{a.ndim}d]" for a in launch.arrays)
            target = target_name(self.described, types_, what)
        # Building takes Numba's lock, which comes before the registry's, as where Numba's kernels are registered.
        with global_compiler_lock:
            return ensure_registered(
                target,
                "cpu",
                lambda: self._build(launch, recorded, alone=alone, ordered=ordered, debug=debug),
                lambda: origin.recipe(native=recorded.form if recorded else {}),
            )

    def _build(
        self, launch: WarpLaunch, recorded: Recorded | None, *, alone: bool, ordered: bool, debug: bool
    ) -> Handler:
        arguments = [Argument(a.source, a.index, a.dtype, a.ndim) for a in launch.arrays]
        callee = WarpEntry(None, None, launch.fills)
        if recorded is not None:
            # Warp unloads a module when other kernels are defined in it, unless its launch is kept alive.
            callee = WarpEntry(recorded.entry, recorded.layout, launch.fills, keep_alive=recorded.launch)
        handler: Handler = build_handler(
            callee,
            arguments,
            kernel=self.name,
            place=self.described.place,
            lock=_alone.lock() if alone else None,
            ordered=ordered,
            debug=debug,
            keep=bool(warp.config.cache_kernels),
            attribute_nbytes=None if recorded is None else len(recorded.data),
        )
        return handler

    def register_through_python(self, origin: Origin, target: str | None = None) -> Target:
        """Register a handler that has Warp launch the kernel each time.

        Args:
          origin: the call.
          target: the name; None: the one that says all that the handler depends on.
        """
        launch = origin.launch
        key = (launch.code_on("cpu"), launch.dims, launch.slots, launch.fills, launch.adjoint, launch.block_dim)
        launchable = Launchable(
            name=target_name(self.described, f"{', '.join(map(str, launch.arrays))}; Python", key),
            label=self.name,
            place=self.described.place,
            arrays=launch.arrays,
            launch=launch.run_on_the_cpu,
            recipe=lambda: origin.recipe(native=None),
        )
        return python_target(launchable, once=origin.ordered, debug=origin.debug, target=target)


@functools.cache
def _say_once(what: str) -> None:
    warn(
        f"Warp {warp.__version__} is not known to xlakernel-warp: {what}. Kernels run through Python on the CPU, each "
        "time that they are called, which takes some 20 µs and the GIL. Look for a newer xlakernel-warp, or an older "
        "Warp.",
        RecordingWarning,
    )
