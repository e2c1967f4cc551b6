"""Values of the names in Warp's functions, read once for the hash of a module and for its code.

Warp reads globals, variables of enclosing functions and attributes twice: when it hashes a module and when it generates
the code. If one is assigned in between, by another thread or between the definition of a kernel with
``module="unique"`` and its first launch, the code is stored in memory and on disk under the hash of other values, and a
kernel that has these values runs it. Here the code is generated from the values that were hashed.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import warp

from .lock import lock

_Method = Callable[..., Any]
_ABSENT = object()

_thread = threading.local()


class _Reading:
    """The values that a module's functions refer to, each read when it is first asked for.

    Attributes:
      hashers: the module's dict of hashes, which Warp replaces when a kernel or function is added.
      is_final: True once a program was lowered, or code loaded, with these values.
      deferred: the functions with ``wp.static`` expressions that Warp evaluates when it generates code.
      block_dim: the size of blocks that the module is hashed for.
      unreached: functions, each with a size of blocks, whose expressions are in code that is not generated.
      evaluates: True while Warp generates code in order to evaluate the expressions.
    """

    def __init__(self, hashers: Any) -> None:
        self.hashers = hashers
        self.is_final = self.evaluates = False
        self.deferred: set[Any] = set()
        self.block_dim: int | None = None
        self.unreached: set[tuple[Any, int | None]] = set()
        self._names: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._statics: dict[tuple[Any, int | None], dict[str, tuple[Any, str]]] = {}
        self._namespaces: dict[int, _Namespace] = {}

    def name(self, function: Any, name: str, read: Callable[[], Any]) -> Any:
        """Return the object that a name in a function is bound to outside of it."""
        free = function.__code__.co_freevars
        owner = function.__closure__[free.index(name)] if name in free else function.__globals__
        if (id(owner), name) not in self._names:
            self._names[id(owner), name] = owner, self.kept(read())
        return self._names[id(owner), name][1]

    def static(self, adjoint: Any, place: str, evaluate: Callable[[], tuple[Any, str]]) -> tuple[Any, str]:
        """Return value and text of an expression that Warp evaluates when it generates code."""
        known = self._statics.setdefault((adjoint.func, adjoint.builder_options.get("block_dim")), {})
        if place not in known:
            value, text = evaluate()
            known[place] = self.kept(value), text
        return known[place]

    def statics(self, function: Any) -> list[tuple[str, Any]]:
        """Return place and value of the expressions that were evaluated in the code of a function."""
        known = self._statics.get((function, self.block_dim), {})
        return [(place, value) for place, (value, _) in sorted(known.items())]

    def unknown(self) -> set[tuple[Any, int | None]]:
        """Return the functions whose expressions have not been evaluated, each with the size of blocks."""
        return {(function, self.block_dim) for function in self.deferred} - self._statics.keys() - self.unreached

    def kept(self, value: Any) -> Any:
        """Return a value that no assignment changes: a copy of a vector or matrix, a `_Namespace` for a module."""
        if hasattr(value, "_wp_scalar_type_") and not isinstance(value, type):
            return copy.copy(value)
        if not _is_namespace(value):
            return value
        if id(value) not in self._namespaces:
            self._namespaces[id(value)] = _Namespace(self, value)
        return self._namespaces[id(value)]


class _Namespace(types.ModuleType):
    """A module or class, each attribute of which is read once. Warp accepts modules and classes alike."""

    def __init__(self, reading: _Reading, origin: Any) -> None:
        super().__init__(origin.__name__)
        vars(self)["_xlakernel"] = reading, origin, {}

    def __getattr__(self, name: str) -> Any:
        reading, origin, known = vars(self)["_xlakernel"]
        if name not in known:
            known[name] = reading.kept(getattr(origin, name, _ABSENT))
        if known[name] is _ABSENT:
            raise AttributeError(f"{origin.__name__} has no attribute {name!r}")
        return known[name]


def _is_namespace(value: Any) -> bool:
    """Return True for modules and classes of users, whose attributes a kernel can name."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] != "warp"
    if not isinstance(value, type) or value.__module__.partition(".")[0] in ("builtins", "numpy", "warp"):
        return False
    return not (warp.types.type_is_value(value) or hasattr(value, "_wp_scalar_type_"))


