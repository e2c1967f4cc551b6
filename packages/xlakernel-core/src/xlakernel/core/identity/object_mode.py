"""Objects that kernels use in Numba's object mode, where a program contains the objects themselves.

Outside of object mode, a compiler freezes the contents of objects, so that kernels with equal objects share code. An
``objmode`` block may change an object, for example append to a list, so each kernel needs code with its own objects.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .literals import literal_writer

# Fingerprint → the sets of objects seen with it. The objects of a set are stored by identity, and kept alive.
_known: dict[str, list[dict[int, Any]]] = {}
_lock = threading.Lock()


def is_object_mode(value: Any) -> bool:
    """Return True for ``numba.objmode``."""
    kind: Any = type(value)
    return (kind.__module__, kind.__qualname__) == ("numba.core.withcontexts", "_ObjModeContextType")


def number_of(content: str, references: Iterable[Any]) -> int:
    """Return the number of the set of mutable objects in *references*, counted for the fingerprint *content*.

    The first set in a process has the number 0, so that a kernel usually has the same name in all processes.
    """
    objects = {id(value): value for value in mutable_objects(references)}
    with _lock:
        known = _known.setdefault(content, [])
        number = next((i for i, earlier in enumerate(known) if earlier.keys() == objects.keys()), len(known))
        if number == len(known):
            known.append(objects)
    return number


def mutable_objects(references: Iterable[Any]) -> Iterator[Any]:
    """Yield the mutable objects; Python functions are among them, because of their closures."""
    for value in references:
        kind: Any = type(value)
        if isinstance(value, (tuple, frozenset)):
            yield from mutable_objects(value)
        elif not isinstance(value, np.generic) and literal_writer(kind) is None:
            yield value
