"""Copies of a kernel and of every helper that it refers to. The copies are compiled for handlers.

Numba freezes a function's references at the first compilation: a compiled helper keeps older values of its
globals, closure cells and helpers, and a file in Numba's cache may have still older ones. So a kernel is never compiled
against the dispatchers, ufuncs, stencils and C callbacks of the user. Each of them is copied, with a namespace in which
all helpers are copies as well. The copy of a helper is stored by the fingerprint of its present content, so that all
kernels share one compilation.

Implementations that users declare with ``numba.overload`` and similar functions cannot be copied, because Numba finds
them by the identity of the declared function. While a kernel is compiled, the implementations' caches are replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...identity.fingerprint import Examination, examine
from ...identity.snapshot import with_items
from ...interrupts import uninterrupted
from ..compile_error import is_of_numba
from ..compiler import Compiler, Finish, FunctionKind
from ..declarations import definition_of
from .constants import private_arrays
from .modules import ModuleCopy, reading
from .signals import signals_before_python
from .valued_types import has_value

# Packages with special support in Numba.
_COMPILED_SPECIALLY = ("numba", "numba_cuda", "numpy", "math", "cmath", "operator", "random", "scipy")

# The caches of earlier compilations in Numba's templates of declared implementations.
_CACHES = ("_impl_cache", "_compiled_overloads", "_inline_overloads", "_overload_cache")


@dataclasses.dataclass
class _Kept:
    """A copy, the outstanding compilation of its declared signatures, and the copies that it refers to."""

    made: Any
    finish: Finish | None
    below: list[_Kept]


# The shared copies by content, place and options; never freed, because machine code calls them.
_helpers: dict[tuple[Any, ...], _Kept] = {}
_declared: dict[tuple[Any, ...], tuple[dict[str, Any], list[_Kept]]] = {}
# The kernels that are being compiled. Compilations nest, because a declaration may lower another kernel.
_compiling: list[OwnCopies] = []
# Abandoned copies and code, kept alive because machine code may call them.
_abandoned: list[Any] = []
# The dispatchers among the copies, including those of kernels.
_own: weakref.WeakSet[Any] = weakref.WeakSet()


def is_own(dispatcher: Any) -> bool:
    """Return True if only handlers call *dispatcher*."""
    return dispatcher in _own


class OwnCopies:
    """The copies of a kernel's Python function and of its helpers. The compiler's lock must be held.

    The copies refer to the values in the snapshot of *found*, which the fingerprint is computed from.

    Args:
      compiler: the compiler of the kernel.
      dispatcher: the user's dispatcher.
      found: the examination of the dispatcher. Its fingerprint names the code.
      options: further compile options of helpers.

    Attributes:
      function: a copy of the kernel's Python function; `fill` completes it.
    """

    def __init__(
        self, compiler: Compiler, dispatcher: Any, found: Examination, options: Mapping[str, Any] | None = None
    ) -> None:
        self._compiler = compiler
        self._snapshot = found.snapshot
        self._options = dict(options or {})
        self._have_entries = found.has_object_mode  # Python calls helpers in ``objmode`` blocks
        self._variant = (*self._options.items(), self._have_entries)
        self._declarations = compiler.declarations()
        self._names = self._examine(dispatcher).names  # collects the declarations
        self._modules: dict[int, types.ModuleType] = {}
        self._kept: dict[int, _Kept] = {}  # by the original's identity: functions may call each other
        self._top: list[_Kept] = []
        self._level = self._top
        with _abandoning_after_failure(), reading(self._snapshot):
            self.function, self._fill_kernel = self._copy(dispatcher.py_func)
        self._original = dispatcher

    @property
    def declared_options(self) -> list[Mapping[str, Any]]:
        """The compile options of the declared implementations that the kernel may use."""
        return [getattr(template, "_jit_options", None) or {} for template in self._declarations.met]

    def fill(self, own: Any) -> None:
        """Complete the namespace of `function`, in which *own* replaces the user's dispatcher."""
        _own.add(own)
        self._kept[id(self._original)] = _Kept(own, None, [])
        with _abandoning_after_failure(), reading(self._snapshot):
            self._fill_kernel()
        del self._original, self._fill_kernel  # not needed any more; this object lives as long as *own*

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Make Numba use copies of declared implementations and arrays, and handle signals before Python runs."""
        with _abandoning_after_failure(), reading(self._snapshot):
            states = [(template, self._state_of(template)) for template in self._declarations.met]
        before = [(template, {name: vars(template)[name] for name in state}) for template, state in states]
        try:
            with uninterrupted():
                _compiling.append(self)
                _set_all(states)
            with (
                _abandoning_after_failure(),
                reading(self._snapshot),
                self._declarations.added_uninterrupted(),
                self._declarations.internal_functions_anew(),
                private_arrays(self._compiler.context, self._snapshot.array),
                signals_before_python(),
            ):
                _finish(self._top)
                yield
        finally:
            with uninterrupted():
                if self in _compiling:  # otherwise a signal came before the replacement
                    _compiling.remove(self)
                _set_all(before)
                if not _compiling:
                    _drop_code_for_values()

    def _examine(self, function: Any, options: Mapping[str, Any] | None = None) -> Examination:
        return examine(function, options, self._declarations, snapshot=self._snapshot)

    def _state_of(self, template: Any) -> dict[str, Any]:
        """Return the attributes of *template* during the compilation of a kernel."""
        name, function = definition_of(template)
        key = (template, self._content_of(function), self._variant)
        if key not in _declared:
            outer, self._level = self._level, []
            copy, fill = self._copy(function, defines=template.key)
            fill()
            state = {name: staticmethod(copy), **{cache: {} for cache in _CACHES if cache in vars(template)}}
            below, self._level = self._level, outer
            _declared[key] = state, below
        state, below = _declared[key]
        self._top += below
        return state

    def _content_of(self, helper: Any) -> str:
        options = self._compiler.environment()
        return examine(helper, options, self._compiler.declarations(), snapshot=self._snapshot).digest

    def _helper(self, original: Any, helper: FunctionKind) -> Any:
        kept = self._kept.get(id(original)) or self._shared(original, helper)
        self._kept[id(original)] = kept
        self._level.append(kept)
        return kept.made

    def _shared(self, original: Any, helper: FunctionKind) -> _Kept:
        function = helper.parts(original)[0]
        place = function.__code__.co_filename, function.__code__.co_firstlineno
        key = (self._content_of(original), *place, self._variant)
        if key not in _helpers:
            _helpers[key] = self._make(original, function, helper)
        return _helpers[key]

    def _make(self, original: Any, function: types.FunctionType, helper: FunctionKind) -> _Kept:
        copied, fill = self._copy(function)
        kept = _Kept(None, None, [])
        outer, self._level = self._level, kept.below
        try:
            if helper.filled:
                fill()
            kept.made, kept.finish = helper.copy(original, copied)
            added = {name: value for name, value in vars(original).items() if name[:1] != "_"}  # for overloads
            vars(kept.made).update({name: value for name, value in added.items() if name not in vars(kept.made)})
            self._kept[id(original)] = kept
            if not helper.filled:
                fill()
        finally:
            self._level = outer
        if hasattr(kept.made, "overloads"):  # a dispatcher
            kept.made.targetoptions.update(self._options)
            if not self._have_entries and helper.signatures(original) is None:
                self._compiler.without_entry(kept.made)
            _own.add(kept.made)
        return kept

    def _copy(
        self, function: types.FunctionType, *, defines: Any = None
    ) -> tuple[types.FunctionType, Callable[[], None]]:
        """Return a copy of *function*, and a function that adds copies of the helpers to the namespace of the copy.

        Args:
          function: the original.
          defines: the function for which *function* returns implementations; None: *function* itself is compiled.
        """
        refers = self._snapshot.references(function)
        # The copy has only the names in use: all names would keep the module's arrays alive as long as the code.
        module = function.__globals__
        special = [name for name in list(module) if name[:2] == "__"]  # another thread may add a name
        space = {name: module[name] for name in special if name in module} | refers.globals
        cells = tuple(types.CellType() for _ in refers.cells)
        copied = types.FunctionType(function.__code__, space, function.__name__, refers.defaults, cells or None)
        copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
        vars(copied).update(vars(function))
        if refers.defaults:  # read by the constructor of a dispatcher
            copied.__defaults__ = tuple(self._value(value) for value in refers.defaults)
        if refers.keyword_defaults:
            copied.__kwdefaults__ = {name: self._value(value) for name, value in refers.keyword_defaults.items()}

        def fill() -> None:
            for name, value in refers.globals.items():
                space[name] = self._value(value, defines)
            for cell, own in zip(refers.cells, cells, strict=True):
                with contextlib.suppress(ValueError):  # an unbound cell stays unbound
                    own.cell_contents = self._value(cell.cell_contents, defines)

        return copied, fill

    def _value(self, value: Any, defines: Any = None) -> Any:
        """Return *value*, with copies of the helpers in it."""
        if id(value) in self._kept:
            kept = self._kept[id(value)]
            self._level.append(kept)
            return kept.made
        for helper in self._compiler.helpers:
            if isinstance(value, helper.kind):
                return self._helper(value, helper)
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return with_items(value, [self._value(item, defines) for item in tuple.__iter__(value)])
        if isinstance(value, types.ModuleType):
            return self._module(value)
        # Mutable objects: records, and the arrays and containers that a declaration reads when Numba runs it.
        if isinstance(value, np.void) or (defines is not None and isinstance(value, (np.ndarray, list, dict, set))):
            return self._snapshot.frozen(value)
        if defines is not None and isinstance(value, types.FunctionType):
            return self._implementation(value, defines)
        return value

    def _implementation(self, function: types.FunctionType, defines: Any) -> Any:
        """Return a copy of a function that a definition refers to, or *function* itself if Numba replaces it."""
        if function is defines:  # register_jitable declares a function as its own implementation
            copied, fill = self._copy(function)
        elif _package(function.__module__) in _COMPILED_SPECIALLY or self._declarations.declares(function):
            return function
        else:
            copied, fill = self._copy(function, defines=defines)
            self._kept[id(function)] = _Kept(copied, None, [])
        fill()
        return copied

    def _module(self, module: types.ModuleType) -> types.ModuleType:
        """Return a module with copies of the helpers of *module*, and otherwise with the attributes of *module*.

        Numba identifies modules by identity, so a helper with a module as argument is compiled for each copy.
        """
        present = self._snapshot.attributes(module, self._names)
        if not present or _package(module.__name__) in _COMPILED_SPECIALLY or self._declarations.of_module(module):
            return module
        if id(module) not in self._modules:
            self._modules[id(module)] = made = ModuleCopy(module)  # modules may import each other
            for name, value in present.items():
                frozen = self._snapshot.frozen(value)
                if (own := self._value(frozen)) is not frozen:
                    vars(made)[name] = own
        return self._modules[id(module)]


@contextlib.contextmanager
def _abandoning_after_failure() -> Iterator[None]:
    """Abandon all copies after an exception that is not of Numba's compiler, for example of a signal handler.

    Such an exception may leave a copy without a part that Numba adds only once, for example a ufunc without the library
    of its loop. Numba would then compile callers without the loop. Other copies may refer to the incomplete copy.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) or not is_of_numba(error):
            _abandoned.extend((*_helpers.values(), *_declared.values()))
            _helpers.clear()
            _declared.clear()
        raise


