"""Settings that a traced function depends on.

Each setting is a JAX user context, whose value is part of the keys of JAX's caches. A changed setting therefore applies
to functions that are already jitted, changing it back is a cache hit, and no cache is ever cleared.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax

from ._compat import context_of_jax
from .errors import KernelTypeError, SettingError, UnknownPlatformError

PLATFORMS = ("cpu", "gpu", "tpu")

#: Given in place of a backend's name, requests the fastest backend (`measure.auto`).
AUTO = "auto"

# A sorted tuple is hashable, and equal for equal choices.
_requested = jax.make_user_context(())  # ((platform, backend), …), set by `use_backend`
_exporting = jax.make_user_context(False)  # True: the program is lowered for `xlakernel.core.export`
_automatic: set[str] = set()  # the operators of which a default backend is "auto"

# JAX's own settings that functions read while they are traced, by the names of their context managers.
_OF_JAX = (
    *("enable_x64", "default_matmul_precision", "default_prng_impl", "threefry_partitionable"),
    *("numpy_dtype_promotion", "numpy_rank_promotion"),
)

_debug = jax.make_user_context(None)  # set by `debug_mode`; None: the environment variable decides
_DEBUG_VARIABLE = "XLAKERNEL_DEBUG"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False, "": False}


def check_platform(platform: str, asked_by: str) -> str:
    """Return *platform* if it is one of `PLATFORMS`, else raise `UnknownPlatformError`."""
    if platform not in PLATFORMS:
        hint = " (CUDA and ROCm devices are both 'gpu')" if platform in ("cuda", "rocm") else ""
        raise UnknownPlatformError(
            f"{asked_by}: unknown platform {platform!r}; allowed: {', '.join(map(repr, PLATFORMS))}{hint}."
        )
    return platform


@contextmanager
def use_backend(backend: str | None = None, /, **platforms: str) -> Iterator[None]:
    """Choose the backend of every operator called inside the ``with`` block.

    The choice applies in the current thread, also to functions that are already jitted. The innermost of several
    contexts wins. An operator that lacks the backend raises `BackendNotFoundError`. ``"auto"`` requests the backend
    that was measured to be the fastest (`XLACustomKernel`).

    Args:
      backend: the backend for all platforms, such as ``"numba"``, or ``"auto"``.
      **platforms: the backend for one platform: ``use_backend(cpu="numba", gpu="warp")``.

    Raises:
      UnknownPlatformError: if a keyword is not a platform.
      KernelTypeError: if no backend is given, or a backend is not a name.

    Example:
      >>> from xlakernel.core import use_backend
      >>> with use_backend(cpu="jax"):
      ...     pass
    """
    chosen = dict.fromkeys(PLATFORMS, backend) if backend is not None else {}
    chosen |= {check_platform(name, "use_backend"): value for name, value in platforms.items()}
    if not chosen or not all(isinstance(name, str) and name for name in chosen.values()):
        raise KernelTypeError(
            f"use_backend: expected a backend's name, or platform=name; got {backend!r} and {platforms!r}. "
            'Write use_backend("numba") or use_backend(cpu="numba", gpu="warp").'
        )
    with _requested(tuple(sorted({**dict(_requested.value), **chosen}.items()))):
        yield


def check_backend(backend: str, asked_by: str) -> str:
    """Return *backend* if it can be a backend's name, else raise `KernelTypeError`."""
    if not isinstance(backend, str) or not backend:
        raise KernelTypeError(
            f'{asked_by}: the backend is {backend!r}; expected a non-empty string, a name such as "numba".'
        )
    return backend


def requested_backends() -> Mapping[str, str]:
    """Return {platform: backend}, as the surrounding `use_backend` contexts request."""
    return dict(_requested.value)


def is_auto_possible() -> bool:
    """Return True if a call without ``backend=`` may get ``"auto"``. Each eager call checks this."""
    return bool(_automatic) or AUTO in [backend for _, backend in _requested.value]


