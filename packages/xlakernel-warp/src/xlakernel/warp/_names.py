"""Names of targets, which say all that the code behind them depends on."""

from __future__ import annotations

import hashlib
from typing import Any

import warp

from xlakernel.core.backend import Reference

from . import _inside
from ._kernel import WarpKernel


def target_name(described: WarpKernel, arguments: str, what: Any) -> str:
    """Return the name of a target.

    Args:
      described: the kernel.
      arguments: its arrays, for people.
      what: all that tells it apart from other targets of kernels with this name; its ``repr`` is hashed.
    """
    function = described.kernel.func
    place = "" if is_importable(described.kernel) else described.place  # so that errors point to the right line
    digest = hashlib.sha256(repr((warp.__version__, place, what)).encode()).hexdigest()[:32]
    return f"xlakernel.warp/{function.__module__}.{function.__qualname__}({arguments})#{digest}"


def is_importable(kernel: Any) -> bool:
    """Return True if the kernel, or the generic one that it overloads, is what its module has under its name."""
    return reference_of(kernel).leads_to(kernel, _inside.generic(kernel))


def reference_of(kernel: Any) -> Reference:
    """Return the module and the name that a kernel was defined under."""
    return Reference(kernel.func.__module__, kernel.func.__qualname__, "kernel")
