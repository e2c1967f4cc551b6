"""Targets on the CPU that run through Python, also for debug mode."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.backend import Target, ensure_registered
from xlakernel.core.backend.gpu import Launchable, Run, build_python_handler
from xlakernel.core.backend.native import UNCHECKED_THREADS, ArrayView, HostMemory, Observer


def python_target(launchable: Launchable, *, once: bool, debug: bool, target: str | None = None) -> Target:
    """Return the target that runs a launchable on the CPU, under its name or the name *target*.

    In debug mode a call runs it on copies, and again where an element may be unwritten, unless it must run only *once*.
    """
    observer = _Observer(launchable.label, launchable.place, once=once) if debug else None
    name = target or launchable.name + launchable.own + (f" debug{' once' * once}" if debug else "")
    handler = functools.partial(build_python_handler, launchable, observer=observer, stream=0)
    # Building takes Numba's lock, which must be taken before the registry's, as for Numba's kernels.
    with global_compiler_lock:
        return Target(ensure_registered(name, "cpu", handler, launchable.recipe))


class _Observer(Observer):
    out_of_bounds = UNCHECKED_THREADS

    def __call__(self, stream: int, inputs: Sequence[ArrayView], outputs: Sequence[ArrayView], run: Run) -> None:
        """Observe the call *run*."""
        self.observe(inputs, outputs, run, HostMemory())  # type: ignore[arg-type]  # which returns no error, but raises
