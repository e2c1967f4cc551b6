"""Pickles of Numba functions by value, and of named tuples with such functions in other packages of xlakernel."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba.core import serialize
from numba.core.dispatcher import Dispatcher

from xlakernel.core.backend.native import dumps

from ._recipe import COMPILER


class _Function(NamedTuple):
    """A function of ``numba.njit``, pickled."""

    pickled: bytes


def dump_function(dispatcher: Any) -> bytes:
    """Pickle a function of ``numba.njit`` with the present values of its globals.

    Numba's own pickles contain an identifier. If Numba has unpickled an object with the same identifier, it returns
    that object, with the globals of that time.
    """
    return dumps(COMPILER, dispatcher)


def load_function(pickled: bytes) -> Any:
    """Return a new function from the result of `dump_function`."""
    return serialize.loads(pickled)


def reduce(value: Any) -> tuple[Any, ...]:
    """Return the result of ``__reduce__`` for a named tuple that contains functions of ``numba.njit``."""
    fields = [_Function(dump_function(field)) if isinstance(field, Dispatcher) else field for field in value]
    return _made, (type(value), *fields)


def _made(kind: Any, *fields: Any) -> Any:
    return kind(*(_loaded(field.pickled) if isinstance(field, _Function) else field for field in fields))


@functools.lru_cache(maxsize=256)
def _loaded(pickled: bytes) -> Any:
    """Return the function of a pickle. Equal pickles give the same function, so that its callers are compiled once."""
    return load_function(pickled)
