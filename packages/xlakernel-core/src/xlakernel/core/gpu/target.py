"""Registration of a launchable's target (its named handler): recorded if possible, else run through Python."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from ..call import Target
from ..errors import DeviceError, RecordingError, RecordingWarning
from ..ffi.registry import Handler, ensure_registered, free_name
from ..warning import warn
from .aliases import copies, on_outputs, with_copies
from .debug import build_debug_handler
from .driver import allow_shared_mem, context_of, device_of, devices, load_kernel, usual_device
from .launchable import Launchable
from .plan import Launch, Plan, pointers_of
from .python_call import build_python_handler
from .recording.closure import Closure
from .recording.record import record
from .replaying.launch import build_handler

#: Suffix of a target's name in debug mode; the key is True if a call must do its work only once.
_DEBUG = {False: "&debug", True: "&debug-once"}

_targets: dict[str, Target] = {}
_not_recorded: set[str] = set()  # names of launchables with record="auto" that cannot be recorded
_warned: set[tuple[str, str]] = set()
# Held during a recording, instead of the registry's lock. A recording takes Numba's lock to compile kernels, and other
# threads take the registry's lock while they hold Numba's: both orders together could deadlock.
_lock = threading.RLock()


def register(launchable: Launchable, *, once: bool = False, debug: bool = False) -> Target:
    """Register the handler of *launchable*, unless its name is registered already.

    Args:
      launchable: the work of a call.
      once: whether a call must do its work only once, also in debug mode.
      debug: whether to run the work in debug mode (`config.debug_mode`).

    Returns:
      The target.

    Raises:
      RecordingError: if the work must be recorded and cannot be.
      DeviceError: if there is no GPU.
      LaunchError: if the driver refuses a launch.
    """
    devices()  # an error without a GPU
    with _lock:
        target = None if debug else _recorded(launchable)
        return target or _through_python(launchable, once=once, debug=debug)


def register_again(launchable: Launchable, target: str, *, debug: bool) -> Target:
    """Register the handler of *launchable* under the name *target* that `register` chose in another process."""
    once = debug and target.endswith(_DEBUG[True])
    name = target.removesuffix(_DEBUG[once]) if debug else target
    return register(dataclasses.replace(launchable, name=name, own=""), once=once, debug=debug)


def _recorded(launchable: Launchable) -> Target | None:
    """Return the target that replays a recording; None if the work runs through Python."""
    name = free_name(launchable.name, "CUDA")
    if name not in _targets:
        if not launchable.record or name in _not_recorded:
            return None
        try:
            handler, scratch = _build_recorded(launchable)
        except RecordingError as error:
            if launchable.record != "auto":
                raise
            _warn_once(launchable, error)
            _not_recorded.add(name)
            return None
        _register(name, handler, scratch, launchable)
    return _targets[name]


def _through_python(launchable: Launchable, *, once: bool, debug: bool) -> Target:
    """Return the target that runs the work through Python, in debug mode on copies."""
    name = free_name(launchable.name + launchable.own + (_DEBUG[once] if debug else ""), "CUDA")
    if name not in _targets:
        work = with_copies(launchable)
        handler = build_debug_handler(work, once=once) if debug else build_python_handler(work)
        _register(name, handler, (), launchable)
    return _targets[name]


def _register(name: str, handler: Handler, scratch: tuple[int, ...], launchable: Launchable) -> None:
    ensure_registered(name, "CUDA", lambda: handler, launchable.recipe)
    _targets[name] = Target(name, scratch=scratch)


def _build_recorded(launchable: Launchable) -> tuple[Handler, tuple[int, ...]]:
    first = _home(launchable)
    plan, kept = _record(launchable, first)
    _check_outputs(plan, launchable)
    plans, keep_alive = [plan], [kept]
    for device in devices():
        if device == first:
            continue
        if plan.device is None:
            _load(plan, device)
        elif not kept:  # otherwise the work refers to arrays on the first device, and runs only there
            other, _ = _record(launchable, device)
            plans.append(other)
    scratch = _largest([plan.scratch for plan in plans], launchable)
    handler = build_handler(plans, label=launchable.label)
    # A kernel is unloaded when no object refers to it, and a plan has only the handle of a kernel.
    keep_alive.append(Closure(launchable.closed_over).objects)
    return Handler(handler.address, (handler.keep_alive, keep_alive, launchable)), scratch


def _home(launchable: Launchable) -> int:
    """Return the device to record on: the device of the arrays that the work refers to, else the usual device."""
    usual = usual_device()
    with context_of(usual):
        found = {device_of(array.begin) for array in Closure(launchable.closed_over).arrays} - {None}
    (home,) = found if len(found) == 1 else (None,)
    return home if home in devices() else usual


def _record(launchable: Launchable, device: int) -> tuple[Plan, Any]:
    plan, kept = record(on_outputs(launchable), device)
    return dataclasses.replace(plan, steps=(*copies(launchable), *plan.steps)), kept


def _load(plan: Plan, device: int) -> None:
    """Load the kernels on a device, and raise their limits on dynamic shared memory as on the device of the recording.

    Otherwise they would be loaded at their first launch. XLA may capture that launch, and a capture allows no loading.
    """
    with context_of(device):
        for step in plan.steps:
            if isinstance(step, Launch):
                function = load_kernel(step.handle)
                # On a GPU that allows less, a replay fails with an error that names the kernel.
                with contextlib.suppress(DeviceError):
                    allow_shared_mem(function, step.shared_mem)


def _check_outputs(plan: Plan, launchable: Launchable) -> None:
    """Raise `RecordingError` if no step has a pointer into an output: the work went to another stream."""
    aliased = {output for _, output in launchable.aliases}
    fresh = {
        number: array
        for number, array in enumerate(plan.arrays)
        if array.source == "output" and array.nbytes and array.index not in aliased
    }
    if fresh and not fresh.keys() & {place.array for step in plan.steps for place in pointers_of(step)}:
        raise RecordingError(
            f"{launchable.label} cannot be recorded: none of its launches on the given stream has "
            f"{', or '.join(map(str, fresh.values()))} to write to. Work on another stream is not recorded, and XLA "
            "does not wait for it: pass the stream on, kernel[grid, block, stream](...)."
        )


def _largest(scratch: Sequence[tuple[int, ...]], launchable: Launchable) -> tuple[int, ...]:
    if len({len(blocks) for blocks in scratch}) > 1:
        raise RecordingError(
            f"{launchable.label} cannot be recorded: it allocates {' and '.join(str(len(b)) for b in scratch)} blocks "
            "of temporary memory on different devices."
        )
    return tuple(max(sizes) for sizes in zip(*scratch, strict=True))


def _warn_once(launchable: Launchable, error: RecordingError) -> None:
    key = (launchable.label, launchable.place)
    if key not in _warned:
        _warned.add(key)
        warn(
            f"{error} Each call runs through Python instead, which takes some 100 µs and the GIL. record=False accepts "
            "that, and record=True makes it an error.",
            RecordingWarning,
        )
