"""Copies of a kernel and its helpers, to be compiled in another way than Numba would for others.

Numba takes a helper as it was compiled first, for whomever. So the kernel is copied with all njit functions that it
refers to, through globals, closure cells, tuples and attributes of modules, each into a new dispatcher: in debug mode
with ``boundscheck=True``, and where there are parallel loops so that these run on XLA's threads. Left as they are:
helpers that declare their signatures and have no parallel loops, ufuncs, and what ``numba.overload`` and
``register_jitable`` put in place of other functions.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from numba.core.dispatcher import Dispatcher

# Numba knows these modules themselves.
_COMPILED_SPECIALLY = ("numba", "numpy")


class Copies:
    """A copy of a kernel and of the helpers that it refers to.

    Args:
      dispatcher: the kernel.
      options: of Numba's, for the copies beside their own.

    Attributes:
      dispatchers: the copies, the kernel's first.
    """

    def __init__(self, dispatcher: Any, options: Mapping[str, Any]) -> None:
        self.dispatchers: list[Any] = []
        self._options = options
        self._declared: list[tuple[Any, Any]] = []
        self._made: dict[int, Any] = {}  # by the original's identity: functions may call each other
        self._entered: set[int] = set()
        self._copy(dispatcher)

    def compile_declared(self) -> None:
        """Compile those that declare their signatures, for which Numba compiles nothing later."""
        for copy, signatures in self._declared:
            for signature in signatures:
                copy.compile(signature)
            copy.disable_compile()

    def _copy(self, original: Any) -> Any:
        if id(original) not in self._made:
            function = original.py_func
            namespace = dict(function.__globals__)
            cells = tuple(types.CellType() for _ in function.__closure__ or ())
            code = function.__code__
            copied = types.FunctionType(code, namespace, function.__name__, function.__defaults__, cells or None)
            copied.__kwdefaults__ = function.__kwdefaults__
            copied.__qualname__ = function.__qualname__
            made = type(original)(
                copied,
                locals=original.locals,
                targetoptions={**original.targetoptions, **self._options},
                pipeline_class=original._compiler.pipeline_class,
            )
            self._made[id(original)] = made
            self.dispatchers.append(made)
            if not original._can_compile:
                self._declared.append((made, original.nopython_signatures))
            names = _names(code)
            for name in names & namespace.keys():
                namespace[name] = self._value(namespace[name], names)
            for cell, own in zip(function.__closure__ or (), cells, strict=True):
                try:
                    own.cell_contents = self._value(cell.cell_contents, names)
                except ValueError:  # not bound yet: it stays so
                    continue
        return self._made[id(original)]

    def _value(self, value: Any, names: set[str]) -> Any:
        """Return *value*, with copies of the helpers in it, for a function that uses *names*."""
        if isinstance(value, Dispatcher):
            original: Any = value  # Numba's stubs lack most of it
            # One that compiles nothing more has the signatures that it declares.
            copied = original._can_compile or original.targetoptions.get("parallel")
            return self._copy(original) if copied else original
        if type(value) is tuple:
            items = tuple(self._value(item, names) for item in value)
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        if isinstance(value, types.ModuleType):
            return self._module(value, names)
        return value

    def _module(self, module: types.ModuleType, names: set[str]) -> types.ModuleType:
        """Return a module with copies of the helpers that *names* find in it; the module itself if there are none."""
        if id(module) in self._entered or module.__name__.partition(".")[0] in _COMPILED_SPECIALLY:
            return module
        self._entered.add(id(module))  # modules may import each other
        present = {name: vars(module)[name] for name in names & vars(module).keys()}
        copied = {name: self._value(value, names) for name, value in present.items()}
        self._entered.remove(id(module))
        if all(copied[name] is value for name, value in present.items()):
            return module
        made = types.ModuleType(module.__name__)
        vars(made).update({**vars(module), **copied})
        return made


def _names(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes that *code* uses, and the functions inside it."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