def exporting() -> AbstractContextManager[None]:
    """Return a context in which programs are traced and lowered for another process."""
    context: AbstractContextManager[None] = _exporting(True)
    return context


def is_exporting() -> bool:
    """Return True inside `exporting`."""
    return bool(_exporting.value)


def set_automatic(operator: str, is_automatic: bool) -> None:
    """Record that a default backend of the operator of this name is ``"auto"``, or that none is."""
    (_automatic.add if is_automatic else _automatic.discard)(operator)


@contextmanager
def debug_mode(enabled: bool = True) -> Iterator[None]:
    """Check the reads and writes of kernels that are called inside the ``with`` block.

    A call fails if the kernel reads or writes out of bounds, writes to an input, leaves an element of an output
    unwritten, or reads an element of an output before writing it. The error names the kernel, the array and the
    element. Kernels work on copies of their arrays, so that the caller's arrays stay unchanged. A kernel without a side
    effect runs more than once for one call. Use debug mode for tests and to find bugs.

    The mode applies in the current thread, also to functions that are already jitted. The innermost of several contexts
    wins. Outside of such contexts, the environment variable ``XLAKERNEL_DEBUG`` (``1`` or ``0``) decides; it is read at
    the first call of a kernel.

    The documentation of each wrapper lists the checks of its backend; see, for example, `xlakernel.numba.numba_kernel`.

    Args:
      enabled: False ends a surrounding debug mode inside the block.

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
    # None always represents the setting of the environment, so that JAX's caches have one entry for this setting.
    with _debug(None if enabled is _debug_from_environment() else enabled):
        yield


def is_debugging() -> bool:
    """Return True in debug mode (`debug_mode`)."""
    return _debug_from_environment() if _debug.value is None else bool(_debug.value)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a call when it was traced. The call may be lowered later, and in another thread.

    (JAX before 0.11 calls the functions that partition a program from a thread of XLA's.)

    Attributes:
      requested: ((platform, backend), …) of the surrounding `use_backend` contexts.
      debug: whether the call is in debug mode.
      of_jax: JAX's own settings, ((name, value), …): kernels and rules that are plain JAX functions are traced later.
    """

    requested: tuple[tuple[str, str], ...] = ()
    debug: bool = False
    of_jax: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def present(cls) -> Settings:
        """Return the settings of this thread."""
        return cls(_requested.value, is_debugging(), _settings_of_jax())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the settings inside the ``with`` block."""
        with _requested(self.requested), debug_mode(self.debug), self._applied_to_jax():
            yield

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Apply the settings inside the ``with`` block.

        Platforms without a requested backend have that of this thread. Debug mode is on if either has it.
        """
        requested = tuple(sorted({**dict(_requested.value), **dict(self.requested)}.items()))
        with _requested(requested), debug_mode(self.debug or is_debugging()), self._applied_to_jax():
            yield

    @contextmanager
    def _applied_to_jax(self) -> Iterator[None]:
        present = dict(_settings_of_jax())
        with ExitStack() as stack:
            for name, value in self.of_jax:
                if value != present[name]:
                    stack.enter_context(context_of_jax(name)(value))
            yield


def _settings_of_jax() -> tuple[tuple[str, Any], ...]:
    return tuple((name, getattr(jax.config, f"jax_{name}")) for name in _OF_JAX)


@functools.cache  # a later change of the variable would not apply to functions that are already jitted
def _debug_from_environment() -> bool:
    value = os.environ.get(_DEBUG_VARIABLE, "")
    switch = _SWITCH.get(value.strip().lower())
    if switch is None:
        raise SettingError(
            f"the environment variable {_DEBUG_VARIABLE} is {value!r}; allowed: 1, true, yes or on to enable "
            "debug mode; 0, false, no, off or an empty value to disable it. Set it before Python starts, or use "
            "xlakernel.core.debug_mode() instead."
        )
    return switch
