"""Names that lead to the kernels of an exported program."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from ..allowed import import_module
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
        """Return True if another process finds one of *things* under the name; it never does in ``__main__``."""
        found = self.here()
        return self.module != "__main__" and found is not None and any(found is thing for thing in things)

    def find(self, what: str, is_right: Callable[[Any], bool]) -> Any:
        """Import the module, and return what the name leads to.

        Args:
          what: what is looked for, for messages: "the kernel mine.scale".
          is_right: whether it can be that.

        Raises:
          ExportError: if the module cannot be imported, or has something else under the name.
        """
        module = import_module(what, self.module)
        found = self._in(module)
        if not is_right(found):
            there = "nothing" if found is None else f"a {type(found).__name__}"
            file = getattr(module, "__file__", None) or "no file"
            raise ExportError(
                f"deserialize: the program calls {what}, but {self.module} ({file}) has {there} under the "
                f"name {self.qualname}. Bring back the source that was exported, or export the program again."
            )
        return found

    def _in(self, module: Any) -> Any:
        found = module
        for part in self.qualname.split("."):
            found = getattr(found, part, None)
        return getattr(getattr(found, "xlakernel", None), self.inside, found)
