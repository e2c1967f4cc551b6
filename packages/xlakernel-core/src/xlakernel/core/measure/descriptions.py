"""Texts that identify calls, devices and software in measurements and in the names of their files."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..interrupts import suppressed

_SMALLEST_SIZE = 16  # static integers up to this value are not rounded: they may be modes or axes

# The distributions that times depend on.
_DISTRIBUTIONS = (
    *("xlakernel-core", "xlakernel-numba", "xlakernel-cuda", "xlakernel-warp", "xlakernel-sparse"),
    *("jax", "jaxlib", "numpy", "numba", "numba-cuda", "warp-lang"),
)

_Types = tuple[tuple[tuple[Any, ...], Any], ...]  # shapes and dtypes


@functools.lru_cache(maxsize=4096)
def describe_call(inputs: _Types, outs: _Types, static: Any) -> str:
    """Return dtypes, rounded sizes and static keywords as text. Calls with equal texts share a choice.

    The text does not depend on the values of arrays, although some times do: the time of a product with events depends
    on the number of events.
    """
    types = [" ".join(f"{dtype}[{','.join(map(_bucket, shape))}]" for shape, dtype in row) for row in (inputs, outs)]
    keywords = "".join(f"; {name}={_describe_static(value)}" for name, value in static.items)
    return " -> ".join(types) + keywords


def _bucket(extent: Any) -> str:
    if not isinstance(extent, (int, np.integer)):
        return str(extent)  # symbolic, under jax.export
    return str(1 << (int(extent) - 1).bit_length() if extent > 0 else 0)


def _describe_static(value: Any) -> str:
    """Return a static value as text; an integer that can only be a size is rounded as sizes are."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe_static, value))})"
    if type(value) is int and value > _SMALLEST_SIZE:
        return _bucket(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))  # the address of a function differs between processes


@functools.cache
def describe_device(device: jax.Device) -> str:
    """Return the kind of a device; for a CPU, its model and the number of cores that the process may use."""
    if device.platform != "cpu":
        return str(device.device_kind)
    # JAX calls every CPU "cpu", and machines of several kinds may share a home folder.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_cpu_model()}, {cores} cores"


def _cpu_model() -> str:
    with suppressed():
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8", "replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the installed versions of the distributions that times depend on."""
    found = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
