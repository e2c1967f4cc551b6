"""Comparison of the code that an exported program calls with the code that was exported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ExportError
from ..identity.fingerprint import Examination
from .values import PYTHON


def refers_to(value: Any, advice: str) -> str:
    """Return the reason why code that refers to *value* cannot be compared."""
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared with one of another process. "
        f"{advice}"
    )


@dataclasses.dataclass(frozen=True)
class Compared:
    """Code that a program depends on, and its fingerprint.

    Attributes:
      what: the code, for messages: "the kernel mine.scale".
      examine: returns the fingerprint of the code as it is now.
      reason: returns the reason why the code cannot be compared, given an unknown object; for messages.
    """

    what: str
    examine: Callable[[], Examination]
    reason: Callable[[Any], str]

    def check_exportable(self, content: str) -> None:
        """Raise `ExportError` unless the code can be compared, and still has the digest *content*."""
        self.check_unchanged(content)
        if unknown := self.examine().unknown:
            raise ExportError(f"export: {self.what} {self.reason(unknown[0])}")

    def check_unchanged(self, content: str) -> None:
        """Raise `ExportError` unless the code still has the digest *content*."""
        if self.examine().digest != content:
            raise ExportError(
                f"export: the program was lowered before something that {self.what} refers to changed: a global, a "
                "function or a kernel. The program contains the earlier code; export it in a process that changes "
                "nothing between lowering and export."
            )

    def checks(self) -> dict[str, str | None]:
        """Return Python's version and the fingerprint (None: not comparable), for `check_same` in another process."""
        found = self.examine()
        return {"python": PYTHON, "bytecode": None if found.unknown else found.content}

    def check_same(self, checks: Mapping[str, Any], changed: str = "") -> None:
        """Raise `ExportError` unless the code has the fingerprint of the code that was exported.

        Args:
          checks: the result of the method `checks` at export.
          changed: other things that may have changed, for messages.
        """
        found = self.examine()
        if found.unknown:
            raise ExportError(
                f"deserialize: {self.what} cannot be compared with the one that was exported: it "
                f"{self.reason(found.unknown[0])}"
            )
        if found.content != checks["bytecode"]:
            raise ExportError(
                f"deserialize: {self.what} is not the one that was exported: its code has changed, or that of a "
                f"function or kernel, or an option, or a constant that it refers to{changed}. Restore the source that "
                "was exported, or export the program again."
            )
