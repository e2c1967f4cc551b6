"""Pickles of kernels by value: unpickling makes a new object for each helper (a compiled function that a kernel calls).

Numba's own pickles of functions and intrinsics contain an identifier. If Numba has unpickled that identifier before, it
returns the earlier object with its old globals. Numba also compiles declared signatures before the globals are
complete, which fails for a function that calls itself.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numba.core import serialize

from .compiler import Compiler, FunctionKind


class _Unfinished(NamedTuple):
    """A helper inside its own globals, before its declared signatures are compiled."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...]


def dumps(compiler: Compiler, value: Any) -> bytes:
    """Pickle *value* as Numba does, but helpers by their `FunctionKind`, and intrinsics without an identifier."""
    with io.BytesIO() as buffer:
        _Pickler(buffer, compiler).dump(value)
        return buffer.getvalue()


class _Pickler(serialize.NumbaPickler):  # type: ignore[misc]  # Numba has no stubs
    def __init__(self, buffer: io.BytesIO, compiler: Compiler) -> None:
        super().__init__(buffer, protocol=4)
        self._compiler = compiler
        self._unfinished: dict[int, _Unfinished] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Unfinished):
            return tuple(obj)
        if type(obj).__name__ == "_Intrinsic":  # Numba CUDA has another class of this name
            return _intrinsic, (type(obj), obj._name, obj._defn, obj._prefer_literal, obj._ctor_kwargs)
        if type(obj) is np.ndarray and not (obj.flags.forc and obj.flags.aligned):
            return _with_gaps, (obj.copy("K"), obj.flags.forc, obj.flags.aligned)
        for kind in self._compiler.helpers:
            if isinstance(obj, kind.kind):
                return self._reduced(obj, kind)
        return super().reducer_override(obj)

    def _reduced(self, obj: Any, kind: FunctionKind) -> tuple[Any, ...]:
        """Reduce *obj* to calls that make it, and that declare its signatures once its globals are complete."""
        made = _Unfinished(kind.make, kind.parts(obj))
        if kind.declare is None:
            return tuple(made)
        if id(obj) in self._unfinished:  # a recursive reference in its globals
            return kind.declare, (self._unfinished[id(obj)], None)
        self._unfinished[id(obj)] = made
        return kind.declare, (made, kind.signatures(obj))


def dispatcher_parts(dispatcher: Any) -> tuple[Any, ...]:
    """Return the arguments of `make_dispatcher` for a dispatcher of ``numba.njit``."""
    compiler = dispatcher._compiler.pipeline_class
    return dispatcher.py_func, type(dispatcher), dispatcher.locals, dict(dispatcher.targetoptions), compiler


def make_dispatcher(function: Any, kind: Any, locals_: Any, options: Any, compiler: Any) -> Any:
    """Return a dispatcher without compiled code, for any signature."""
    return kind(function, locals=locals_, targetoptions=options, pipeline_class=compiler)


def declared_signatures(dispatcher: Any) -> list[Any] | None:
    """Return the declared signatures of a dispatcher; None if it compiles any signature."""
    return None if dispatcher._can_compile else [compiled.signature for compiled in dispatcher.overloads.values()]


def declare(dispatcher: Any, signatures: Sequence[Any] | None) -> Any:
    """Compile a dispatcher for *signatures* and forbid others, unless *signatures* is None; return the dispatcher."""
    if signatures is not None:
        for signature in signatures:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
    return dispatcher


def _with_gaps(array: np.ndarray[Any, Any], is_contiguous: bool, is_aligned: bool) -> np.ndarray[Any, Any]:
    """Return a copy of *array* that is not contiguous, or not aligned: Numba compiles other code for such an array.

    NumPy itself unpickles every array as a contiguous, aligned one.
    """
    shape = array.shape if is_contiguous else (*array.shape, 2)
    size = array.itemsize * math.prod(shape)
    order: Literal["C", "F"] = "F" if is_contiguous and array.flags.f_contiguous else "C"
    made = np.ndarray(shape, array.dtype, bytearray(size + 1), offset=not is_aligned, order=order)
    made = made if is_contiguous else made[..., 0]
    made[...] = array
    return made


def _intrinsic(kind: Any, name: str, definition: Any, prefer_literal: bool, options: Any) -> Any:
    made = kind(name, definition, prefer_literal, **options)
    made._register()
    return made
