"""Registration of Warp kernels on the CPU: a handler calls the kernel's native entry (machine code), or else Python."""

from __future__ import annotations

import functools

import numpy as np
import warp
from numba.core.compiler_lock import global_compiler_lock

from xlakernel.core.backend import Handler, Target, ensure_registered, warn
from xlakernel.core.backend.gpu import Launchable
from xlakernel.core.backend.native import HANDLER_VERSION, Argument, build_handler
from xlakernel.core.errors import RecordingWarning

from .._internals import launches, threads
from .._internals.recognition import Unrecognised
from .._platforms.python_target import python_target
from .native_entry import NativeEntry
from .recipe import KernelCall
from .recording import Recorded, record


def register(call: KernelCall) -> Target:
    """Record a launch and register a handler that calls its native entry; if that fails, one that calls Python."""
    if call.launch.is_empty:
        return Target(register_native(call, None))
    try:
        recorded = record(call.launch)
        if launches.block_dim(recorded.launch) == 1:
            name = register_native(call, recorded)
            return Target(name, {"launch": np.frombuffer(recorded.data, np.uint8)})
    except Unrecognised as error:
        _warn_once(str(error))
    return register_through_python(call)


def register_native(call: KernelCall, recorded: Recorded | None, target: str | None = None) -> str:
    """Register a handler that calls the *recorded* code, for arrays of any extents, and return the handler's name.

    *recorded* is None for a launch without threads. *target* is the handler's name in a loaded program, or None.
    """
    launch = call.launch
    exclusive = recorded is not None and launches.uses_shared_memory(recorded.launch)
    if target is None:
        content = recorded and (recorded.content, recorded.layout)
        key = content, launch.fills, exclusive, launch.adjoint, call.ordered, call.debug, HANDLER_VERSION
        types = ", ".join(f"{a.source[0]}{a.index} {a.dtype}[{a.ndim}d]" for a in launch.arrays)
        target = call.target_name(types, key)
    # All threads must take Numba's lock before the registry's, or two could wait for each other: see `python_target`.
    with global_compiler_lock:
        return ensure_registered(
            target,
            "cpu",
            lambda: _build(call, recorded, exclusive=exclusive),
            lambda: call.recipe(native=recorded.form if recorded else ""),
        )


def _build(call: KernelCall, recorded: Recorded | None, *, exclusive: bool) -> Handler:
    arguments = [Argument(a.source, a.index, a.dtype, a.ndim) for a in call.launch.arrays]
    handler: Handler = build_handler(
        NativeEntry(recorded, call.launch.fills),
        arguments,
        kernel=call.described.name,
        place=call.described.place,
        lock=threads.machine_lock() if exclusive else None,
        ordered=call.ordered,
        debug=call.debug,
        keep=bool(warp.config.cache_kernels),
        attribute_nbytes=None if recorded is None else len(recorded.data),
    )
    return handler


def register_through_python(call: KernelCall, target: str | None = None) -> Target:
    """Register a handler that calls Warp's launch through Python; *target* is its name in a loaded program."""
    launch = call.launch
    key = (launch.code_on("cpu"), launch.dims, launch.slots, launch.fills, launch.adjoint, launch.block_dim)
    launchable = Launchable(
        name=call.target_name(f"{', '.join(map(str, launch.arrays))}; Python", key),
        label=call.described.name,
        place=call.described.place,
        arrays=launch.arrays,
        launch=launch.run_on_cpu,
        recipe=lambda: call.recipe(native=None),
    )
    return python_target(launchable, once=call.ordered, debug=call.debug, target=target)


@functools.cache
def _warn_once(reason: str) -> None:
    warn(
        f"Warp {warp.__version__} is not known to xlakernel-warp: {reason}. Kernels run through Python on the CPU, in "
        "each call, which takes some 20 µs and the GIL. Look for a newer xlakernel-warp, or an older Warp.",
        RecordingWarning,
    )