# Hashes of the kernels of modules that were not among Warp's when they were first hashed: those of ``"unique"``
# kernels, which Warp then names by the hash.
_named: weakref.WeakKeyDictionary[Any, frozenset[bytes]] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def _known(module: Any) -> _Reading | None:
    """Return the values read for a module's present hashes."""
    known: _Reading | None = getattr(module, "_xlakernel_reading", None)
    return known if known is not None and known.hashers is module.hashers else None


@contextmanager
def _reading(module: Any) -> Iterator[_Reading]:
    """Have this thread read the references of a module's functions once, until Warp hashes the module again."""
    known = _known(module)
    if known is None:
        known = module._xlakernel_reading = _Reading(module.hashers)
    with _used(known):
        yield known


@contextmanager
def _used(reading: _Reading) -> Iterator[_Reading]:
    before = getattr(_thread, "reading", None)
    _thread.reading = reading
    try:
        yield reading
    finally:
        _thread.reading = before


@contextmanager
def read_anew(module: Any, options: dict[str, Any]) -> Iterator[None]:
    """Have this thread read present values in this context; *options* are those that the module is compiled with."""
    known = _known(module)
    with _used(_Reading(None)) as reading:
        reading.block_dim = options["block_dim"]
        if known is not None and known.deferred:
            _evaluate(module, options, reading)
        yield


def _evaluate(module: Any, options: dict[str, Any], reading: _Reading) -> None:
    """Evaluate the expressions that Warp evaluates when it generates code."""
    from warp._src import context

    live = list(module._get_live_kernels())
    hashes = [(one, one.hash) for kernel in live for one in (kernel, *kernel.overloads.values())]
    hashers = module.hashers, module.resolved_options
    reading.evaluates = True
    try:
        context.ModuleBuilder(module, options | {"output_arch": None})
    finally:
        reading.evaluates = False
        module.hashers, module.resolved_options = hashers  # others if an expression defined a function
        for kernel, digest in hashes:
            kernel.hash = digest
    reading.unreached |= reading.unknown()


def settle(module: Any) -> None:
    """Read the references of a module anew, unless a program was lowered or code loaded with the known values."""
    with lock:
        known = _known(module)
        if known is None or not known.is_final:
            module.hashers.clear()
            module._xlakernel_reading = known = _Reading(module.hashers)
        known.is_final = True


def reading(method: _Method) -> _Method:
    """Return a method of Warp's ``Module`` that reads references once."""

    @functools.wraps(method)
    def read(module: Any, *args: Any, **options: Any) -> Any:
        with lock, _reading(module):
            return method(module, *args, **options)

    return read


def resolving(resolve: _Method) -> _Method:
    """Return Warp's ``Adjoint.resolve_external_reference`` with the values that are read once."""

    @functools.wraps(resolve)
    def resolved(adjoint: Any, name: str) -> Any:
        known: _Reading | None = getattr(_thread, "reading", None)
        read = functools.partial(resolve, adjoint, name)
        return read() if known is None else known.name(adjoint.func, name, read)

    return resolved


def evaluating(evaluate: _Method) -> _Method:
    """Return Warp's ``Adjoint.evaluate_static_expression``, which evaluates each expression in generated code once."""

    @functools.wraps(evaluate)
    def evaluated(adjoint: Any, node: ast.Call) -> tuple[Any, str]:
        known: _Reading | None = getattr(_thread, "reading", None)
        work = functools.partial(evaluate, adjoint, node)
        is_defined = hasattr(adjoint, "builder_options")  # before, Warp evaluates what it can at the definition
        return work() if known is None or not is_defined else known.static(adjoint, _place(adjoint, node), work)

    return evaluated


