"""Pickles of kernels and operators by name: find an object's name in its module, and the object of a name."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ..errors import PickledKernelError

# Prefixes of the modules whose frames `callers_module` skips: those that create wrappers and operators.
_MAKERS = ("xlakernel.core", "xlakernel.numba", "xlakernel.cuda", "xlakernel.warp")


def callers_module() -> str:
    """Return the name of the module that the call comes from, as `collections.namedtuple` does for its class."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_MAKERS):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))


def name_in_module(thing: Any, first: str = "") -> str | None:
    """Return the name of *thing* in its module, preferably *first* if it has several; None if it has none."""
    space = getattr(sys.modules.get(thing.__module__), "__dict__", {})
    return next((name for name in (first, *space) if space.get(name) is thing), None)


def find(module: str, name: str) -> Any:
    """Return the object that *module* has under *name*; None if there is none."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


class MissingKernel:
    """A kernel or operator that is not found where it is unpickled; calling it raises `PickledKernelError`.

    An exception during unpickling would end a worker of a pool, and `multiprocessing.Pool` would never stop waiting for
    the worker's result.
    """

    def __init__(self, what: str, place: str, found: str, advice: str) -> None:
        self._message = (
            f"the {what} that was pickled as {place} cannot be found: this process has {found} under that name. "
            f"{advice}"
        )

    def __call__(self, /, *_: Any, **__: Any) -> Any:
        """Raise the error."""
        raise PickledKernelError(self._message)
