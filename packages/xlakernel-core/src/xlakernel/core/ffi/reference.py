"""Where what an exported program calls is found in another process: the module and the name that lead to it."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from typing import Any

from ..errors import ExportError


@dataclasses.dataclass(frozen=True)
class Reference:
    """A module and a name in it.

    Attributes:
      module: the module's name.
      qualname: the name in it, with dots for what is in a class.
      inside: the attribute, of what a backend's wrapper has as ``xlakernel``, that holds the thing itself: where the
        wrapper was applied as a decorator, the name is that of the wrapped function.
    """

    module: str
    qualname: str
    inside: str

    @property
    def data(self) -> dict[str, str]:
        """Module and name, for an artifact."""
        return {"module": self.module, "qualname": self.qualname}

    def here(self) -> Any:
        """Return what the name leads to in this process; None: nothing, or the module is not loaded."""
        return self._in(sys.modules.get(self.module))

    def leads_to(self, *things: Any) -> bool:
        """Whether another process finds one of *things* under the name, which ``__main__`` never is."""
        found = self.here()
        return self.module != "__main__" and found is not None and any(found is thing for thing in things)

    def find(self, what: str, is_right: Callable[[Any], bool], name: str | None = None) -> Any:
        """Import the module, and return what the name leads to.

        Args:
          what: what is looked for, for messages: "the kernel mine.scale".
          is_right: whether it can be that.
          name: what messages call the name; None: the one in *what*.

        Raises:
          ExportError: if the module cannot be imported, or has something else under the name.
        """
        module = import_module(what, self.module)
        found = self._in(module)
        if not is_right(found):
            there = "nothing" if found is None else f"a {type(found).__name__}"
            file = getattr(module, "__file__", None) or "no file"
            raise ExportError(
                f"deserialize: the program calls {what}, but {self.module} ({file}) has {there} under "
                f"{f'the name {name}' if name else 'that name'}. Bring back the source that was exported, or export "
                "the program again."
            )
        return found

    def _in(self, module: Any) -> Any:
        found = module
        for part in self.qualname.split("."):
            found = getattr(found, part, None)
        return getattr(getattr(found, "xlakernel", None), self.inside, found)


def import_module(what: str, name: str) -> Any:
    """Import a module that a program names.

    Args:
      what: what needs it, for messages: "the kernel mine.scale".
      name: its full name.

    Raises:
      ExportError: if it cannot be imported, or the name is none.
    """
    # Python takes a path as a name, and looks for it below the package before the last dot.
    if not isinstance(name, str) or not all(name.split(".")) or not {"/", "\\", "\0"}.isdisjoint(name):
        raise ExportError(f"deserialize: the program calls {what}, and {name!r} is not the name of a module.")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"deserialize: the program calls {what}, and the module {name} cannot be imported: {error}. "
            "Install it, or put its folder on sys.path."
        ) from error
