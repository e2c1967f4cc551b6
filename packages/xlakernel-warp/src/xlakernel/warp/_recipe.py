"""Recipes of Warp kernels: written at export, read and compared in another process."""

from __future__ import annotations

import dataclasses
import functools
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

from . import _inside
from ._adjoint import AdjointKernel
from ._kernel import WarpKernel
from ._launch import WarpLaunch
from ._names import reference_of
from ._platform import Static
from ._written import check_listed, read_annotations, write_annotations


@dataclasses.dataclass(frozen=True)
class Origin:
    """The kernel and the call that a target was made of.

    Attributes:
      described: the kernel and how it is launched.
      launch: what one call does; another call of the target may have other extents.
      inputs: the structs of that call's inputs.
      outs: the structs of its outputs.
      static: its static scalars.
      platform: ``"cpu"`` or ``"cuda"``.
      ordered: whether the slices of a batch run one after the other.
      debug: whether the target checks what the kernel does.
      content: the kernel's fingerprint when it was made; empty if Warp had compiled other code.
    """

    described: WarpKernel
    launch: WarpLaunch
    inputs: Sequence[Struct]
    outs: Sequence[Struct]
    static: Static
    platform: str
    ordered: bool
    debug: bool
    content: str

    @classmethod
    def of(
        cls,
        described: WarpKernel,
        launch: WarpLaunch,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        platform: str,
        *,
        ordered: bool = False,
        debug: bool,
    ) -> Origin:
        """Return one for the kernel as it is now."""
        content = "" if launch.is_outdated(platform) else _examine(described.kernel).digest
        return cls(described, launch, inputs, outs, static, platform, ordered, debug, content)

    def recipe(self, **native: Any) -> Recipe:
        """Return the recipe that makes the target in another process.

        Args:
          native: what `_export.prepare` needs besides.

        Raises:
          ExportError: if it cannot be made there, or only something else.
        """
        with _inside.lock:
            return self._recipe(native)

    def _recipe(self, native: Mapping[str, Any]) -> Recipe:
        kernel = self.described.kernel
        name, reference = _path(kernel), _check_importable(kernel)
        compared = _compared(f"the kernel {name}", kernel)
        compared.check_unchanged(self.content)
        overload = None if reference.here() is kernel else _inside.generic(kernel)
        data = {
            "format": FORMAT,
            "name": name,
            "kernel": reference.data,
            "overload": overload and write_annotations(self.described.parameters),
            "parameters": _listed(kernel),
            "options": dict(_inside.options(kernel)),
            "checks": {**compared.checks(), "warp": warp.__version__, "hash": _hash(self.launch, self.platform)},
            "launch": self._launch(),
            **native,
        }
        return Recipe("xlakernel.warp._export", data)

    def _launch(self) -> dict[str, Any]:
        """Return what the call is, made of what JSON has; `_export.prepare` reads it."""
        described = self.described
        return {
            "platform": self.platform,
            "adjoint_of": described.count if isinstance(described, AdjointKernel) else None,
            "dims": list(self.launch.dims),
            "block_dim": described.block_dim,
            "output_init": write_init(for_each(described.name, described.output_init, len(self.outs))),
            "in_out": list(described.in_out),
            "aliased": sorted(described.aliased),
            "cpu_blocks": described.cpu_blocks,
            "inputs": write_structs(self.inputs),
            "outs": write_structs(self.outs),
            "static": write_static(self.static),
            "ordered": self.ordered,
            "debug": self.debug,
        }


def read_kernel(target: str, data: Mapping[str, Any]) -> Any:
    """Return the kernel that was exported, or another one that has its name, parameters and options.

    Raises:
      ExportError: if there is none.
    """
    check_format("xlakernel-warp", target, data)
    name, reference = data["name"], Reference(**data["kernel"], attribute="kernel")
    kernel = reference.find(f"the kernel {name}", lambda found: isinstance(found, warp.Kernel))
    if data["overload"] and kernel.is_generic and len(data["overload"]) == len(_inside.parameters(kernel)):
        kernel = warp.overload(kernel, read_annotations(data["overload"]))
    check_listed(f"the kernel {name}", "parameters", data["parameters"], _listed(kernel))
    return kernel


def check_kernel(name: str, launch: WarpLaunch, kernel: Any, data: Mapping[str, Any]) -> None:
    """Raise `ExportError` unless a kernel is the one that was exported, and Warp runs it as it is now."""
    if launch.is_outdated(data["launch"]["platform"]):
        raise ExportError(
            f"deserialize: Warp compiled the kernel {name} here before something that it refers to changed: a global "
            "or a function. Load the program in a process that changes nothing in between."
        )
    here, there = dict(_inside.options(kernel)), data["options"]
    known = sorted(here.keys() & there.keys())  # another Warp has others
    options = ([[option, found[option]] for option in known] for found in (there, here))
    check_listed(f"the kernel {name}", "options", *options)
    checks = data["checks"]
    compared = _compared(f"the kernel {name} ({kernel.func.__code__.co_filename})", kernel, checks["warp"])
    if None in (checks["bytecode"], compared.checks()["bytecode"]) and checks["warp"] == warp.__version__:
        # Warp's own hash changes with each comment, and from version to version, but it has what `warp.static` got from
        # an object that cannot be compared.
        own = Examination(_hash(launch, data["launch"]["platform"]) or "", [], [], frozenset())
        checks, compared = {"bytecode": checks["hash"]}, dataclasses.replace(compared, examine=lambda: own)
    compared.check_same(checks)


def _path(kernel: Any) -> str:
    return f"{kernel.func.__module__}.{kernel.func.__qualname__}"


def _check_importable(kernel: Any) -> Reference:
    reference = reference_of(kernel)
    if reference.leads_to(kernel, _inside.generic(kernel)):
        return reference
    if reference.module == "__main__":
        reason = "is defined in __main__"
    elif "<locals>" in reference.qualname:
        reason = "is defined inside a function"
    else:
        reason = f"is not what its module has under the name {reference.qualname}"
    raise ExportError(
        f"export: the kernel {_path(kernel)} {reason}, where another process does not find it; and Warp compiles "
        "kernels from their source files, so that it cannot be stored in the program. Define it at the top level of a "
        "module that can be imported where the program is loaded."
    )


def _listed(kernel: Any) -> list[list[str]]:
    return [[name, warp.types.type_repr(kind)] for name, kind in _inside.parameters(kernel)]


def _examine(kernel: Any) -> Examination:
    return examine(code_of(kernel))


def _compared(what: str, kernel: Any, version: str = "") -> Compared:
    reason = functools.partial(_describe_unknown, version=version)
    return Compared(what, functools.partial(_examine, kernel), reason)


def _hash(launch: WarpLaunch, platform: str) -> str | None:
    """Return the hash by which Warp's own cache knows the kernel."""
    try:
        return _inside.code_hash(launch.kernel, launch.block_on(platform))
    except _inside.Unrecognised:
        return None


def _describe_unknown(value: Any, version: str) -> str:
    return (
        f"refers to {value!r} of type {type(value).__name__}, which only Warp itself can compare with one of another "
        f"process, if it is of the same version; the program was exported with Warp {version}, and this is "
        f"{warp.__version__}. Make it a number, a vector or a matrix of Warp's, or a tuple of these, and export again."
    )
