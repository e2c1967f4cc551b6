"""Objects that kernels use in Numba's object mode, where a program contains the objects themselves.

Elsewhere, a compiler freezes the contents of objects, so that kernels with equal objects share their code. An
``objmode`` block may change an object, such as a list that it appends to, and its kernel needs code of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .literals import literal_writer

# Fingerprint of functions → the objects of each group of functions that have it, by identity and kept alive.
_known: dict[str, list[dict[int, Any]]] = {}
_lock = threading.Lock()


def is_object_mode(value: Any) -> bool:
    """Return True for ``numba.objmode``."""
    kind: Any = type(value)
    return (kind.__module__, kind.__qualname__) == ("numba.core.withcontexts", "_ObjModeContextType")


def number_of(content: str, references: Iterable[Any]) -> int:
    """Return the number of the objects among *references*, those of functions with the fingerprint *content*.

    The first objects in a process have the number 0, so that usually a kernel has one name in all processes.
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
