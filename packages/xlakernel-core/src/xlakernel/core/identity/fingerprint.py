"""Content hash of a Python function with everything that it refers to.

Numba and similar compilers freeze the references of a function: globals, closure cells, attributes of modules and
helper functions are constants of the machine code. Two functions with the same fingerprint compile to the same code; a
name made from the fingerprint can therefore be registered once (`ffi.registry`) and looked up in a cache on disk.

The bytecode is hashed, not the source: the file that `inspect` reads may have been edited since the function was made,
and a name made from that source would stand for code that was never compiled. Line numbers are left out.
"""

from __future__ import annotations

import builtins
import ctypes
import dataclasses
import enum
import functools
import hashlib
import itertools
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .kinds import describe as describe_kind
from .literals import base_items, literal_writer
from .names import attributes_in, globals_in, imports_in
from .object_mode import mutable_objects, number_of
from .snapshot import Snapshot
from .user_classes import bases_of_user, class_body, is_class_of_user, own_attributes
from .versioned import (
    imported,
    is_numba_type,
    is_object_mode,
    is_versioned,
    may_change,
    python_function,
    qualified_name,
    settings,
    wraps_function,
)
from .wrapper_options import options_of

# Identity of an object of an unknown kind → a random number and the object. The number distinguishes the object from
# all others, also in other processes. The object is kept alive, so that no other object gets its identity.
_unknown: dict[int, tuple[str, Any]] = {}

# Name of a symbol → its address when a fingerprint first depended on it.
_addresses: dict[str, int | None] = {}

# Names of attributes that a compiler reads, besides special methods.
_READ = frozenset({"imag", "name", "real", "value", "_field_defaults", "_fields"})

Implementations = Callable[[types.FunctionType | str | None], Iterable[Any]]
Describe = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Examination:
    """The result of a walk over a function and everything that it refers to.

    Attributes:
      digest: the fingerprint, 32 hexadecimal digits.
      content: the fingerprint without the identities of objects that are used in Numba's object mode, for comparison
        with code of another process. Usually equal to the digest.
      unknown: objects of kinds that cannot be compared; they make the fingerprint different in every process.
      functions: the function and every function that it refers to, directly or not, each once.
      names: every name that may be the name of an attribute that one of the functions uses.
      hidden: objects that a compiler misses when it copies the references of functions. They are compiled functions in
        a list, dictionary or set, in a module of a versioned package (`versioned`), or from an import inside a
        function; and callable objects that may contain compiled functions, such as a result of ``functools.cache``.
      has_object_mode: True if one of the functions uses object mode, where Python runs a block of the function.
      owned: with object mode, the mutable objects in closure cells and default values, without compiled functions.
        Another process cannot find these objects by a name. Empty without object mode.
      snapshot: the references that the fingerprint covers.
    """

    digest: str
    content: str
    unknown: list[Any]
    functions: list[Any]
    names: frozenset[str]
    hidden: list[Any]
    has_object_mode: bool
    owned: list[Any]
    snapshot: Snapshot = dataclasses.field(compare=False)


def examine(
    function: Any,
    options: Mapping[str, Any] | None = None,
    implementations: Implementations = lambda _: (),
    describe: Describe = describe_kind,
    snapshot: Snapshot | None = None,
) -> Examination:
    """Walk over *function* and everything that it refers to.

    Args:
      function: a Python function, or a compiler's wrapper of one (an object with ``py_func``), about to be compiled
        together with its helpers.
      options: whatever else determines the machine code.
      implementations: returns the functions that the compiler uses in place of the argument. The argument is an object
        such as a function (``numba.overload``), the name of an attribute (``numba.extending.overload_method``), or None
        for all operators and builtins.
      describe: returns the value to hash in place of an object, such as a kernel of another library; or None.
      snapshot: the references that were read before; None: all are read now.
    """
    walk = _Walk(implementations, describe, snapshot)
    parts = itertools.chain(walk.value(dict(sorted((options or {}).items()))), walk.content(function))
    content = digest = _digest(parts)
    functions = [found for _, found in walk.functions.values()]
    if walk.has_object_mode and (number := number_of(content, [*walk.owned, *walk.globals])):
        digest = _digest([content.encode(), str(number).encode()])
    hidden = list(walk.hidden.values())
    # A compiled function is left out: its own references are in the list.
    owned = [value for value in mutable_objects(walk.owned) if walk.has_object_mode and not wraps_function(value)]
    names = frozenset(walk.names)
    found = digest, content, walk.unknown, functions, names, hidden, walk.has_object_mode, owned
    return Examination(*found, walk.snapshot)


