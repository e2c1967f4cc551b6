"""How a kernel is found again in another process, and whether it is still the same there."""

from __future__ import annotations

import base64
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from numba.core import serialize
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from xlakernel.core.errors import ExportError
from xlakernel.core.ffi.fingerprint import Implementations, fingerprint, unknown_objects
from xlakernel.core.ffi.registry import Recipe
from xlakernel.core.ffi.source import SourceError, definition
from xlakernel.core.native import Argument

_FORMAT = 1
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def fresh(dispatcher: Any) -> Any:
    """Return a dispatcher of the same function and options that has compiled nothing and may compile anything."""
    return _dispatcher(*_parts(dispatcher))


def _parts(dispatcher: Any) -> tuple[Any, ...]:
    compiler = dispatcher._compiler.pipeline_class
    return type(dispatcher), dispatcher.py_func, dispatcher.locals, dict(dispatcher.targetoptions), compiler


def _dispatcher(kind: Any, function: Any, locals_: Any, options: Any, compiler: Any) -> Any:
    return kind(function, locals=locals_, targetoptions=options, pipeline_class=compiler)


def is_importable(dispatcher: Any) -> bool:
    """Whether the kernel, or its Python function, is what its module has under its name."""
    function = dispatcher.py_func
    if function.__module__ == "__main__":
        return False
    found = _attribute(sys.modules.get(function.__module__), function.__qualname__)
    return found is dispatcher or found is function


def _attribute(module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = getattr(found, part, None)
    # Where numba_kernel was applied as a decorator, the name is that of the wrapper.
    return getattr(getattr(found, "xlakernel", None), "dispatcher", found)


def write_recipe(
    dispatcher: Any,
    arguments: Sequence[Argument],
    mode: Mapping[str, bool],
    *,
    content: str,
    implementations: Implementations,
) -> Recipe:
    """Say how the target of a kernel is made in another process.

    Args:
      dispatcher: the kernel.
      arguments: what it was compiled for.
      mode: how its handler runs it.
      content: the fingerprint that it had then.
      implementations: see `fingerprint`.

    Raises:
      ExportError: if it cannot be made there, or only something else.
    """
    name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
    with global_compiler_lock:
        if unknown := unknown_objects(dispatcher, implementations):
            raise ExportError(f"export: the kernel {name} {_describe_unknown(unknown[0])}")
        if fingerprint(dispatcher, None, implementations) != content:
            raise ExportError(
                f"export: the kernel {name} was compiled before something that it refers to changed: a global, or a "
                "helper. The program has the kernel as it was; export it in a process that changes nothing in between."
            )
        same = fresh(dispatcher)
        checks = {
            "python": _PYTHON,
            "bytecode": fingerprint(same, None, implementations),
            "source": _source_fingerprint(same, implementations),
        }
    data = {
        "format": _FORMAT,
        "name": name,
        "kernel": _reference(dispatcher) or _pickle(dispatcher, name),
        "checks": checks,
        "arguments": [[a.source, a.index, a.dtype, a.ndim] for a in arguments],
        "mode": dict(mode),
    }
    return Recipe("xlakernel.numba._export", data)


def read_kernel(target: str, data: Mapping[str, Any], implementations: Implementations) -> Any:
    """Return the kernel's dispatcher.

    Raises:
      ExportError: if it is not there, or is another one now.
    """
    if data.get("format") != _FORMAT:
        raise ExportError(
            f"deserialize: {target!r} was exported by another xlakernel-numba, whose recipes are of format "
            f"{data.get('format')!r}; this one reads format {_FORMAT}. Install that version, or export again."
        )
    name, kernel, checks = data["name"], data["kernel"], data["checks"]
    dispatcher = _import(name, **kernel) if "module" in kernel else _unpickle(name, kernel["pickle"], checks["python"])
    with global_compiler_lock:
        _check_same(name, dispatcher, checks, implementations)
    return dispatcher


def _reference(dispatcher: Any) -> dict[str, str] | None:
    function = dispatcher.py_func
    found = _attribute(sys.modules.get(function.__module__), function.__qualname__)
    if found is dispatcher and is_importable(dispatcher):
        return {"module": function.__module__, "qualname": function.__qualname__}
    return None


def _pickle(dispatcher: Any, name: str) -> dict[str, str]:
    try:
        pickled = serialize.dumps(_parts(dispatcher))
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise ExportError(
            f"export: the kernel {name} cannot be imported by its name, and cannot be pickled: {error}. Define it at "
            "the top level of a module."
        ) from error
    return {"pickle": base64.b64encode(pickled).decode()}


def _import(name: str, module: str, qualname: str) -> Any:
    try:
        found = _attribute(importlib.import_module(module), qualname)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"deserialize: the program calls the kernel {name}, and the module {module} cannot be imported: {error}. "
            "Install it, or put its folder on sys.path."
        ) from error
    if not isinstance(found, Dispatcher):
        there = "nothing" if found is None else f"a {type(found).__name__}"
        raise ExportError(
            f"deserialize: the program calls the kernel {name}, but {module} ({_file(sys.modules[module])}) has "
            f"{there} under that name. Bring back the source that was exported, or export the program again."
        )
    return found


def _unpickle(name: str, pickled: str, python: str) -> Any:
    if python != _PYTHON:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program as bytecode of Python {python}, because it could "
            f"not be imported by its name; this is Python {_PYTHON}. Load it with Python {python}, or define the "
            "kernel at the top level of a module and export again."
        )
    try:
        return _dispatcher(*serialize.loads(base64.b64decode(pickled)))
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program and refers to what is not here: {error}. Install "
            "it, or put its folder on sys.path."
        ) from error


def _check_same(name: str, dispatcher: Any, checks: Mapping[str, Any], implementations: Implementations) -> None:
    same = fresh(dispatcher)
    kind = "bytecode" if checks["python"] == _PYTHON else "source"
    found = (
        fingerprint(same, None, implementations) if kind == "bytecode" else _source_fingerprint(same, implementations)
    )
    if found is not None and found == checks[kind]:
        return
    module = dispatcher.py_func.__module__
    what = f"deserialize: the kernel {name} of module {module} ({dispatcher.py_func.__code__.co_filename})"
    if unknown := unknown_objects(same, implementations):
        raise ExportError(
            f"{what} cannot be compared with the one that was exported: it {_describe_unknown(unknown[0])}"
        )
    if kind == "source" and None in (found, checks["source"]):
        raise ExportError(
            f"{what} was exported by Python {checks['python']} and this is Python {_PYTHON}: it can only be compared "
            "by its source, which is missing for it or for something it refers to. Export it again with this Python."
        )
    raise ExportError(
        f"{what} is not the one that was exported: its code or its options have changed, or those of a helper, or a "
        "constant that it refers to. Bring back the source that was exported, or export the program again."
    )


def _source_fingerprint(dispatcher: Any, implementations: Implementations) -> str | None:
    try:
        return fingerprint(dispatcher, None, implementations, definition)
    except SourceError:
        return None


def _describe_unknown(value: Any) -> str:
    if hasattr(value, "overloads"):
        return (
            f"calls {value.__name__}, which was compiled on its own before, and whose globals may have changed since. "
            "Call the kernel before the helper, or give the helper no signature."
        )
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared with one of another "
        "process. Pass it as an array or a static scalar, or make it a number, a string, a tuple or a NumPy array."
    )


def _file(module: Any) -> str:
    return str(getattr(module, "__file__", None) or "no file")
