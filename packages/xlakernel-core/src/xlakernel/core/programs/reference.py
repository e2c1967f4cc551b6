"""Module and name of a kernel or function that an exported program calls."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from ..errors import ExportError
from .allowed import import_module


@dataclasses.dataclass(frozen=True)
class Reference:
    """A module and a name in it.

    Attributes:
      module: the module's name.
      qualname: the name in the module, with dots for attributes of classes.
      attribute: the name of the attribute of a wrapper's ``xlakernel`` that is the kernel. If the wrapper was applied
        as a decorator, *qualname* leads to the wrapper, and this attribute to the kernel.
    """

    module: str
    qualname: str
    attribute: str

    @property
    def data(self) -> dict[str, str]:
        """Module and name, for an artifact."""
        return {"module": self.module, "qualname": self.qualname}

    def here(self) -> Any:
        """Return the object of this name; None if there is none, or the module is not loaded."""
        return self._in(sys.modules.get(self.module))

    def leads_to(self, *objects: Any) -> bool:
        """Return True if the name leads to one of *objects* in any process; False for a name in ``__main__``."""
        found = self.here()
        return self.module != "__main__" and found is not None and any(found is one for one in objects)

    def find(self, what: str, is_right: Callable[[Any], bool]) -> Any:
        """Import the module, and return the object of the name.

        Args:
          what: the object, for messages: "the kernel mine.scale".
          is_right: returns True for an object of the right kind.

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
                f"name {self.qualname}. Restore the source that was exported, or export the program again."
            )
        return found

    def _in(self, module: Any) -> Any:
        found = module
        for part in self.qualname.split("."):
            found = getattr(found, part, None)
        return getattr(getattr(found, "xlakernel", None), self.attribute, found)
