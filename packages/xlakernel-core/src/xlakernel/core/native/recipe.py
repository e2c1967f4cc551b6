"""How a kernel is found again in another process, and whether it is still the same there."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from numba.core import serialize

from ..errors import ExportError
from ..ffi.comparison import PYTHON, check_same
from ..ffi.fingerprint import Definition, examine, fingerprint, unknown_objects
from ..ffi.reference import Reference
from ..ffi.registry import Recipe
from ..ffi.source import SourceError, definition
from .declared import Declarations
from .own_copies import Helper

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Compiler:
    """What makes the kernels of a backend: how they are taken apart, put together and compared.

    Attributes:
      package: the backend's distribution, for messages.
      module: the backend's module with a ``rebuild`` (see `Recipe`).
      kind: the class of its dispatchers.
      parts: returns what a dispatcher is made of, its Python function among them; picklable if these are.
      make: makes a dispatcher of these.
      declarations: returns what users have declared so far.
      lock: held while it compiles.
      helpers: the kinds of compiled functions that a kernel may call.
      environment: returns what the code of all kernels depends on: versions and settings.
      options: returns what else a dispatcher's code depends on.
    """

    package: str
    module: str
    kind: type
    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]
    declarations: Callable[[], Declarations]
    lock: AbstractContextManager[Any]
    helpers: Sequence[Helper]
    environment: Callable[[], Mapping[str, Any]]
    options: Callable[[Any], Mapping[str, Any]] = lambda _: {}

    def fresh(self, dispatcher: Any) -> Any:
        """Return a dispatcher of the same function and options that has compiled nothing and may compile anything.

        It refers to the user's helpers; `OwnCopies` makes copies of them.
        """
        return self.make(*self.parts(dispatcher))

    def fingerprint(self, dispatcher: Any, definition: Definition | None = None) -> str:
        """Return the fingerprint of a kernel and of all it refers to."""
        options = self.options(dispatcher) or None
        return fingerprint(dispatcher, options, self.declarations(), definition, present=True)

    def examine(self, dispatcher: Any) -> tuple[str, list[Any]]:
        """Return `fingerprint` and `unknown` of a kernel, at the cost of one."""
        options = self.options(dispatcher) or None
        return examine(dispatcher, options=options, implementations=self.declarations(), present=True)

    def source_fingerprint(self, dispatcher: Any) -> str | None:
        """Return the one that all versions of Python agree on; None: some source is missing."""
        try:
            return self.fingerprint(dispatcher, definition)
        except SourceError:
            return None

    def unknown(self, dispatcher: Any) -> list[Any]:
        """Return the objects that make a kernel another one in each process."""
        return unknown_objects(dispatcher, self.declarations(), present=True)


def is_importable(dispatcher: Any) -> bool:
    """Whether the kernel, or its Python function, is what its module has under its name."""
    return _reference(dispatcher).leads_to(dispatcher, dispatcher.py_func)


def _reference(dispatcher: Any) -> Reference:
    return Reference(dispatcher.py_func.__module__, dispatcher.py_func.__qualname__, "dispatcher")


def write_recipe(compiler: Compiler, dispatcher: Any, *, content: str, call: Mapping[str, Any]) -> Recipe:
    """Say how the target of a kernel is made in another process.

    Args:
      compiler: the kernel's.
      dispatcher: the kernel.
      content: the fingerprint that it had when it was compiled.
      call: what it was compiled for, made of what JSON has.

    Raises:
      ExportError: if it cannot be made there, or only something else.
    """
    name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
    with compiler.lock:
        if unknown := compiler.unknown(dispatcher):
            raise ExportError(f"export: the kernel {name} {_describe_unknown(unknown[0])}")
        if compiler.fingerprint(dispatcher) != content:
            raise ExportError(
                f"export: the kernel {name} was compiled before something that it refers to changed: a global, or a "
                "helper. The program has the kernel as it was; export it in a process that changes nothing in between."
            )
        same = compiler.fresh(dispatcher)
        checks = {
            "python": PYTHON,
            "bytecode": compiler.fingerprint(same),
            "source": compiler.source_fingerprint(same),
        }
    reference = _reference(dispatcher)
    kernel = reference.data if reference.leads_to(dispatcher) else _pickle(compiler, dispatcher, name)
    data = {"format": _FORMAT, "name": name, "kernel": kernel, "checks": checks, **call}
    return Recipe(compiler.module, data)


def read_kernel(compiler: Compiler, target: str, data: Mapping[str, Any]) -> Any:
    """Return the kernel's dispatcher.

    Raises:
      ExportError: if it is not there, or is another one now.
    """
    if data.get("format") != _FORMAT:
        raise ExportError(
            f"deserialize: {target!r} was exported by another {compiler.package}, whose recipes are of format "
            f"{data.get('format')!r}; this one reads format {_FORMAT}. Install that version, or export again."
        )
    name, kernel, checks = data["name"], data["kernel"], data["checks"]
    if "module" in kernel:
        reference = Reference(kernel["module"], kernel["qualname"], "dispatcher")
        dispatcher = reference.find(f"the kernel {name}", lambda found: isinstance(found, compiler.kind))
    else:
        dispatcher = _unpickle(compiler, name, kernel["pickle"], checks["python"])
    with compiler.lock:
        _check_same(compiler, name, dispatcher, checks)
    return dispatcher


def _pickle(compiler: Compiler, dispatcher: Any, name: str) -> dict[str, str]:
    try:
        pickled = serialize.dumps(compiler.parts(dispatcher))
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise ExportError(
            f"export: the kernel {name} cannot be imported by its name, and cannot be pickled: {error}. Define it at "
            "the top level of a module."
        ) from error
    return {"pickle": base64.b64encode(pickled).decode()}


def _unpickle(compiler: Compiler, name: str, pickled: str, python: str) -> Any:
    if python != PYTHON:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program as bytecode of Python {python}, because it could "
            f"not be imported by its name; this is Python {PYTHON}. Load it with Python {python}, or define the "
            "kernel at the top level of a module and export again."
        )
    try:
        return compiler.make(*serialize.loads(base64.b64decode(pickled)))
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program and refers to what is not here: {error}. Install "
            "it, or put its folder on sys.path."
        ) from error


def _check_same(compiler: Compiler, name: str, dispatcher: Any, checks: Mapping[str, Any]) -> None:
    same = compiler.fresh(dispatcher)
    check_same(
        f"deserialize: the kernel {name} of module {dispatcher.py_func.__module__} "
        f"({dispatcher.py_func.__code__.co_filename})",
        checks,
        {"bytecode": lambda: compiler.fingerprint(same), "source": lambda: compiler.source_fingerprint(same)},
        lambda: next(map(_describe_unknown, compiler.unknown(same)), None),
        "its code or its options have changed, or those of a helper, or a constant that it refers to",
    )


def _describe_unknown(value: Any) -> str:
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared with one of another "
        "process. Pass it as an array or a static scalar, or make it a number, a string, a tuple or a NumPy array."
    )
