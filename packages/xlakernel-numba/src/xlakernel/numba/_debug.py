"""Copies of a kernel and its helpers that check every index, for debug mode.

Numba takes a helper as it was compiled first, for whomever. So the kernel is copied with all njit functions that it
refers to, through globals, closure cells, tuples and attributes of modules, each into a new dispatcher with
``boundscheck=True``. Left as they are: helpers that declare their signatures, ufuncs, and what ``numba.overload`` and
``register_jitable`` put in place of other functions.
"""

from __future__ import annotations

import types
from typing import Any

from numba.core.dispatcher import Dispatcher

# Numba knows these modules themselves.
_COMPILED_SPECIALLY = ("numba", "numpy")


def checking_copies(dispatcher: Any) -> list[Any]:
    """Return a copy of *dispatcher* that checks its indices, and then those of the helpers that it refers to."""
    copies = _Copies()
    copies.dispatcher(dispatcher)
    return copies.dispatchers


class _Copies:
    def __init__(self) -> None:
        self.dispatchers: list[Any] = []
        self._made: dict[int, Any] = {}  # by the original's identity: functions may call each other
        self._entered: set[int] = set()

    def dispatcher(self, original: Any) -> Any:
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
                targetoptions={**original.targetoptions, "boundscheck": True},
                pipeline_class=original._compiler.pipeline_class,
            )
            self._made[id(original)] = made
            self.dispatchers.append(made)
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
            # One that compiles nothing more has the signatures that it declares.
            return self.dispatcher(value) if getattr(value, "_can_compile", True) else value
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
