"""Objects that kernels use in Numba's object mode, where a program contains the objects themselves.

Outside of object mode, a compiler freezes the contents of objects, so that kernels with equal objects share code. An
``objmode`` block may change an object, for example append to a list, so each kernel needs code with its own objects.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .literals import base_items, literal_writer
from .user_classes import is_class_of_user, is_constant

# Fingerprint → the objects of each kernel seen with it, kept alive.
_known: dict[str, list[list[Any]]] = {}
_lock = threading.Lock()


def number_of(content: str, references: Iterable[Any]) -> int:
    """Return the number of the objects and classes in *references*, in their order, among those of one *content*.

    The first objects in a process have the number 0, so that a kernel usually has the same name in all processes.
    """
    objects = list(mutable_objects(references, classes=True))
    identities = [id(value) for value in objects]
    with _lock:
        known = _known.setdefault(content, [])
        number = next((i for i, earlier in enumerate(known) if [*map(id, earlier)] == identities), len(known))
        if number == len(known):
            known.append(objects)
    return number


def mutable_objects(references: Iterable[Any], *, classes: bool = False) -> Iterator[Any]:
    """Yield the mutable objects, with repeats; Python functions are among them, because of their closures.

    If *classes* is true, the user's classes of constants are yielded too.
    """
    for value in references:
        kind: Any = type(value)
        is_of_user = is_class_of_user(kind)
        if is_of_user and not is_constant(value):
            yield value
            continue
        if is_of_user and classes:
            yield kind
        if isinstance(value, (tuple, frozenset)):
            yield from mutable_objects(base_items(value, tuple, frozenset), classes=classes)
        elif not (is_of_user or isinstance(value, np.generic) or literal_writer(kind)):
            yield value
