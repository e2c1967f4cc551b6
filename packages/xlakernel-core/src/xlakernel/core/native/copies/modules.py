"""Copies of the modules that a kernel's helpers refer to."""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Iterator
from typing import Any

from ...identity.snapshot import Snapshot

_thread = threading.local()


@contextlib.contextmanager
def reading(snapshot: Snapshot) -> Iterator[None]:
    """In this context, this thread reads the attributes of copied modules from *snapshot*, as the fingerprint does.

    Another thread may change the modules during a compilation. A shared helper is compiled for several kernels, each
    with its own snapshot.
    """
    before = vars(_thread).copy()
    # The attributes that a declaration sets or deletes, by module and name.
    _thread.snapshot, _thread.written = snapshot, set()
    try:
        yield
    finally:
        vars(_thread).clear()
        vars(_thread).update(before)


class ModuleCopy(types.ModuleType):
    """A module with copies of the helpers of the *original* module. All other accesses go to the original.

    A compilation reads from a snapshot. An ``objmode`` block, which runs later, reads and sets the user's attributes.
    """

    def __init__(self, original: types.ModuleType) -> None:
        super().__init__(original.__name__)
        vars(self).clear()
        vars(self).update(__name__=original.__name__, _original=original)

    def __getattr__(self, name: str) -> Any:
        original, snapshot = vars(self)["_original"], getattr(_thread, "snapshot", None)
        if snapshot is not None and (id(original), name) not in _thread.written:
            found = snapshot.attributes(original, (name,))
            if name in found:
                return snapshot.frozen(found[name])
        return getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._written(name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._written(name), name)

    def _written(self, name: str) -> types.ModuleType:
        """Return the original module; from now on, this copy takes the attribute from there."""
        vars(self).pop(name, None)
        original: types.ModuleType = vars(self)["_original"]
        written: set[tuple[int, str]] = getattr(_thread, "written", set())
        written.add((id(original), name))
        return original

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}>"

    def __dir__(self) -> list[str]:
        return dir(vars(self)["_original"])
