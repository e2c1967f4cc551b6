"""Versioned packages: the version identifies the functions, and a fingerprint contains them by name alone."""

from __future__ import annotations

import enum
import importlib.util
import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..interrupts import suppressed
from .literals import literal_writer

# Packages whose version determines their functions. A fingerprint contains such a function by name, without its code
# and references. Values in these packages are hashed nevertheless: some differ between processes (`time.timezone`), and
# users may set others. The versions of compilers are among the options that a wrapper adds to a fingerprint.
_VERSIONED = frozenset(
    {"builtins", "cmath", "jax", "jaxlib", "llvmlite", "math", "ml_dtypes", "numba", "numba_cuda", "numpy", "operator"}
    | {"scipy"}
)
# Versioned if the package on the right has a ``__version__``; a user's own package of this name rarely has it.
_VERSIONED_IF = {"cupy": "cupy", "cupyx": "cupy", "torch": "torch", "warp": "warp"}
# Versioned parts of namespaces. Another "cuda" may be a user's own, and kernels of xlakernel.sparse must be hashed.
_VERSIONED_PARTS = ("cuda.bindings.", "cuda.core.", "xlakernel.core.")
# The standard library is versioned, too: its modules have no file, or a file in this folder. A user's module of the
# same name is elsewhere.
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
# Outside of a virtual environment, that folder contains the folders of installed packages.
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


def wraps_function(value: Any) -> bool:
    """Return True for Numba's wrappers of functions: a dispatcher, a ufunc, an intrinsic, a stencil, a C callback."""
    is_of_numba = any(str(getattr(base, "__module__", "")).startswith("numba.") for base in type(value).__mro__)
    return is_of_numba and isinstance(python_function(value), types.FunctionType)


def python_function(value: Any) -> Any:
    """Return the Python function of a compiler's wrapper; any other value unchanged."""
    if isinstance(value, types.FunctionType):  # even if functools.wraps gave it the attribute __wrapped__
        return value
    if stencil := getattr(value, "kernel_ir", None):
        return stencil.func_id.func
    value = getattr(value, "_dispatcher", value)  # a ufunc's
    return getattr(value, "py_func", None) or getattr(value, "__wrapped__", value)


def origin(value: Any) -> str:
    """Return the top-level package that *value* comes from."""
    return _module(value).partition(".")[0]


def _module(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    if getattr(np.random, str(getattr(value, "__name__", "")), None) is value:
        return "numpy.random"  # a method of NumPy's global generator, without a module of its own
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else getattr(type(value), "__module__", "builtins")


def qualified_name(value: Any) -> str:
    """Return ``module:name`` of a function, class or module."""
    module = _module(value)
    names = (
        ("__name__",)
        if module == "numpy.random" or isinstance(value, types.ModuleType)
        else ("__qualname__", "__name__")
    )
    return f"{module}:{next((getattr(value, name) for name in names if hasattr(value, name)), '')}"


def is_versioned(value: Any) -> bool:
    """Return True for a module of a versioned package, and for an object that can be imported from one by its name."""
    if not (_is_versioned_package(origin(value)) or f"{_module(value)}.".startswith(_VERSIONED_PARTS)):
        return False
    module, _, path = qualified_name(value).partition(":")
    if isinstance(value, types.ModuleType):
        return True
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_versioned_package(name: str) -> bool:
    if name in _VERSIONED:
        return True
    if name in _VERSIONED_IF:
        return hasattr(sys.modules.get(_VERSIONED_IF[name]), "__version__")
    if name not in sys.stdlib_module_names or name not in sys.modules:
        return False
    file = getattr(sys.modules[name], "__file__", None) or _STANDARD_LIBRARY
    return file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)


def attributes_of(module: types.ModuleType, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes of a module that have one of the *names*, also those that its ``__getattr__`` computes."""
    space = vars(module)
    found = {name: space[name] for name in names if name in space}
    if (type(module) is not types.ModuleType or "__getattr__" in space) and not is_versioned(module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernel may not use the attribute that warns
            for name in names:
                with suppressed():
                    found.setdefault(name, getattr(module, name))
    return found


def imported(name: str, package: str | None) -> types.ModuleType | None:
    """Return a module, imported if need be; None on failure. Versioned packages are not imported, only looked up."""
    with suppressed():  # the function may catch the error, or never run the import
        name = importlib.util.resolve_name(name, package)
        top = name.partition(".")[0]
        parent, _, attribute = name.rpartition(".")
        is_known = hasattr(sys.modules.get(parent), attribute)  # a module, or another value that is imported by name
        if not is_known and top not in _VERSIONED | _VERSIONED_IF.keys() | sys.stdlib_module_names:
            importlib.import_module(name)
    return sys.modules.get(name)


def settings(names: Iterable[str]) -> dict[str, Any]:
    """Return JAX's settings, and environment variables, that have one of the *names*."""
    names = sorted(names)
    config = getattr(sys.modules.get("jax"), "config", None)
    found = {name: getattr(config, name) for name in names if name.startswith("jax_") and hasattr(config, name)}
    if {"environ", "getenv"}.isdisjoint(names):
        return found
    return found | {name: os.environ[name] for name in names if name in os.environ}


def may_change(value: Any) -> bool:
    """Return True for a value that the version of its module does not determine: a number, a user's function."""
    if isinstance(value, tuple):
        return any(may_change(item) or is_versioned(item) for item in value)
    if isinstance(value, (types.FunctionType, type, enum.Enum)) or wraps_function(value):
        return not _is_versioned_package(origin(python_function(value)))
    kind: Any = type(value)
    is_value = isinstance(value, (np.ndarray, np.generic, np.dtype)) or literal_writer(kind) is not None
    return is_value or is_numba_type(value) or is_object_mode(value)


def is_numba_type(value: Any) -> bool:
    """Return True for an object that stands for a type in Numba, such as ``numba.float32``."""
    bases = type(value).__mro__
    return any(base.__qualname__ == "Type" and base.__module__.startswith("numba.core.types") for base in bases)


def is_object_mode(value: Any) -> bool:
    """Return True for ``numba.objmode``."""
    kind: Any = type(value)
    return (kind.__module__, kind.__qualname__) == ("numba.core.withcontexts", "_ObjModeContextType")
