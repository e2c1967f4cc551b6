"""Recipes of Numba kernels: data written at export, with which another process finds and compares the kernels."""

from __future__ import annotations

import base64
import functools
import sys
from collections.abc import Mapping
from typing import Any

from numba.core import serialize

from ..errors import ExportError
from ..ffi.registry import Recipe
from ..identity.fingerprint import examine
from ..interrupts import is_raised_by_handler
from ..programs.allowed import import_module, read_pickle
from ..programs.comparison import Compared, refers_to
from ..programs.reference import Reference
from ..programs.values import FORMAT, check_format
from .compiler import Compiler
from .declarations import definition_of
from .pickled import dumps


def is_importable(dispatcher: Any) -> bool:
    """Return True if the kernel's name in its module is bound to the kernel or to its Python function."""
    return _reference(dispatcher).leads_to(dispatcher, dispatcher.py_func)


def _reference(dispatcher: Any) -> Reference:
    return Reference(dispatcher.py_func.__module__, dispatcher.py_func.__qualname__, "dispatcher")


def write_recipe(compiler: Compiler, dispatcher: Any, *, content: str, call: Mapping[str, Any]) -> Recipe:
    """Return the recipe with which another process builds a kernel's target (its handler, registered under a name).

    Args:
      compiler: the compiler of the kernel's backend.
      dispatcher: the kernel.
      content: the fingerprint of the kernel when it was compiled.
      call: the argument types and modes that the kernel was compiled for, as data that JSON can represent.

    Raises:
      ExportError: if another process cannot build the target, or would build a different one.
    """
    name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
    with compiler.lock:
        _compared(compiler, dispatcher, f"the kernel {name}").check_exportable(content)
        checks = _compared(compiler, compiler.fresh(dispatcher), name).checks()
        imports = _imports(compiler, dispatcher, name)
    reference = _reference(dispatcher)
    kernel = reference.data if reference.leads_to(dispatcher) else _pickle(compiler, dispatcher, name)
    data = {"format": FORMAT, "name": name, "kernel": kernel, "imports": imports, "checks": checks, **call}
    return Recipe(compiler.module, data)


def _imports(compiler: Compiler, dispatcher: Any, name: str) -> list[str]:
    """Return the names of the modules with ``numba.extending`` declarations that the kernel may use.

    Raises:
      ExportError: if another process cannot import a declaration.
    """
    declarations = compiler.declarations()
    examine(dispatcher, None, declarations)  # collects the declarations
    modules = set()
    for template in declarations.met:
        attribute, function = definition_of(template)
        if attribute == "_definition_func":  # an intrinsic, which the kernel itself refers to
            continue
        if str(function.__module__).startswith("numba."):  # a Numba function, made by register_jitable
            function = template.key
        module = str(function.__module__)
        if module == "__main__" or module not in sys.modules or "<locals>" in function.__qualname__:
            raise ExportError(
                f"export: the kernel {name} may call {getattr(template.key, '__name__', template.key)}, for which "
                f"numba.extending declares {function.__qualname__} in {module}, which another process cannot "
                "import. Declare it at the top level of a module that can be imported, or call an njit function "
                "instead."
            )
        modules.add(module)
    return sorted(modules)


def read_kernel(compiler: Compiler, target: str, data: Mapping[str, Any]) -> Any:
    """Return the kernel's dispatcher.

    Raises:
      ExportError: if the kernel cannot be found, or differs from the exported kernel.
    """
    check_format(compiler.package, target, data)
    name, kernel, checks = data["name"], data["kernel"], data["checks"]
    for module in data["imports"]:
        import_module(f"the kernel {name}", module)
    if "pickle" not in kernel:
        reference = Reference(kernel["module"], kernel["qualname"], "dispatcher")
        dispatcher = reference.find(
            f"the kernel {name}",
            lambda found: isinstance(found, compiler.kernels.kind) and _reference(found).module == reference.module,
        )
    else:
        dispatcher = _unpickle(compiler, name, kernel["pickle"])
    with compiler.lock:
        function = dispatcher.py_func
        what = f"the kernel {name} of module {function.__module__} ({function.__code__.co_filename})"
        _compared(compiler, compiler.fresh(dispatcher), what).check_same(checks)
    return dispatcher


def _pickle(compiler: Compiler, dispatcher: Any, name: str) -> dict[str, str]:
    try:
        pickled = dumps(compiler, compiler.kernels.parts(dispatcher))
    except Exception as error:  # raised by the __reduce__ of any object
        if is_raised_by_handler(error):
            raise
        raise ExportError(
            f"export: the kernel {name} cannot be imported by its name, and cannot be pickled: {error}. Define it at "
            "the top level of a module."
        ) from error
    return {"pickle": base64.b64encode(pickled).decode()}


def _unpickle(compiler: Compiler, name: str, pickled: str) -> Any:
    try:
        parts = serialize.loads(read_pickle(f"the kernel {name}", pickled))
    except (ImportError, AttributeError) as error:
        raise ExportError(
            f"deserialize: the kernel {name} is stored in the program, and its references cannot be imported: {error}. "
            "Install the missing package, or add its folder to sys.path."
        ) from error
    return compiler.kernels.make(*parts)


def _compared(compiler: Compiler, dispatcher: Any, what: str) -> Compared:
    advice = "Pass it as an array or a scalar, or make it a number, a string, a tuple or a NumPy array."
    return Compared(what, functools.partial(compiler.examine, dispatcher), lambda value: refers_to(value, advice))