def _place(adjoint: Any, node: ast.Call) -> str:
    """Return an expression with the constants, and lengths of variables, that its value depends on."""
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & adjoint.symbols.keys()
    variables = [adjoint.symbols[name] for name in sorted(named)]
    found = [(repr(getattr(one, "constant", None)), _length(getattr(one, "type", None))) for one in variables]
    return f"{node.lineno}:{node.col_offset} {ast.unparse(node)} {found}"


def _length(kind: Any) -> int | None:
    try:
        return int(warp.types.type_length(kind))
    except Exception:  # noqa: BLE001  # a type without a length; Warp ignores all errors here, too
        return None


def statics(adjoint: Any) -> list[tuple[str, Any]]:
    """Return place and value of the ``wp.static`` expressions that were evaluated in the generated code."""
    known: _Reading | None = getattr(_thread, "reading", None)
    if known is None:
        return []
    if adjoint.has_unresolved_static_expressions:
        known.deferred.add(adjoint.func)
        if known.evaluates:  # Warp generates the code of one of several functions of equal hash
            return [("", str(id(adjoint.func)))]
    return known.statics(adjoint.func)


def hashing(get_module_hash: _Method) -> _Method:
    """Return Warp's ``Module.get_module_hash`` for values that are read once.

    The hash depends on ``wp.static`` expressions that Warp evaluates when it generates code, of all functions. A
    ``"unique"`` kernel whose values changed is not returned for another definition.
    """

    def hash_of(module: Any, block_dim: int | None) -> Any:
        module.has_unresolved_static_expressions = False  # they are evaluated here
        return get_module_hash(module, block_dim)

    @functools.wraps(get_module_hash)
    def hashed(module: Any, block_dim: int | None = None) -> Any:
        with lock, _reading(module) as known:
            known.block_dim = module.options["block_dim"] if block_dim is None else block_dim
            digest = hash_of(module, block_dim)
            while known.unknown():
                options = module.resolved_options[known.block_dim]
                try:
                    _evaluate(module, options, known)
                except Exception:
                    module.mark_modified()  # with the values of some expressions, the hash would be a wrong one
                    raise
                del module.hashers[known.block_dim]
                digest = hash_of(module, block_dim)
            _name_anew(module, frozenset(module.hashers[known.block_dim].unique_kernels))
            return digest

    return hashed


def loading(load: _Method) -> _Method:
    """Return Warp's ``Module.load``, which reads references anew if neither a program nor loaded code has them."""
    load = reading(load)

    @functools.wraps(load)
    def loaded(module: Any, *args: Any, **options: Any) -> Any:
        with lock:
            settle(module)
            return load(module, *args, **options)

    return loaded


def _name_anew(module: Any, kernels: frozenset[bytes]) -> None:
    """Rename a module whose kernels are no longer those that its name is a hash of."""
    from warp._src import context

    if context.user_modules.get(module.name) is not module:
        _named.setdefault(module, kernels)
        return
    named = _named.get(module)
    if named is not None and not (named and named <= kernels):
        del _named[module]
        _rename(module)


def rename_unique() -> None:
    """Rename the modules of ``"unique"`` kernels: it is not known what their names are a hash of."""
    from warp._src import context

    for name, module in list(context.user_modules.items()):
        if any(re.fullmatch(re.escape(f"{key}_") + "[0-9a-f]{8}", name) for key in module.kernels):
            _rename(module)


def _rename(module: Any) -> None:
    """Give a module a name that no other has: Warp returns the kernel of a module with the name of a new one."""
    from warp._src import context

    del context.user_modules[module.name]
    module.name = f"{module.name}_{next(_numbers)}"
    context.user_modules[module.name] = module
