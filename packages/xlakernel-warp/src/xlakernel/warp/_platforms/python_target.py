"""Targets (registered handlers) on the CPU that run through Python, also for debug mode."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.backend import Target, ensure_registered
from xlakernel.core.backend.gpu import Launchable, Run, build_python_handler
from xlakernel.core.backend.native import UNCHECKED_THREADS, ArrayView, HostMemory, Observer


def python_target(launchable: Launchable, *, once: bool, debug: bool, target: str | None = None) -> Target:
    """Return the target that runs a launchable (the work of a call) on the CPU, under its name or the name *target*.

    In debug mode, a call runs the work on copies of its arrays. Unless the work must run only *once*, it runs several
    times, to find elements that are not written.
    """
    observer = _Observer(launchable.label, launchable.place, once=once) if debug else None
    name = target or launchable.name + launchable.own + (f" debug{' once' * once}" if debug else "")
    handler = functools.partial(build_python_handler, launchable, observer=observer, stream=0)
    # `ensure_registered` holds the registry's lock while *handler* takes Numba's. All threads must take both locks in
    # the same order, or two could wait for each other; kernels of Numba take Numba's lock first.
    with global_compiler_lock:
        return Target(ensure_registered(name, "cpu", handler, launchable.recipe))


class _Observer(Observer):
    out_of_bounds = UNCHECKED_THREADS

    def __call__(self, stream: int, inputs: Sequence[ArrayView], outputs: Sequence[ArrayView], run: Run) -> None:
        """Observe the call *run*."""
        self.observe(inputs, outputs, run, HostMemory())  # type: ignore[arg-type]  # *run* raises, and returns no error
