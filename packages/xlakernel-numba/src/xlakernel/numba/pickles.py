"""Pickles of Numba functions by value, for other packages of xlakernel whose objects contain functions."""

from __future__ import annotations

from typing import Any

from numba.core import serialize

from xlakernel.core.backend.native import dumps

from ._recipe import COMPILER


def dump_function(dispatcher: Any) -> bytes:
    """Pickle a function of ``numba.njit`` with the present values of its globals.

    Numba's own pickles contain an identifier, for which Numba returns a previously unpickled object with the globals of
    that time.
    """
    return dumps(COMPILER, dispatcher)


def load_function(pickled: bytes) -> Any:
    """Return a new function from the result of `dump_function`."""
    return serialize.loads(pickled)
