"""Implementations that users declare for functions, methods and attributes, found in Numba's typing contexts.

``numba.overload`` and ``register_jitable`` declare an implementation of a function, ``overload_method`` and
``overload_attribute`` of an attribute of a type. ``intrinsic`` declares a new function.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numba.core.types.misc import Module

from ..interrupts import is_raised_by_handler, uninterrupted

# Attributes of Numba's templates that hold the Python function of a declaration.
_DEFINITIONS = ("_overload_func", "_definition_func")
# Packages with declarations of their own. The version of the package identifies these declarations.
_VERSIONED = ("numba.", "numba_cuda.", "xlakernel.core.")
# Functions that a kernel uses without naming them, as in `a @ b` and `x in y`, or through implementations in Numba.
_UNNAMED = [value for module in (operator, builtins) for value in vars(module).values() if callable(value)]


class Declarations:
    """The present declarations of users. An instance is the argument *implementations* of `fingerprint`.

    Args:
      target: the description of a Numba target, with its contexts.

    Attributes:
      met: Numba's templates (the classes that describe declarations) of the implementations found so far.
    """

    def __init__(self, target: Any) -> None:
        self.met: list[Any] = []
        self._target = target
        self._context = context = target.typing_context
        with uninterrupted():
            context.refresh()  # adds the declarations since the last compilation
        self._of_attributes: dict[str, list[Any]] = {}
        for templates in list(context._attributes.values()):
            for template in list(templates):
                self._of_attributes.setdefault(getattr(template, "_attr", None) or "", []).append(template)

    def __call__(self, what: Any) -> Iterator[Any]:
        """Yield the implementations of a function, with their options.

        Args:
          what: the function, the name of an attribute, or None for all operators, builtins and special methods.
        """
        if what is None:  # Numba's own implementations of builtins such as `hash` use special methods
            for name in sorted(name for name in self._of_attributes if name[:2] == "__"):
                yield from self(name)
        of_attribute = isinstance(what, str)
        for template in self._of_attributes.get(what, ()) if of_attribute else self._templates(what):
            _, function = definition_of(template)
            if function is None and not of_attribute and what is not None and _is_low_level(template):
                yield template  # cannot be compared: its lowering is found only by the types of a call
            if function is None or _is_versioned(function, what):
                continue
            if not of_attribute and not any(known is template for known in self.met):
                self.met.append(template)
            if function is not what:
                yield function, _options_of(template), template.key if of_attribute or what is None else None

    @contextlib.contextmanager
    def added_uninterrupted(self) -> Iterator[None]:
        """Delay signal handlers in this context while Numba adds the declarations since the last compilation."""
        with contextlib.ExitStack() as exits:
            for context in (self._context, self._target.target_context):
                if "refresh" not in vars(context):  # an enclosing compilation has replaced it already
                    context.refresh = _uninterrupted(context.refresh)
                    exits.callback(vars(context).pop, "refresh")
            yield

    @contextlib.contextmanager
    def internal_functions_anew(self) -> Iterator[None]:
        """Make low-level code of users, in an intrinsic for example, compile its functions anew in this context.

        Numba caches these functions by bytecode and closure cells, with the globals of the first compilation.
        """
        context = self._target.target_context
        kept = context.cached_internal_func
        context.cached_internal_func = _InternalFunctions(kept)
        try:
            yield
        finally:
            context.cached_internal_func = kept

    def declares(self, function: Any) -> bool:
        """Return True if Numba replaces *function* by an implementation."""
        return bool(self._templates(function))

    def of_module(self, module: types.ModuleType) -> bool:
        """Return True if attributes of *module* are declared."""
        # Not `Module(module) in …`: that calls `repr(module)`, which the module's `__getattr__` may make fail.
        return any(isinstance(known, Module) and known.pymod is module for known in self._context._attributes)

    def _templates(self, what: Any) -> Iterable[Any]:
        if what is None:
            known = [getattr(self._context._lookup_global(function), "templates", ()) for function in _UNNAMED]
            return [template for templates in known for template in _of_users(templates)]
        try:
            return getattr(self._context.resolve_value_type(what), "templates", ())
        except Exception as error:  # unknown to Numba, which raises many kinds of errors
            if is_raised_by_handler(error):
                raise
            return ()


class _InternalFunctions(dict[Any, Any]):
    """A cache of the functions that low-level code compiles, in which `get` never finds a user's function.

    Args:
      kept: Numba's cache, in which Numba's own functions stay. A key begins with a function's code object.
    """

    def __init__(self, kept: dict[Any, Any]) -> None:
        super().__init__()
        self._kept = kept

    def get(self, key: Any, default: Any = None) -> Any:
        return self._kept.get(key, default) if _is_of_numba(key[0]) else default

    def __getitem__(self, key: Any) -> Any:
        return self._kept[key] if _is_of_numba(key[0]) else super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _is_of_numba(key[0]):
            self._kept[key] = value
        else:
            super().__setitem__(key, value)


def _is_of_numba(code: types.CodeType) -> bool:
    packages = (sys.modules.get(name) for name in ("numba", "numba_cuda"))
    folders = tuple(folder + os.sep for package in packages for folder in getattr(package, "__path__", ()))
    return code.co_filename.startswith(folders)


def _uninterrupted(step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with uninterrupted():
            step()

    return run


def _options_of(template: Any) -> dict[str, Any]:
    """Return the options of a declaration: compile options, the target, and the treatment of literals."""
    inline = getattr(getattr(template, "_inline", None), "value", None)
    declared = {name: getattr(template, name, None) for name in ("_jit_options", "_strict", "prefer_literal")}
    return {**declared, "inline": inline, "metadata": dict(getattr(template, "metadata", None) or {})}


def definition_of(template: Any) -> tuple[str, Any]:
    """Return name and value of the template's attribute with a Python function; the value is None if there is none.

    Numba calls this function with the argument types of a call, and the function returns an implementation.
    """
    name = next((name for name in _DEFINITIONS if hasattr(template, name)), "")
    return name, getattr(template, name, None)


@functools.lru_cache(maxsize=4096)
def _of_users(templates: tuple[Any, ...]) -> list[Any]:
    """Return only those templates of an operator that users declare with a Python function; Numba declares tens."""
    defined = [(template, definition_of(template)[1]) for template in templates]
    return [template for template, function in defined if function and not _is_versioned(function, template.key)]


def _is_low_level(template: Any) -> bool:
    """Return True for a declaration of a user with ``infer_global`` or ``type_callable``."""
    cells = getattr(getattr(template, "generic", None), "__closure__", None) or ()
    authors = [*template.__mro__, *(cell.cell_contents for cell in cells)]
    modules = {f"{getattr(author, '__module__', None) or 'builtins'}." for author in authors}
    return not all(module.startswith((*_VERSIONED, "builtins.", "abc.")) for module in modules)


def _is_versioned(function: Any, what: Any) -> bool:
    """Return True for a declaration that the version of its package identifies (`_VERSIONED`)."""
    # Numba generates some functions from text. They have no ``__module__``, but their globals name a module.
    module = getattr(function, "__module__", None) or getattr(function, "__globals__", {}).get("__name__") or ""
    if not module.startswith(_VERSIONED):
        return False
    # A declaration by register_jitable is a function of Numba that returns the user's function.
    cells = getattr(function, "__closure__", None) or ()
    return not (module.endswith(".extending") and any(cell.cell_contents is what for cell in cells))
