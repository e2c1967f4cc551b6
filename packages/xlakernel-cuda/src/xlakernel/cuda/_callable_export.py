"""How a function that launches work is found again in another process, and whether it is still the same there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.comparison import PYTHON, check_same
from xlakernel.core.ffi.fingerprint import fingerprint, unknown_objects
from xlakernel.core.ffi.kinds import describe
from xlakernel.core.ffi.reference import Reference
from xlakernel.core.ffi.registry import Recipe
from xlakernel.core.ffi.source import SourceError, definition

from ._function import CudaFunction
from ._libraries import Adapter

if TYPE_CHECKING:
    from xlakernel.core.gpu.plan import Array

_FORMAT = 1
_INSIDE = "function"  # of what the wrapper has as `xlakernel`


def write_recipe(
    kernel: CudaFunction, arrays: Sequence[Array], static: Mapping[str, np.generic], *, debug: bool, content: str
) -> Recipe:
    """Say how the target of a function is made in another process.

    Args:
      kernel: the function, with what it is given.
      arrays: what it was recorded for.
      static: the static scalars that it was recorded with.
      debug: whether its target checks what it does.
      content: the fingerprint that it had then.

    Raises:
      ExportError: if it cannot be made there, or only something else.
    """
    function, adapter = kernel.function, kernel.adapter
    name = _path(function)
    parts = {"function": function, "arrays": adapter.arrays, "stream": adapter.stream}
    references = {what: _reference(name, what, part) for what, part in parts.items()}
    if unknown := unknown_objects(tuple(parts.values()), describe=describe):
        raise ExportError(f"export: the function {name} {_describe_unknown(unknown[0])}")
    if kernel.content() != content:
        raise ExportError(
            f"export: the function {name} was recorded before something that it refers to changed: a global, or a "
            "kernel. The program does what it did then; export it in a process that changes nothing in between."
        )
    data = {
        "format": _FORMAT,
        "name": name,
        **references,
        "record": kernel.record,
        "aliased": sorted(kernel.aliased),
        "checks": _checks(kernel),
        "types": [[array.source, array.index, array.dtype, list(array.shape)] for array in arrays],
        "static": [[key, value.dtype.name, value.tobytes().hex()] for key, value in sorted(static.items())],
        "debug": debug,
    }
    return Recipe("xlakernel.cuda._callable_export", data)


def rebuild(target: str, data: Mapping[str, Any]) -> None:
    """Record the function that *data* describes, and register it as *target*.

    Raises:
      ExportError: if it is not there, or is another one now.
    """
    if data.get("format") != _FORMAT:
        raise ExportError(
            f"deserialize: {target!r} was exported by another xlakernel-cuda, whose recipes are of format "
            f"{data.get('format')!r}; this one reads format {_FORMAT}. Install that version, or export again."
        )
    from xlakernel.core.gpu.plan import Array

    from ._callable import signature_of  # which imports the module that imports this one when it is called

    name = data["name"]
    function, arrays, stream = (_find(name, data[what]) for what in ("function", "arrays", "stream"))
    adapter = Adapter(arrays, stream)
    adapter.check(f"deserialize: the function {name}")
    signature = signature_of("deserialize", function)
    kernel = CudaFunction(function, signature, adapter, data["record"], frozenset(data["aliased"]))
    _check_same(name, kernel, data["checks"])
    kernel.register(
        [Array(source, index, dtype, tuple(shape)) for source, index, dtype, shape in data["types"]],
        {key: np.frombuffer(bytes.fromhex(value), dtype)[0] for key, dtype, value in data["static"]},
        debug=data["debug"],
        target=target,
    )


def _path(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', repr(value))}"


def _reference(name: str, what: str, part: Any) -> Any:
    """Return how *part* is found: a library's name or None as it is, a function by its module and name."""
    if part is None or isinstance(part, str):
        return part
    reference = Reference(getattr(part, "__module__", None) or "", getattr(part, "__qualname__", ""), _INSIDE)
    if not reference.leads_to(part):
        which = f"the function {name}" if what == "function" else f"{what}={part!r} of the function {name}"
        raise ExportError(
            f"export: {which} cannot be imported by its name, and what launches work on the GPU cannot be stored in "
            "the program. Define it at the top level of a module that can be imported where the program is loaded."
        )
    return reference.data


def _find(name: str, reference: Any) -> Any:
    if not isinstance(reference, Mapping):
        return reference
    found = Reference(reference["module"], reference["qualname"], _INSIDE)
    return found.find(f"the function {name}", callable, reference["qualname"])


def _checks(kernel: CudaFunction) -> dict[str, Any]:
    return {"python": PYTHON, "bytecode": kernel.content(), "source": _source_fingerprint(kernel)}


def _source_fingerprint(kernel: CudaFunction) -> str | None:
    parts = (kernel.function, kernel.adapter.arrays, kernel.adapter.stream)
    try:
        return fingerprint(parts, definition=definition, describe=describe)
    except SourceError:
        return None


def _check_same(name: str, kernel: CudaFunction, checks: Mapping[str, Any]) -> None:
    check_same(
        f"deserialize: the function {name} ({kernel.place})",
        checks,
        {"bytecode": kernel.content, "source": lambda: _source_fingerprint(kernel)},
        lambda: next(map(_describe_unknown, unknown_objects(kernel.function, describe=describe)), None),
        "its code has changed, or that of a kernel, or a constant that it refers to",
    )


def _describe_unknown(value: Any) -> str:
    if hasattr(value, "overloads"):
        return (
            f"launches {value.__name__}, which was compiled before, and whose globals may have changed since. Call the "
            "function before its kernels are compiled otherwise."
        )
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared with one of another process. "
        "Pass an array as an input; make anything else inside the function, or in a helper decorated with "
        "functools.cache."
    )
