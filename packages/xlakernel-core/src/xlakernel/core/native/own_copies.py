"""Copies of a kernel and of every helper that it refers to, for compilations of our own.

Numba freezes what a function refers to when it first compiles it: a helper that was compiled before keeps older values
of its globals, closure cells and helpers, and a file that Numba keeps of it may be older still. So a kernel is never
compiled against the dispatchers, ufuncs, stencils and C callbacks that a user holds. Each of them is copied, with a
namespace in which all helpers are copies too. The copy of a helper is kept by the fingerprint of its present content,
so that it is compiled once, whatever kernels call it.

Implementations that users declare with ``numba.overload`` and its like cannot be copied, because Numba finds them by
the identity of what they stand for. While a kernel is compiled, Numba is given other caches of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..errors import CompileError
from ..identity.fingerprint import examine, fingerprint
from ..identity.names import names_in
from .compiler import Compiler, Finish, Helper
from .declared import definition_of

_Built = TypeVar("_Built")
_ATTEMPTS = 10

# Modules that Numba itself knows.
_COMPILED_SPECIALLY = ("numba", "numba_cuda", "numpy", "math", "cmath", "operator", "random", "scipy")

# What Numba's templates of user-declared implementations remember of earlier compilations.
_CACHES = ("_impl_cache", "_compiled_overloads", "_inline_overloads", "_overload_cache")


@dataclasses.dataclass
class _Kept:
    """A copy, what is left to be done for it, and the copies that it refers to."""

    made: Any
    finish: Finish | None
    below: list[_Kept]


# By content and place; never freed, as machine code calls them.
_helpers: dict[tuple[Any, ...], _Kept] = {}
_declared: dict[tuple[Any, ...], tuple[dict[str, Any], list[_Kept]]] = {}
# The dispatchers among the copies, those of kernels too.
_own: weakref.WeakSet[Any] = weakref.WeakSet()


def is_own(dispatcher: Any) -> bool:
    """Return whether only handlers call *dispatcher*."""
    return dispatcher in _own


class ChangedError(CompileError):
    """Another thread changed what a kernel refers to, after its fingerprint was taken."""


def changed(name: str) -> ChangedError:
    """Return the error of a kernel or a helper of this name."""
    return ChangedError(
        f"{name}: something that it refers to, a global or a helper, changes in another thread while it is compiled. "
        "Change it before, or pass it as an argument."
    )


def until_unchanged(build: Callable[[], _Built]) -> _Built:
    """Return what *build* returns; it is called again where another thread changes what it copies."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(ChangedError):
            return build()
    return build()


