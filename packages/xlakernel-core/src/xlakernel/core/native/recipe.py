"""How a kernel is found again in another process, and whether it is still the same there."""

from __future__ import annotations

import base64
import dataclasses
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from numba.core import serialize

from ..errors import ExportError
from ..ffi.comparison import PYTHON, check_same
from ..ffi.fingerprint import Definition, examine, fingerprint, references, unknown_objects
from ..ffi.reference import Reference, import_module, read_pickle
from ..ffi.registry import Recipe
from ..ffi.source import SourceError, definition
from .declared import Declarations, definition_of
from .own_copies import Helper

_FORMAT = 3


@dataclasses.dataclass(frozen=True)
class Compiler:
    """What makes the kernels of a backend: how they are taken apart, put together and compared.

    Attributes:
      package: the backend's distribution, for messages.
      module: the backend's module with a ``prepare`` (see `Recipe`).
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
        imports = _imports(compiler, dispatcher, name)
    reference = _reference(dispatcher)
    kernel = reference.data if reference.leads_to(dispatcher) else _pickle(compiler, dispatcher, name)
    data = {"format": _FORMAT, "name": name, "kernel": kernel, "imports": imports, "checks": checks, **call}
    return Recipe(compiler.module, data)


def _imports(compiler: Compiler, dispatcher: Any, name: str) -> list[str]:
    """Return the modules that declare implementations of what the kernel calls.

    Raises:
      ExportError: if another process would not find a declaration by importing them.
    """
    declarations = compiler.declarations()
    for _ in references(dispatcher, declarations):
        pass
    modules = set()
    for template in declarations.met:
        attribute, function = definition_of(template)
        if attribute == "_definition_func":  # an intrinsic, which is what the kernel refers to
            continue
        if str(function.__module__).startswith("numba."):  # register_jitable declares with a function of Numba's
            function = template.key
        module = str(function.__module__)
        if module == "__main__" or module not in sys.modules or "<locals>" in function.__qualname__:
            raise ExportError(
                f"export: the kernel {name} may call {getattr(template.key, '__name__', template.key)}, for which "
                f"numba.extending declares {function.__qualname__} in {module}, where another process does not find "
                "it. Declare it at the top level of a module that can be imported, or call a function of numba.njit."
            )
        modules.add(module)
    return sorted(modules)


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
    for module in data["imports"]:
        import_module(f"the kernel {name}", module)
    if "pickle" not in kernel:
        reference = Reference(kernel["module"], kernel["qualname"], "dispatcher")
        dispatcher = reference.find(
            f"the kernel {name}",
            lambda found: isinstance(found, compiler.kind) and _reference(found).module == reference.module,
        )
    else:
        dispatcher = _unpickle(compiler, name, kernel["pickle"], checks["python"])
    with compiler.lock:
        _check_same(compiler, name, dispatcher, checks)
    return dispatcher


def _pickle(compiler: Compiler, dispatcher: Any, name: str) -> dict[str, str]:
    try:
        pickled = _dumps(compiler, compiler.parts(dispatcher))
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise ExportError(
            f"export: the kernel {name} cannot be imported by its name, and cannot be pickled: {error}. Define it at "
            "the top level of a module."
        ) from error
    return {"pickle": base64.b64encode(pickled).decode()}


def _dumps(compiler: Compiler, value: Any) -> bytes:
    """Pickle *value* as Numba does, and those helpers too that Numba cannot pickle."""

    class Pickler(serialize.NumbaPickler):  # type: ignore[misc]  # Numba has no stubs
        def reducer_override(self, obj: Any) -> Any:
            for helper in compiler.helpers:
                if helper.reduce is not None and isinstance(obj, helper.kind):
                    return helper.reduce(obj)
            return super().reducer_override(obj)

    with io.BytesIO() as buffer:
        Pickler(buffer, protocol=4).dump(value)
        return buffer.getvalue()


def _unpickle(compiler: Compiler, name: str, pickled: str, python: str) -> Any:
    if python != PYTHON:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program as bytecode of Python {python}, because it could "
            f"not be imported by its name; this is Python {PYTHON}. Load it with Python {python}, or define the "
            "kernel at the top level of a module and export again."
        )
    try:
        parts = serialize.loads(read_pickle(f"the kernel {name}", pickled))
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program and refers to what is not here: {error}. Install "
            "it, or put its folder on sys.path."
        ) from error
    return compiler.make(*parts)


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
        "process. Pass it as an array or a scalar, or make it a number, a string, a tuple or a NumPy array."
    )
