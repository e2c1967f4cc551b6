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
from .python_only import has_class_of_user

# Fingerprint → the objects of each kernel seen with it, kept alive.
_known: dict[str, list[list[Any]]] = {}
_lock = threading.Lock()


def number_of(content: str, references: Iterable[Any]) -> int:
    """Return the number of the mutable objects in *references*, in this order, counted for the fingerprint *content*.

    The first objects in a process have the number 0, so that a kernel usually has the same name in all processes.
    """
    objects = list(mutable_objects(references))
    identities = [id(value) for value in objects]
    with _lock:
        known = _known.setdefault(content, [])
        number = next((i for i, earlier in enumerate(known) if [*map(id, earlier)] == identities), len(known))
        if number == len(known):
            known.append(objects)
    return number


def mutable_objects(references: Iterable[Any]) -> Iterator[Any]:
    """Yield the mutable objects, with repeats.

    Python functions are among them, because of their closures, and instances of a user's subclass of a literal's type,
    because of their attributes and their class.
    """
    for value in references:
        kind: Any = type(value)
        if kind in (tuple, frozenset):
            yield from mutable_objects(value)
        elif has_class_of_user(value) or not (isinstance(value, np.generic) or literal_writer(kind)):
            yield value