def _drop_code_for_values() -> None:
    """Drop the code of shared copies for argument types that contain values, because fingerprints lack these values.

    For example, a helper ``apply(f, x)`` is compiled for a function *f* with the globals that one kernel saw. The next
    kernel may see others.
    """
    caches = [getattr(kept.made, "overloads", None) for kept in _helpers.values() if _may_compile(kept.made)]
    caches += [state.get(name) for state, _ in _declared.values() for name in _CACHES]
    for cache in filter(None, caches):
        _abandoned.extend([cache.pop(key) for key in list(cache) if has_value(key)])


def _may_compile(made: Any) -> bool:
    """Return False for a dispatcher with declared signatures, which compiles no others."""
    return bool(getattr(made, "_can_compile", False))


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _set_all(states: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
    for template, state in states:
        for name, value in state.items():
            setattr(template, name, value)


def _finish(level: Iterable[_Kept]) -> None:
    """Compile the outstanding declared signatures, first of the copies that a copy refers to, then of the copy."""
    for kept in level:
        finish, kept.finish = kept.finish, None  # a helper below may call this copy
        below, kept.below = kept.below, []
        try:
            _finish(below)
            if finish is not None:
                finish(kept.made)
        except BaseException:
            kept.finish, kept.below = finish, below
            raise
