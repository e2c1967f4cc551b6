"""Recipes of Warp kernels: descriptions that are written at export, and read and compared in another process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import warp

from xlakernel.core.backend import (
    FORMAT,
    Compared,
    Examination,
    Recipe,
    Reference,
    Struct,
    check_format,
    code_of,
    examine,
    for_each,
    write_init,
    write_static,
    write_structs,
)
from xlakernel.core.errors import ExportError

from .._internals import code
from .._parameters import parameters_of
from .._platforms.base import Static
from .._platforms.written import check_listed, listed
from .description import KernelDescription
from .launch import WarpLaunch


@dataclasses.dataclass
class KernelCall:
    """A kernel and the call that a target (a registered handler) is made for.

    Attributes:
      described: the kernel and its launch, on one platform.
      launch: the launch of that call; another call of the target may have other extents.
      inputs: the structs of that call's inputs.
      outs: the structs of its outputs.
      static: its static scalars.
      ordered: whether the slices of a batch run one after the other.
      debug: whether the target runs in debug mode.
      content: the kernel's fingerprint when the target was made; empty if Warp had compiled an older version of it.
    """

    described: KernelDescription
    launch: WarpLaunch
    inputs: Sequence[Struct]
    outs: Sequence[Struct]
    static: Static
    ordered: bool
    debug: bool
    content: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        outdated = self.launch.is_outdated(self.described.platform)
        self.content = "" if outdated else _examine(self.described.kernel).digest

    def target_name(self, arguments: str, key: Any) -> str:
        """Return the target's name: *arguments* in readable form, and a hash of *key*, which determines the code."""
        kernel = self.described.kernel
        # Messages contain the file and line, so the name depends on these; but not for an importable kernel, because it
        # may be at another place in another process.
        place = "" if _is_importable(kernel) else self.described.place
        digest = hashlib.sha256(repr((warp.__version__, place, key)).encode()).hexdigest()[:32]
        return f"xlakernel.warp/{_path(kernel)}({arguments})#{digest}"

    def recipe(self, **native: Any) -> Recipe:
        """Return the recipe, from which `_export.prepare` makes the target in another process.

        *native* is for the CPU: the form of the recorded launch, or None for a target that runs through Python.

        Raises:
          ExportError: if another process cannot import the kernel, or its code has changed.
        """
        described, kernel = self.described, self.described.kernel
        name = _path(kernel)
        _check_importable(kernel)
        compared = _compared(f"the kernel {name}", kernel)
        compared.check_exportable(self.content)
        data = {
            "format": FORMAT,
            "name": name,
            "kernel": _reference(kernel).data,
            "is_overload": code.generic(kernel) is not None,
            "parameters": listed(described.parameters),
            "options": [list(pair) for pair in code.options(kernel)],
            "checks": {**compared.checks(), "warp": warp.__version__},
            "platform": described.platform,
            "adjoint_of": described.adjoint_of,
            "dims": list(self.launch.dims),
            "block_dim": described.block_dim,
            "output_init": write_init(for_each(described.name, described.output_init, len(self.outs))),
            "in_out": list(described.in_out),
            "aliases": list(map(list, described.aliases)),
            "cpu_blocks": described.cpu_blocks,
            "inputs": write_structs(self.inputs),
            "outs": write_structs(self.outs),
            "static": write_static(self.static),
            "ordered": self.ordered,
            "debug": self.debug,
            **native,
        }
        return Recipe("xlakernel.warp._export", data)


def read_kernel(target: str, data: Mapping[str, Any]) -> Any:
    """Return the kernel with the exported name, parameters and options; raise `ExportError` if there is none."""
    check_format("xlakernel-warp", target, data)
    what, reference = f"the kernel {data['name']}", Reference(**data["kernel"], attribute="kernel")
    kernel = reference.find(what, lambda found: isinstance(found, warp.Kernel))
    if data["is_overload"] and kernel.is_generic:
        overloads = {str(_listed(one)): one for one in kernel.overloads.values()}
        kernel = overloads.get(str(data["parameters"]), kernel)
    check_listed(what, "parameters", data["parameters"], _listed(kernel))
    here = code.options(kernel)
    names = {name for name, _ in here} & {name for name, _ in data["options"]}  # options differ between versions
    check_listed(what, "options", *([pair for pair in found if pair[0] in names] for found in (data["options"], here)))
    return kernel


def check_code(call: KernelCall, data: Mapping[str, Any]) -> None:
    """Raise `ExportError` if a kernel differs from the exported one, or Warp runs an earlier version of its code."""
    name, kernel = data["name"], call.described.kernel
    if call.launch.is_outdated(call.described.platform):
        raise ExportError(
            f"deserialize: Warp compiled the kernel {name} before a global or a function that it refers to changed "
            "in this process. Load the program in a process where they do not change."
        )
    _compared(f"the kernel {name} ({kernel.func.__code__.co_filename})", kernel).check_same(data["checks"])


def _path(kernel: Any) -> str:
    return f"{kernel.func.__module__}.{kernel.func.__qualname__}"


def _listed(kernel: Any) -> list[list[str]]:
    return listed(parameters_of(kernel, "deserialize"))


def _reference(kernel: Any) -> Reference:
    return Reference(kernel.func.__module__, kernel.func.__qualname__, "kernel")


def _is_importable(kernel: Any) -> bool:
    """Return True if the kernel's name in its module is bound to it, or to the generic kernel that it overloads."""
    return _reference(kernel).leads_to(kernel, code.generic(kernel))


def _check_importable(kernel: Any) -> None:
    if not _is_importable(kernel):
        raise ExportError(
            f"export: the kernel {_path(kernel)} cannot be imported by its name, and Warp compiles kernels from their "
            "source files, so that it cannot be stored in the program. Define it at the top level of a module that can "
            "be imported where the program is loaded."
        )


def _examine(kernel: Any) -> Examination:
    return examine(code_of(kernel))


def _compared(what: str, kernel: Any) -> Compared:
    return Compared(what, functools.partial(_examine, kernel), _describe_unknown)


def _describe_unknown(value: Any) -> str:
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared between processes. "
        "Make it a number, a vector or a matrix of Warp, or a tuple of these."
    )
