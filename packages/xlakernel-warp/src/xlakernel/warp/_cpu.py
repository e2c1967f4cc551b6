"""A Warp kernel on the CPU: its native entry, called by machine code of core's."""

from __future__ import annotations

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import warp

from xlakernel.core.call import Kernel, Target
from xlakernel.core.errors import RecordingWarning
from xlakernel.core.ffi.registry import Handler, ensure_registered
from xlakernel.core.gpu.launchable import Launchable
from xlakernel.core.gpu.plan import Array
from xlakernel.core.native import HANDLER_VERSION, Argument, build_handler, lock_of
from xlakernel.core.specs import Struct

from . import _inside
from ._entry import WarpEntry
from ._kernel import Static, WarpKernel
from ._launch import WarpLaunch
from ._names import target_name
from ._python import python_target
from ._range import range_entry
from ._recorded import Recorded, record

_targets: weakref.WeakKeyDictionary[Any, dict[Any, Target]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class KernelOnCpu(Kernel):
    """A Warp kernel on the CPU."""

    described: WarpKernel

    platforms = ("cpu",)

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The kernel's name."""
        return self.described.name

    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Record the launch and build its handler, unless that was done before."""
        with _inside.lock:
            return self._target(inputs, outs, static, ordered=ordered, debug=debug)

    def _target(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        launch = self.described.launch(inputs, outs, static)
        known = _targets.setdefault(self.described.kernel, {})
        structs = tuple((s.shape, s.dtype) for s in (*inputs, *outs))
        scalars = tuple((name, value.dtype, value.tobytes()) for name, value in sorted(static.items()))
        settings = (_inside.options(launch.kernel), _inside.cpu_blocks(), ordered, debug)
        key = (type(self.described), self.described.identity, launch.dims, structs, scalars, settings)
        if key not in known:
            known[key] = self._register(launch, ordered=ordered, debug=debug)
        return known[key]

    def _register(self, launch: WarpLaunch, *, ordered: bool, debug: bool) -> Target:
        if launch.is_empty:
            return Target(self._native(launch, None, ordered=ordered, debug=debug))
        try:
            recorded = record(launch)
            if _inside.block_dim(recorded.launch) == 1:
                name = self._native(launch, recorded, ordered=ordered, debug=debug)
                return Target(name, {"launch": np.frombuffer(recorded.data, np.uint8)})
        except _inside.Unrecognised as error:
            _say_once(str(error))
        return self._through_python(launch, ordered=ordered, debug=debug)

    def _native(self, launch: WarpLaunch, recorded: Recorded | None, *, ordered: bool, debug: bool) -> str:
        alone = recorded is not None and _inside.must_run_alone(recorded.launch)
        code = None if recorded is None else _inside.content(launch.kernel, 1)
        what = (
            *(code, recorded and recorded.layout, launch.fills, alone, launch.adjoint),
            *(self.described.parallel, ordered, debug, HANDLER_VERSION),
        )
        types_ = ", ".join(f"{a.source[0]}{a.index} {a.dtype}[{a.ndim}d]" for a in launch.arrays)
        return ensure_registered(
            target_name(self.described, types_, what),
            "cpu",
            lambda: self._build(launch, recorded, alone=alone, ordered=ordered, debug=debug),
        )

    def _build(
        self, launch: WarpLaunch, recorded: Recorded | None, *, alone: bool, ordered: bool, debug: bool
    ) -> Handler:
        arguments = [Argument(a.source, a.index, a.dtype, a.ndim) for a in launch.arrays]
        callee, lock = WarpEntry(None, None, launch.fills), None
        if recorded is not None:
            # Warp unloads a module when other kernels are defined in it, unless somebody holds it.
            owner = recorded.launch
            arguments.append(Argument("attribute", 0, "uint8", 1, size=len(recorded.data)))
            entry, threads = recorded.entry, None
            if self.described.parallel:
                entry, threads = range_entry(owner), _inside.threads_at(owner)
            callee = WarpEntry(entry, recorded.layout, launch.fills, threads=threads, keep_alive=owner)
            lock = lock_of(f"warp module {id(owner.module_exec)}") if alone else None
        handler: Handler = build_handler(
            callee, arguments, kernel=self.name, place=self.described.place, lock=lock, ordered=ordered, debug=debug
        )
        return handler

    def _through_python(self, launch: WarpLaunch, *, ordered: bool, debug: bool) -> Target:
        key = (_identity(launch), launch.dims, launch.slots, launch.fills, launch.adjoint, launch.block_dim)
        launchable = Launchable(
            name=target_name(self.described, f"{_shapes(launch.arrays)}; Python", key),
            label=self.name,
            place=self.described.place,
            arrays=launch.arrays,
            launch=launch.run_on_the_cpu,
        )
        return python_target(launchable, once=ordered, debug=debug)


def _identity(launch: WarpLaunch) -> str:
    return f"{id(launch.kernel)}"


def _shapes(arrays: Sequence[Array]) -> str:
    return ", ".join(map(str, arrays))


@functools.cache
def _say_once(what: str) -> None:
    warnings.warn(
        f"Warp {warp.__version__} is not known to xlakernel-warp: {what}. Kernels run through Python on the CPU, each "
        "time that they are called, which takes some 20 µs and the GIL. Look for a newer xlakernel-warp, or an older "
        "Warp.",
        RecordingWarning,
        stacklevel=2,
    )
