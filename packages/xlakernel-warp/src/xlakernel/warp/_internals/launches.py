"""Launches that Warp records on the CPU (``warp.launch(record_cmd=True)``), and the memory that their kernels use."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import warp

from .recognition import Unrecognised, recognising

_static_memory: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


@recognising("the native entry")
def native_entry(launch: Any) -> int:
    """Return the address of the code that a recorded launch calls.

    Its signature is ``void(bounds*, arguments*)``, followed by ``adjoint_arguments*`` for an adjoint launch.
    """
    function = launch.hooks.backward if launch.adjoint else launch.hooks.forward
    address = ctypes.cast(function, ctypes.c_void_p).value
    if not address:
        raise Unrecognised("there is no native entry")
    return address


@recognising("a recorded launch")
def structs(launch: Any) -> list[bytes]:
    """Return the structs that a recorded launch passes by address: its bounds, its arguments and their adjoints."""
    bounds, *values = launch.params
    count = len(launch.kernel.adj.args)
    groups = [values[:count], values[count:]] if launch.adjoint else [values]
    if any(len(group) != count for group in groups):
        raise Unrecognised(f"a launch has {len(values)} values for {count} parameters")
    return [bytes(bounds), *map(_struct_of, groups)]


def _struct_of(values: list[Any]) -> bytes:
    """Return the bytes of a C struct of ctypes values, laid out as by Warp's own ``invoke``."""
    fields = [(f"_{number}", type(value)) for number, value in enumerate(values)]
    struct = type("_Arguments", (ctypes.Structure,), {"_fields_": fields})()
    for (name, _), value in zip(fields, values, strict=True):
        setattr(struct, name, value)
    return bytes(struct)


@recognising("the threads of a block")
def block_dim(launch: Any) -> int:
    """Return the number of threads in a block of a recorded launch: 1 unless Warp's CPU blocks are enabled."""
    return int(launch.block_dim)


def cpu_blocks() -> bool:
    """Return True if blocks have several threads on the CPU, a setting of Warp 1.19 and later."""
    return bool(getattr(warp.config, "enable_cpu_blocks", False))


@recognising("the memory that a module shares")
def uses_shared_memory(launch: Any) -> bool:
    """Return True if concurrent calls of a recorded launch's kernel would use the same memory.

    A module of Warp has one static block of memory, for its tiles and for the checks of Warp's debug mode.
    """
    return _has_static_memory(launch.module_exec) or _is_checked(launch.kernel)


def may_use_shared_memory(kernel: Any) -> bool:
    """Return True if concurrent launches of a kernel on the CPU might use the same memory."""
    return any(map(_has_static_memory, list(kernel.module.execs.values()))) or _is_checked(kernel)


def _has_static_memory(loaded: Any) -> bool:
    if loaded not in _static_memory:
        _static_memory[loaded] = any(value for name, value in loaded.meta.items() if name.endswith("smem_bytes"))
    return _static_memory[loaded]


def _is_checked(kernel: Any) -> bool:
    return bool((kernel.options.get("mode") or kernel.module.options.get("mode") or warp.config.mode) == "debug")
