"""Settings that a traced function depends on.

They live in JAX user contexts: their values are part of the keys of JAX's own caches, so a switch reaches functions
that are already jitted, switching back finds the old program again, and nobody's caches are ever cleared.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import jax

from ._compat import get_global, set_global
from .errors import KernelTypeError, SettingError, UnknownPlatformError

PLATFORMS = ("cpu", "gpu", "tpu")

#: What is asked for in place of a backend by those who want the fastest one (`auto`).
AUTO = "auto"

# Both hold sorted tuples of pairs or triples: hashable, and equal when they mean the same.
_requested = jax.make_user_context(())  # ((platform, backend), …): what `use_backend` asks for
_defaults = jax.make_user_context(())  # ((operator's number, platform, backend), …): what `set_default` asked for
_exporting = jax.make_user_context(False)  # whether the program is lowered for `xlakernel.core.export`
_several = jax.make_user_context(False)  # whether programs are for more devices than JAX lists, as in `core.testing`
_defaults_lock = threading.Lock()

_debug = jax.make_user_context(None)  # what `debug_mode` asks for; None: what the environment says
_DEBUG_VARIABLE = "XLAKERNEL_DEBUG"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False, "": False}


def check_platform(platform: str, asked_by: str) -> str:
    """Return *platform* if it is one of `PLATFORMS`, else raise."""
    if platform not in PLATFORMS:
        hint = " (CUDA and ROCm devices are both 'gpu')" if platform in ("cuda", "rocm") else ""
        raise UnknownPlatformError(
            f"{asked_by}: unknown platform {platform!r}; allowed: {', '.join(map(repr, PLATFORMS))}{hint}."
        )
    return platform


@contextmanager
def use_backend(backend: str | None = None, /, **platforms: str) -> Iterator[None]:
    """Choose the backend of every operator called inside the ``with`` block.

    It reaches functions that are already jitted, holds for the current thread, and the innermost context wins. It is
    a demand, not a wish: an operator that lacks the backend raises `BackendNotFoundError`. ``"auto"`` asks for the one
    that was measured to be the fastest (`XLACustomKernel`).

    Args:
      backend: the backend for all platforms, such as ``"numba"``, or ``"auto"``.
      **platforms: the backend for one platform: ``use_backend(cpu="numba", gpu="warp")``.

    Raises:
      UnknownPlatformError: if a keyword is not a platform.
      KernelTypeError: if nothing is asked for, or a backend is not a name.

    Example:
      >>> from xlakernel.core import use_backend
      >>> with use_backend(cpu="jax"):
      ...     pass
    """
    asked = dict.fromkeys(PLATFORMS, backend) if backend is not None else {}
    asked |= {check_platform(name, "use_backend"): value for name, value in platforms.items()}
    if not asked or not all(isinstance(name, str) and name for name in asked.values()):
        raise KernelTypeError(
            f"use_backend: expected a backend's name, or platform=name; got {backend!r} and {platforms!r}. "
            'Write use_backend("numba") or use_backend(cpu="numba", gpu="warp").'
        )
    with _requested(tuple(sorted({**dict(_requested.value), **asked}.items()))):
        yield


def several_devices() -> AbstractContextManager[None]:
    """Return a context in which programs may be for several devices although JAX lists one."""
    context: AbstractContextManager[None] = _several(True)
    return context


def has_several_devices(platform: str | None) -> bool:
    """Return True if programs may be for more than one device of *platform* (None: of the default one)."""
    try:
        return _several.value or jax.device_count(platform) > 1
    except RuntimeError:  # there is no such platform here
        return False


def check_backend(backend: str, asked_by: str) -> str:
    """Return *backend* if it can be a backend's name, else raise."""
    if not isinstance(backend, str) or not backend:
        raise KernelTypeError(
            f'{asked_by}: the backend is {backend!r}; expected a non-empty string, a name such as "numba".'
        )
    return backend


def requested_backends() -> Mapping[str, str]:
    """Return platform → backend as the surrounding `use_backend` contexts ask for it."""
    return dict(_requested.value)


def is_auto_possible() -> bool:
    """Whether a call that asks for no backend may get ``"auto"``; cheap, as every call asks."""
    return AUTO in [backend for *_, backend in (*_requested.value, *get_global(_defaults))]


@contextmanager
def exporting() -> Iterator[None]:
    """Say that what is traced and lowered inside the ``with`` block goes to another process."""
    with _exporting(True):
        yield


def is_exporting() -> bool:
    """Whether this is inside `exporting`."""
    return bool(_exporting.value)


def remember_default(operator: int, platform: str, backend: str | None) -> None:
    """Make the default of operator number *operator* part of JAX's cache keys; None: the first registered again."""
    with _defaults_lock:
        chosen = {(op, where): name for op, where, name in get_global(_defaults)}
        chosen.pop((operator, platform), None)
        if backend is not None:
            chosen[operator, platform] = backend
        set_global(_defaults, tuple(sorted((*key, name) for key, name in chosen.items())))


def remembered_default(operator: int, platform: str) -> str | None:
    """Return what `remember_default` keeps for *operator* on *platform*."""
    return {(op, where): name for op, where, name in get_global(_defaults)}.get((operator, platform))


@contextmanager
def debug_mode(enabled: bool = True) -> Iterator[None]:
    """Check what the kernels do that are called inside the ``with`` block.

    A kernel that reads or writes out of bounds, writes to an input, or leaves an element of an output unwritten makes
    the call fail, with an error that names the kernel, the array and the element. Kernels work on copies of their
    arrays meanwhile, so that no array of the caller's is harmed, and may be run more than once for one call: it is for
    tests and for the search of a bug, not for speed. It reaches functions that are already jitted, holds for the
    current thread, and the innermost context wins. Outside any, the environment variable ``XLAKERNEL_DEBUG`` decides,
    as it is when the first kernel is called: ``1`` or ``0``.

    What each backend checks is said with its wrapper (`xlakernel.numba.numba_kernel`).

    Args:
      enabled: whether to check; False leaves a surrounding debug mode.

    Raises:
      KernelTypeError: if *enabled* is not a bool.
      SettingError: if ``XLAKERNEL_DEBUG`` has a value that means neither yes nor no.

    Example:
      >>> from xlakernel.core import debug_mode
      >>> with debug_mode():
      ...     pass  # kernels that are called here are checked
    """
    if not isinstance(enabled, bool):
        raise KernelTypeError(
            f"debug_mode: expected True or False; got {enabled!r}. Write `with debug_mode():` around the calls."
        )
    # One value for what means the same, so that JAX finds the program that it has.
    with _debug(None if enabled is _debug_from_environment() else enabled):
        yield


def is_debugging() -> bool:
    """Return whether kernels called here are to be checked (`debug_mode`)."""
    return _debug_from_environment() if _debug.value is None else bool(_debug.value)


@functools.cache  # a later change would not reach what is jitted
def _debug_from_environment() -> bool:
    value = os.environ.get(_DEBUG_VARIABLE, "")
    switch = _SWITCH.get(value.strip().lower())
    if switch is None:
        raise SettingError(
            f"the environment variable {_DEBUG_VARIABLE} is {value!r}; allowed: 1, true, yes or on to check what "
            "kernels do, and 0, false, no, off or nothing not to. Set it before Python starts, or use "
            "xlakernel.core.debug_mode() instead."
        )
    return switch
