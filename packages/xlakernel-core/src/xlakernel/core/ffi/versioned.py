"""Packages whose functions a version determines, and the other values that they may hold."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from .literals import literal_writer

# Packages whose functions are known by their version: they are hashed by name, and not walked through. Values are
# hashed all the same: some differ between processes (`time.timezone`), and users may set others. The wrappers put the
# versions of the compilers into their options.
_VERSIONED = frozenset(
    {"builtins", "cmath", "jax", "jaxlib", "llvmlite", "math", "ml_dtypes", "numba", "numba_cuda", "numpy", "operator"}
    | {"scipy"}
)
# Likewise if they have a version: a user's own package of the same name is taken to have none.
_VERSIONED_IF = {"cupy": "cupy", "cupyx": "cupy", "torch": "torch", "warp": "warp"}
# A package "cuda" may be a user's own, and kernels of other packages of the namespace are walked through.
_VERSIONED_PARTS = ("cuda.bindings.", "cuda.core.", "xlakernel.core.")
# So are the modules that came with Python: those without a file, and those of this folder, not a user's of that name.
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
# Which holds those that are installed, too, where there is no virtual environment.
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


def wraps_function(value: Any) -> bool:
    """Return True for Numba's wrappers of functions: a dispatcher, a ufunc, an intrinsic, a stencil, a C callback."""
    return origin(type(value)) == "numba" and isinstance(python_function(value), types.FunctionType)


def python_function(value: Any) -> Any:
    """Return the Python function of a compiler's wrapper; anything else as it is."""
    if isinstance(value, types.FunctionType):  # itself, also where functools.wraps says that it stands for another
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
        return "numpy.random"  # a method of NumPy's global generator, which does not know where it is kept
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else type(value).__module__


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
    """Return True for a module of a versioned package, and for what such a module has under the value's name."""
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
    """Return those of the *names* that are attributes of a module, which may compute them (``__getattr__``)."""
    space = vars(module)
    found = {name: space[name] for name in names if name in space}
    if (type(module) is not types.ModuleType or "__getattr__" in space) and not is_versioned(module):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of attributes that the kernel need not use
            for name in names:
                with contextlib.suppress(Exception):
                    found.setdefault(name, getattr(module, name))
    return found


def may_change(value: Any) -> bool:
    """Return True for what a versioned module may have that its version does not say: a number, a user's function."""
    if isinstance(value, tuple):
        return any(map(may_change, value))
    if isinstance(value, (types.FunctionType, type, enum.Enum)) or wraps_function(value):
        return not _is_versioned_package(origin(python_function(value)))
    kind: Any = type(value)
    return isinstance(value, (np.ndarray, np.generic)) or literal_writer(kind) is not None