class OwnCopies:
    """The copies of a kernel's Python function and of its helpers. The compiler's lock is to be held.

    Args:
      compiler: the kernel's.
      dispatcher: the user's.
      options: what helpers are compiled with besides their own options; copies with options are not shared with other
        kernels.

    Attributes:
      content: the kernel's fingerprint.
      function: a copy of its Python function; `fill` completes it.
    """

    def __init__(self, compiler: Compiler, dispatcher: Any, options: Mapping[str, Any] | None = None) -> None:
        self._compiler = compiler
        self.content = compiler.fingerprint(dispatcher)
        self._dispatcher = weakref.ref(dispatcher)
        self._options = dict(options or {})
        self._declarations = compiler.declarations()
        self._declarations.load()
        self._names = examine(dispatcher, None, self._declarations).names  # which meets all that is declared
        self._modules: dict[int, types.ModuleType] = {}
        self._kept: dict[int, _Kept] = {}  # by the original's identity: functions may call each other
        self._top: list[_Kept] = []
        self._level = self._top
        self.function, self._fill_kernel = self._copy(dispatcher.py_func)
        self._original = dispatcher

    def fill(self, own: Any) -> None:
        """Complete the namespace of `function`, where *own* stands for the user's dispatcher.

        Raises:
          ChangedError: if the copies may have other values than the fingerprint.
        """
        _own.add(own)
        self._kept[id(self._original)] = _Kept(own, None, [])
        self._fill_kernel()
        self._check_unchanged()
        del self._original, self._fill_kernel  # these copies live as long as *own*

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Let Numba compile the kernel in this context, with implementations of present content.

        Raises:
          ChangedError: if the copies may have other values than the fingerprint.
        """
        states = [(template, self._state_of(template)) for template in self._declarations.met]
        before = [(template, {name: vars(template)[name] for name in state}) for template, state in states]
        if not self._options:  # with these, Numba may be given other implementations by now, as in debug mode
            self._check_unchanged()
        try:
            _set_all(states)
            _finish(self._top)
            yield
        finally:
            _set_all(before)

    def _check_unchanged(self) -> None:
        """Raise `ChangedError` if the copies may have other values than the fingerprint."""
        dispatcher = self._dispatcher()
        if dispatcher is not None and self._compiler.fingerprint(dispatcher) != self.content:
            raise changed(dispatcher.py_func.__name__)

    def _state_of(self, template: Any) -> dict[str, Any]:
        """Return the attributes that *template* has while a kernel of ours is compiled."""
        name, function = definition_of(template)
        key = (template, self._content(function))
        if self._options or key not in _declared:
            outer, self._level = self._level, []
            copy, fill = self._copy(function, defines=template.key)
            fill()
            state = {name: staticmethod(copy), **{cache: {} for cache in _CACHES if cache in vars(template)}}
            below, self._level = self._level, outer
            if self._options:
                self._top += below
                return state
            if self._content(function) != key[1]:
                raise changed(name)
            _declared[key] = state, below
        state, below = _declared[key]
        self._top += below
        return state

    def _content(self, helper: Any) -> str:
        options = self._compiler.environment()
        return fingerprint(helper, options, self._compiler.declarations())

    def _helper(self, original: Any, helper: Helper) -> Any:
        kept = self._kept.get(id(original)) or self._shared(original, helper)
        self._kept[id(original)] = kept
        self._level.append(kept)
        return kept.made

    def _shared(self, original: Any, helper: Helper) -> _Kept:
        function = helper.function(original)
        if self._options:
            return self._make(original, function, helper, {})
        key = (self._content(original), function.__code__.co_filename, function.__code__.co_firstlineno)
        return _helpers.get(key) or self._make(original, function, helper, {key: None})

    def _make(
        self,
        original: Any,
        function: types.FunctionType,
        helper: Helper,
        keys: Iterable[tuple[Any, ...]],
    ) -> _Kept:
        copied, fill = self._copy(function)
        kept = _Kept(None, None, [])
        outer, self._level = self._level, kept.below
        try:
            if helper.filled:
                fill()
            kept.made, kept.finish = helper.make(original, copied, self._options)
            self._kept[id(original)] = kept
            if not helper.filled:
                fill()
        finally:
            self._level = outer
        if hasattr(kept.made, "overloads"):
            _own.add(kept.made)
        if any(key[0] != self._content(original) for key in keys):
            raise changed(function.__name__)
        _helpers.update(dict.fromkeys(keys, kept))
        return kept

    def _copy(
        self, function: types.FunctionType, *, defines: Any = None
    ) -> tuple[types.FunctionType, Callable[[], None]]:
        """Return a copy of *function*, and a function that puts the copies of its helpers into its namespace.

        Args:
          function: what is to be copied.
          defines: what *function* returns implementations of; None: it is compiled itself.
        """
        names = frozenset(names_in(function.__code__))
        # Not all of the module, which would keep its arrays alive as long as the code.
        space = {name: value for name, value in function.__globals__.items() if name in names or name[:2] == "__"}
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copied = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells or None)
        copied.__kwdefaults__ = function.__kwdefaults__
        copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
        if function.__defaults__:  # which a dispatcher reads as soon as it is made
            copied.__defaults__ = tuple(self._value(value) for value in function.__defaults__)

        def fill() -> None:
            for name in space.keys() & set(names_in(function.__code__)):
                space[name] = self._value(space[name], defines)
            for cell, own in zip(function.__closure__ or (), cells, strict=True):
                with contextlib.suppress(ValueError):  # a cell that is not bound yet stays so
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
            items = [self._value(item, defines) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if defines is not None and isinstance(value, types.FunctionType):
            return self._implementation(value, defines)
        return value

    def _implementation(self, function: types.FunctionType, defines: Any) -> Any:
        """Return a copy of what a definition refers to: Numba may compile it, unless something is declared for it."""
        if function is defines:  # register_jitable: it stands for itself
            copied, fill = self._copy(function)
        elif _package(function.__module__) in _COMPILED_SPECIALLY or self._declarations.declares(function):
            return function
        else:
            copied, fill = self._copy(function, defines=defines)
            self._kept[id(function)] = _Kept(copied, None, [])
        fill()
        return copied

    def _module(self, module: types.ModuleType) -> types.ModuleType:
        """Return a module with copies of the helpers in it, and the values that it has now.

        A helper that gets it as an argument is compiled for each such module: Numba tells them apart by identity.
        """
        names = self._names & vars(module).keys()
        if not names or _package(module.__name__) in _COMPILED_SPECIALLY or self._declarations.of_module(module):
            return module
        if id(module) not in self._modules:
            self._modules[id(module)] = made = types.ModuleType(module.__name__)
            vars(made).update({name: vars(module)[name] for name in names})  # modules may import each other
            vars(made).update({name: self._value(vars(module)[name]) for name in names})
        return self._modules[id(module)]


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _set_all(states: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
    for template, state in states:
        for name, value in state.items():
            setattr(template, name, value)


def _finish(level: Iterable[_Kept]) -> None:
    """Compile the declared signatures of copies, those below first, unless that was done."""
    for kept in level:
        finish, kept.finish = kept.finish, None  # a helper below may call it
        below, kept.below = kept.below, []
        try:
            _finish(below)
            if finish is not None:
                finish(kept.made)
        except BaseException:
            kept.finish, kept.below = finish, below
            raise