def fingerprint(function: Any, options: Mapping[str, Any] | None = None, *arguments: Any, **more: Any) -> str:
    """Return the digest in the result of `examine`, which takes the same arguments."""
    return examine(function, options, *arguments, **more).digest


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())  # length-prefixed: ("ab", "c") and ("a", "bc") differ
        digest.update(part)
    return digest.hexdigest()[:32]


class _Walk:
    """A traversal that yields the parts to hash, and collects functions, modules, names and unknown objects."""

    def __init__(
        self,
        implementations: Implementations = lambda _: (),
        describe: Describe = describe_kind,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.implementations = implementations
        self.describe = describe
        self.snapshot = snapshot or Snapshot()
        self.unknown: list[Any] = []
        self.names: set[str] = set()
        self.owned: list[Any] = []  # the values of functions' closure cells and defaults
        self.globals: list[Any] = []  # the values of functions' globals
        self.has_object_mode = False
        self._classes: dict[int, type] = {}  # the user's classes, by identity
        # Identity of a function → its number in the order of the walk, and the function.
        self.functions: dict[int, tuple[int, Any]] = {}
        # The keys are the identity of an object, and whether it is hidden: the walk may find an object in both ways.
        self._modules: dict[tuple[int, bool], tuple[types.ModuleType, bool]] = {}
        self._walked: set[tuple[int, bool]] = set()
        self._expanded: dict[int, Any] = {}
        self._containers: dict[int, int] = {}  # the lists and dictionaries around the current value
        self.hidden: dict[int, Any] = {}
        self._is_hidden = False  # True while the current value is hidden

    def content(self, value: Any) -> Iterator[bytes]:
        """Yield the parts of *value*, and of the attributes and implementations that its functions use by name."""
        yield from self.value(value)
        yield from self._implementations(None)
        yield from self._attributes()
        yield from self._class_bodies()

    def _class_bodies(self) -> Iterator[bytes]:
        """Yield the parts of attributes of the user's classes that a function or a compiler may read."""
        done: set[tuple[int, str]] = set()
        while True:
            classes = sorted(self._classes.values(), key=qualified_name)  # found in the order of a set's items
            read = [
                (kind, name, item)
                for kind in classes
                for name, item in class_body(kind)
                if (id(kind), name) not in done and (name in self.names or name in _READ or name[:2] == "__")
            ]
            if not read:
                break
            done |= {(id(kind), name) for kind, name, _ in read}
            for kind, name, item in read:
                yield f"{qualified_name(kind)}.{name}".encode()
                yield from self._hidden(self.value(item))
            yield from self._attributes()  # that the methods use

    def value(self, value: Any) -> Iterator[bytes]:
        kind: Any = type(value)
        # A class that is made in a namespace without a name has no module.
        yield f"{getattr(kind, '__module__', None)}.{kind.__qualname__}".encode()
        if is_class_of_user(kind):
            yield from self._class(kind)
            yield from self._own_attributes(value)
        if isinstance(value, enum.Enum):
            yield _bases(kind)
            yield from self.value((value.name, value.value))
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != np.dtype(object):
            yield f"{value.dtype!r}{value.shape}{_layout(value)}".encode()
            yield (self.snapshot.array(value) if isinstance(value, (np.ndarray, np.void)) else value).tobytes()
        elif literal := literal_writer(kind):
            if isinstance(value, str):  # may name an attribute: `getattr(module, NAME)`
                self.names.add(value)
            yield literal(value)
        elif isinstance(value, slice):
            yield from self.value((value.start, value.stop, value.step))
        elif id(value) in self._containers:  # a list or dictionary that contains itself
            yield f"container {self._containers[id(value)]}".encode()
        elif isinstance(value, (list, dict)):
            self._containers[id(value)] = len(self._containers)
            yield from self._hidden(self._items(self.snapshot.container(value)))
            del self._containers[id(value)]
        elif isinstance(value, tuple):
            yield from self._items(value)
        elif isinstance(value, (set, frozenset)):
            items = base_items(self.snapshot.container(value) if isinstance(value, set) else value, set, frozenset)
            yield repr(sorted(_digest(self._hidden(self.value(item))) for item in items)).encode()
        elif isinstance(value, np.dtype):
            yield repr(value).encode()
        elif isinstance(value, types.CodeType):
            yield code_digest(value)
        elif isinstance(value, types.FunctionType) or wraps_function(value):
            described = self.describe(value)
            yield from self._function(value) if described is None else self.value(described)
        elif isinstance(value, type):
            yield from self._type(value)
            yield from self._implementations(value)
        elif isinstance(value, types.ModuleType):
            yield qualified_name(value).encode()
            self._modules[id(value), self._is_hidden] = value, self._is_hidden
        elif is_versioned(value):
            yield qualified_name(value).encode()
            yield from self._implementations(value)
        elif is_object_mode(value):
            self.has_object_mode = True
        elif is_numba_type(value):
            yield repr(value).encode()
            yield from self._external(value)
            if not kind.__module__.startswith("numba."):
                yield from self.value(value.key)
            elif isinstance(fields := getattr(value, "instance_class", None), type):  # of a named tuple
                yield from self.value(fields)
        else:
            if (description := self.describe(value)) is not None:
                if callable(value):
                    self.hidden[id(value)] = value
                yield from self._hidden(self.value(description))
            else:
                yield self._distinct(value)
                yield from self._pointer(value)
            if callable(value):  # a ufunc in C, a partial or a user's object may have implementations
                yield from self._implementations(value)

    def _class(self, kind: type) -> Iterator[bytes]:
        """Yield the bases of a user's class; `_class_bodies` yields what they contain."""
        self._classes.update({id(base): base for base in bases_of_user(kind)})
        yield _bases(kind)

    def _own_attributes(self, value: Any) -> Iterator[bytes]:
        attributes = own_attributes(value)
        if attributes and id(value) not in self._containers:  # an attribute may be the value itself
            self._containers[id(value)] = len(self._containers)
            yield from self._hidden(self.value(attributes))
            del self._containers[id(value)]

    def _hidden(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Yield *parts*, and add the compiled functions among them to `hidden`."""
        before, self._is_hidden = self._is_hidden, True
        yield from parts
        self._is_hidden = before

    def _items(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, dict):
            yield str(len(value)).encode()
            for key, item in dict.items(value):
                yield from self.value(key)
                yield from self.value(item)
        else:
            items = base_items(value, tuple, list)
            yield f"{len(items)} {getattr(value, '_fields', '')}".encode()
            for item in items:
                yield from self.value(item)

    def _external(self, value: Any) -> Iterator[bytes]:
        """Yield the address of a function that Numba calls by a symbol or a pointer."""
        kind = type(value).__qualname__
        if kind == "ExternalFunctionPointer":
            yield self._distinct(value)
        elif kind == "ExternalFunction":
            address = sys.modules["llvmlite.binding"].address_of_symbol(value.symbol)
            if _addresses.setdefault(value.symbol, address) != address:  # the symbol was replaced in this process
                self.unknown.append(value)
                yield str(address).encode()

    def _pointer(self, value: Any) -> Iterator[bytes]:
        """Yield the address and types of a function of ctypes, or of an object that Numba calls by its address."""
        if isinstance(value, ctypes._CFuncPtr):  # type: ignore[attr-defined]
            yield from self.value((ctypes.cast(value, ctypes.c_void_p).value, value.argtypes, value.restype))
        elif hasattr(value, "__wrapper_address__"):  # numba.types.WrapperAddressProtocol
            yield f"{value.__wrapper_address__()} {value.signature()}".encode()

    def _function(self, value: Any) -> Iterator[bytes]:
        if self._is_hidden and not isinstance(value, types.FunctionType):
            self.hidden[id(value)] = value
        if id(value) in self.functions:  # recursion, or a second use
            yield f"function {self.functions[id(value)][0]}".encode()
            if (id(value), self._is_hidden) in self._walked:
                return
        self._walked |= {(id(value), self._is_hidden), (id(value), False)}
        self.functions.setdefault(id(value), (len(self.functions), value))
        if not isinstance(value, types.FunctionType):
            yield from self.value(options_of(value))
        function = python_function(value)
        if is_versioned(function):
            yield qualified_name(function).encode()
            yield from self._implementations(function)
        else:
            if value is function:  # a compiler hides those of the functions that it wraps
                yield from self._own_attributes(function)
            refers = self.snapshot.references(function)
            self.owned += [*(refers.defaults or ()), *(refers.keyword_defaults or {}).values()]
            yield code_digest(function.__code__)
            yield from self.value((refers.defaults, tuple((refers.keyword_defaults or {}).items())))
            yield from self._free(function)
            yield from self._implementations(value)

    def _implementations(self, value: Any) -> Iterator[bytes]:
        """Yield the parts of the functions that the compiler uses in place of *value*, once."""
        if id(value) not in self._expanded:
            self._expanded[id(value)] = value
            if found := tuple(self.implementations(value)):
                yield from self.value(found)

    def _free(self, function: types.FunctionType) -> Iterator[bytes]:
        """Yield the parts of the function's closure, imports and globals."""
        self.names |= attributes_in(function.__code__)
        refers = self.snapshot.references(function)
        for cell in refers.cells:
            try:
                content = cell.cell_contents
            except ValueError:  # not bound yet
                content = None
            self.owned.append(content)
            yield from self.value(content)
        # Functions that run as Python have imports: for example, a function of `overload` returns an implementation.
        for name in imports_in(function.__code__):
            yield name.encode()
            yield from self._hidden(self.value(imported(name, function.__globals__.get("__package__"))))
        for name in globals_in(function.__code__):
            if name in refers.globals:
                self.globals.append(refers.globals[name])
                yield name.encode()
                yield from self.value(refers.globals[name])
            elif name in vars(builtins):
                value = vars(builtins)[name]
                if not is_versioned(value) or qualified_name(value) != f"builtins:{name}":
                    yield name.encode()
                    yield from self.value(value)

    def _attributes(self) -> Iterator[bytes]:
        """Yield the parts of modules' attributes, and of implementations of attributes, that have one of the names."""
        # `constants.TAU` in a kernel is frozen like a global. The bytecode does not show which names are attributes of
        # which module, and a helper may get the module as an argument. So every name in any function is looked up in
        # every module, and among the declared attributes. At worst, a hash changes needlessly.
        declared: set[str] = set()
        followed: dict[tuple[int, bool], set[str]] = {}
        while True:
            if new := self.names - declared:
                declared |= new
                for name in sorted(new):
                    yield from self._implementations(name)
            found = False
            for key, (module, is_hidden) in list(self._modules.items()):
                done = followed.setdefault(key, set())
                asked = self.names - done
                done |= asked
                values = self.snapshot.attributes(module, asked)
                found = found or bool(values)
                for name in sorted(values):
                    parts = self._attribute(module, name, values[name])
                    yield from self._hidden(parts) if is_hidden or is_versioned(module) else parts
            if not found and not self.names - declared:
                break
        yield from self.value(settings(self.names))

    def _attribute(self, module: types.ModuleType, name: str, value: Any) -> Iterator[bytes]:
        if isinstance(value, types.ModuleType) and is_versioned(module):
            self._modules.setdefault((id(value), self._is_hidden), (value, self._is_hidden))
            if value.__name__ != f"{module.__name__}.{name}":
                yield f"{module.__name__}.{name} {value.__name__}".encode()
        elif not is_versioned(module) or may_change(value):
            yield f"{qualified_name(module)}.{name}".encode()
            yield from self.value(value)
        else:
            # The user may have bound the name to another object of the package: this object has another name.
            own, name = qualified_name(value), f"{module.__name__}:{name}"
            if own != name and not own.endswith(":"):  # an object with a name
                yield f"{name} {own}".encode()
            yield from self._implementations(value)

    def _type(self, value: type) -> Iterator[bytes]:
        yield qualified_name(value).encode()
        if is_versioned(value):
            return
        if is_class_of_user(value):
            yield from self._class(value)
        if issubclass(value, enum.Enum):
            yield _bases(value)
            yield from self.value({name: member.value for name, member in value.__members__.items()})  # aliases too
        elif issubclass(value, tuple):
            yield repr(getattr(value, "_fields", None)).encode()
        elif is_class_of_user(value):
            pass
        elif (description := self.describe(value)) is not None:
            yield from self.value(description)
        else:
            yield self._distinct(value)

    def _distinct(self, value: Any) -> bytes:
        """Return the random number of an object that cannot be compared."""
        self.unknown.append(value)
        number, _ = _unknown.setdefault(id(value), (uuid.uuid4().hex, value))
        return f"object {number}".encode()


def _bases(kind: type) -> bytes:
    return repr([base.__qualname__ for base in kind.__mro__]).encode()


def _layout(value: Any) -> str:
    """Return the memory layout of an array, which a compiler may use besides its dtype, shape and elements."""
    flags = value.flags
    order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    return order if flags.aligned else f"{order} unaligned"


# Cached, since every lowering of a program with a kernel needs the digest of the kernel.
@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> bytes:
    """Return the digest of bytecode, without line numbers; code objects are immutable and refer to nothing else."""
    names = repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
    arguments = repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)).encode()
    consts = _Walk().value(code.co_consts)
    return _digest([code.co_code, code.co_exceptiontable, names, arguments, *consts]).encode()
