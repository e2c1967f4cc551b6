"""Names in modules, as which wrappers and operators are pickled."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import PickledKernelError

# Where wrappers and operators are made; the module that asks for one is the first outside.
_MAKERS = ("xlakernel.core", "xlakernel.numba", "xlakernel.cuda", "xlakernel.warp")


def name_in_module(thing: Any, first: str = "") -> str | None:
    """Return the name that the module of *thing* has for it; None: there is none.

    Args:
      thing: has the name of a module as ``__module__``.
      first: the name that is preferred.
    """
    space = getattr(sys.modules.get(thing.__module__), "__dict__", {})
    return next((name for name in (first, *space) if space.get(name) is thing), None)


def callers_module() -> str:
    """Return the module whose code asks for a wrapper or an operator, as `collections.namedtuple` does."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_MAKERS):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "__main__"))


class MissingKernel:
    """A kernel that was not found where it was unpickled."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise the error."""
        raise PickledKernelError(self._reason)
