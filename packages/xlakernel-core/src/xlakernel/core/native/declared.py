"""Implementations that users declare for functions, methods and attributes, as Numba's typing contexts know them.

``numba.overload`` and ``register_jitable`` declare them for a function, ``overload_method`` and ``overload_attribute``
for a name on a type, and ``intrinsic`` for itself.
"""

from __future__ import annotations

import builtins
import functools
import operator
import types
from collections.abc import Iterable, Iterator
from typing import Any

from numba.core.types.misc import Module

from .interrupts import uninterrupted

# Attributes of Numba's templates that hold the Python function of a declaration.
_DEFINITIONS = ("_overload_func", "_definition_func")
# Packages with declarations of their own, which are known by their versions.
_VERSIONED = ("numba.", "numba_cuda.", "xlakernel.core.")
# Functions that a kernel uses without naming them: `a @ b`, `x in y`, or in what Numba puts in place of another one.
_UNNAMED = [value for module in (operator, builtins) for value in vars(module).values() if callable(value)]


class Declarations:
    """What users have declared so far; a function that finds what `fingerprint` takes as implementations.

    Args:
      target: the description of one of Numba's targets, with its contexts.

    Attributes:
      met: the templates of the implementations that were found.
    """

    def __init__(self, target: Any) -> None:
        self.met: list[Any] = []
        self._target = target
        self._context = context = target.typing_context
        with uninterrupted():
            context.refresh()  # of what was declared since the last compilation
        self._of_attributes: dict[str, list[Any]] = {}
        for templates in list(context._attributes.values()):
            for template in list(templates):
                self._of_attributes.setdefault(getattr(template, "_attr", None) or "", []).append(template)

    def __call__(self, what: Any) -> Iterator[Any]:
        """Yield the implementations of a function, with the options that they have.

        Args:
          what: the function; or an attribute's name; or None, for all operators and builtins.
        """
        of_attribute = isinstance(what, str)
        for template in self._of_attributes.get(what, ()) if of_attribute else self._templates(what):
            _, function = definition_of(template)
            if function is None and not of_attribute and what is not None and _is_low_level(template):
                yield template  # which cannot be compared: what lowers it is found only for the types of a call
            if function is None or _is_versioned(function, what):
                continue
            if not of_attribute and not any(known is template for known in self.met):
                self.met.append(template)
            if function is not what:
                inline = getattr(getattr(template, "_inline", None), "value", None)
                yield function, dict(getattr(template, "_jit_options", None) or {}), inline

    def load(self) -> None:
        """Do what Numba's compiler does when it begins, and cannot do again if it is interrupted."""
        with uninterrupted():
            self._target.target_context.refresh()

    def declares(self, function: Any) -> bool:
        """Return True if Numba takes something else in place of *function*."""
        return bool(self._templates(function))

    def of_module(self, module: types.ModuleType) -> bool:
        """Return True if attributes of the very *module* are declared."""
        return Module(module) in self._context._attributes

    def _templates(self, what: Any) -> Iterable[Any]:
        if what is None:
            known = [getattr(self._context._lookup_global(function), "templates", ()) for function in _UNNAMED]
            return [template for templates in known for template in _of_users(templates)]
        try:
            return getattr(self._context.resolve_value_type(what), "templates", ())
        except Exception:  # noqa: BLE001  # no value to Numba, whose errors for it are of many kinds
            return ()


def definition_of(template: Any) -> tuple[str, Any]:
    """Return the name and value of the attribute that holds a template's Python function; None as value: it has none.

    Such a function is called for the types of each call, and returns an implementation.
    """
    name = next((name for name in _DEFINITIONS if hasattr(template, name)), "")
    return name, getattr(template, name, None)


@functools.lru_cache(maxsize=4096)
def _of_users(templates: tuple[Any, ...]) -> list[Any]:
    """Return those of an operator's *templates*, some tens of Numba's, that users declare with a Python function."""
    defined = [(template, definition_of(template)[1]) for template in templates]
    return [template for template, function in defined if function and not _is_versioned(function, template.key)]


def _is_low_level(template: Any) -> bool:
    """Return True for what users declare with ``infer_global`` or ``type_callable``."""
    cells = getattr(getattr(template, "generic", None), "__closure__", None) or ()
    authors = [*template.__mro__, *(cell.cell_contents for cell in cells)]
    modules = {f"{getattr(author, '__module__', None) or 'builtins'}." for author in authors}
    return not all(module.startswith((*_VERSIONED, "builtins.", "abc.")) for module in modules)


def _is_versioned(function: Any, what: Any) -> bool:
    """Return True for a declaration that a package's version says enough of; some are made late."""
    # Numba wraps functions that it makes of text and that have no module.
    module = getattr(function, "__module__", None) or getattr(function, "__globals__", {}).get("__name__") or ""
    if not module.startswith(_VERSIONED):
        return False
    # What register_jitable declares is a function of Numba's, too, and returns the user's.
    cells = getattr(function, "__closure__", None) or ()
    return not (module.endswith(".extending") and any(cell.cell_contents is what for cell in cells))
