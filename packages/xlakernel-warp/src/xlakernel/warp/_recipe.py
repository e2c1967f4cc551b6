"""How a Warp kernel is found again in another process, and whether it is still the same there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import warp

from xlakernel.core.backend import Struct
from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.comparison import PYTHON, check_same
from xlakernel.core.ffi.fingerprint import Definition, fingerprint, unknown_objects
from xlakernel.core.ffi.kinds import describe
from xlakernel.core.ffi.reference import Reference
from xlakernel.core.ffi.registry import Recipe
from xlakernel.core.ffi.source import SourceError, definition
from xlakernel.core.ffi.warp_kinds import code_of
from xlakernel.core.output_init import for_each

from . import _inside
from ._adjoint import AdjointKernel
from ._kernel import WarpKernel
from ._launch import WarpLaunch
from ._names import reference_of
from ._platform import Static
from ._written import (
    FORMAT,
    check_format,
    check_listed,
    read_annotations,
    write_annotations,
    write_static,
    write_structs,
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a target was made of.

    Attributes:
      described: the kernel and how it is launched.
      launch: what one call does; another call of the target may have other extents.
      inputs: the structs of that call's inputs.
      outs: the structs of its outputs.
      static: its static scalars.
      platform: ``"cpu"`` or ``"cuda"``.
      ordered: whether the slices of a batch run one after the other.
      debug: whether the target checks what the kernel does.
      content: the kernel's fingerprint when it was made.
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
        content = content_of(described.kernel)
        return cls(described, launch, inputs, outs, static, platform, ordered, debug, content)

    def recipe(self, **native: Any) -> Recipe:
        """Say how the target is made in another process.

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
        if content_of(kernel) != self.content:
            raise ExportError(
                f"export: the kernel {name} was compiled before something that it refers to changed: a constant, or a "
                "function. The program has the kernel as it was; export it in a process that changes nothing in "
                "between."
            )
        overload = None if reference.here() is kernel else _inside.generic(kernel)
        data = {
            "format": FORMAT,
            "name": name,
            "kernel": reference.data,
            "overload": overload and write_annotations(self.described.parameters),
            "parameters": _listed(kernel),
            "options": dict(_inside.options(kernel)),
            "checks": _checks(kernel, _hash(self.launch, self.platform)),
            "launch": self._launch(),
            **native,
        }
        return Recipe("xlakernel.warp._export", data)

    def _launch(self) -> dict[str, Any]:
        """Return what the call is, made of what JSON has; `_export.prepare` reads it."""
        described = self.described
        init = for_each(described.name, described.output_init, len(self.outs))
        return {
            "platform": self.platform,
            "adjoint_of": described.count if isinstance(described, AdjointKernel) else None,
            "dims": list(self.launch.dims),
            "block_dim": described.block_dim,
            "output_init": [None if given is None else (given[0].name, given[1].hex()) for given in init],
            "in_out": list(described.in_out),
            "aliased": sorted(described.aliased),
            "cpu_blocks": described.cpu_blocks,
            "inputs": write_structs(self.inputs),
            "outs": write_structs(self.outs),
            "static": write_static(self.static),
            "ordered": self.ordered,
            "debug": self.debug,
        }


def content_of(kernel: Any) -> str:
    """Return the fingerprint of a kernel's code and of all that it refers to."""
    return fingerprint(code_of(kernel), describe=describe)


def read_kernel(target: str, data: Mapping[str, Any]) -> Any:
    """Return the kernel that was exported, or another one that has its name, parameters and options.

    Raises:
      ExportError: if there is none.
    """
    check_format(target, data.get("format"))
    name, reference = data["name"], Reference(**data["kernel"], inside="kernel")
    kernel = reference.find(f"the kernel {name}", lambda found: isinstance(found, warp.Kernel))
    if data["overload"] and kernel.is_generic and len(data["overload"]) == len(_inside.parameters(kernel)):
        kernel = warp.overload(kernel, read_annotations(data["overload"]))
    check_listed(f"the kernel {name}", "parameters", data["parameters"], _listed(kernel))
    return kernel


def check_kernel(name: str, launch: WarpLaunch, kernel: Any, data: Mapping[str, Any]) -> None:
    """Raise `ExportError` unless a kernel is the one that was exported."""
    here, there = dict(_inside.options(kernel)), data["options"]
    known = sorted(here.keys() & there.keys())  # another Warp has others
    options = ([[option, found[option]] for option in known] for found in (there, here))
    check_listed(f"the kernel {name}", "options", *options)
    checks = data["checks"]
    kind = "bytecode" if checks["python"] == PYTHON else "source"
    found = _code(kernel, None if kind == "bytecode" else definition)
    unknown = next((_describe_unknown(value, checks["warp"]) for value in _unknown(kernel)), None)
    if None in (checks[kind], found) and checks["warp"] == warp.__version__:
        # Warp's own hash changes with each comment, and from version to version, but it knows what `warp.static` got
        # from an object that cannot be compared.
        checks, found = {**checks, kind: checks["hash"]}, _hash(launch, data["launch"]["platform"])
        unknown = None
    check_same(
        f"deserialize: the kernel {name} ({kernel.func.__code__.co_filename})",
        checks,
        {kind: lambda: found},
        lambda: unknown,
        "its code has changed, or that of a function, or a constant that it refers to",
    )


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


def _checks(kernel: Any, own: str | None) -> dict[str, Any]:
    return {
        "python": PYTHON,
        "bytecode": _code(kernel),
        "source": _code(kernel, definition),
        "warp": warp.__version__,
        "hash": own,
    }


def _code(kernel: Any, definition: Definition | None = None) -> str | None:
    """Return the kernel's fingerprint in another process; None: it has another one in each."""
    if _unknown(kernel):
        return None
    try:
        return fingerprint(code_of(kernel), definition=definition, describe=describe)
    except SourceError:
        return None


def _unknown(kernel: Any) -> list[Any]:
    return unknown_objects(code_of(kernel), describe=describe)


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
