"""Comparison of what an exported program calls with what was exported."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ExportError
from .fingerprint import Definition, Examination
from .source import SourceError, definition

#: The version of Python that bytecode depends on.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def refers_to(value: Any, advice: str) -> str:
    """Return the reason why code cannot be compared that refers to *value*."""
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared with one of another process. "
        f"{advice}"
    )


@dataclasses.dataclass(frozen=True)
class Compared:
    """Code that a program depends on, and its fingerprints.

    Attributes:
      what: the code, for messages: "the kernel mine.scale".
      examine: examines it, with what is hashed of each function in place of its bytecode, or None.
      reason: returns the reason why an unknown object makes it incomparable, for messages.
    """

    what: str
    examine: Callable[[Definition | None], Examination]
    reason: Callable[[Any], str]

    def check_exportable(self, content: str) -> None:
        """Raise `ExportError` unless the code can be compared, and is what it was when it had the digest *content*."""
        self.check_unchanged(content)
        if unknown := self.examine(None).unknown:
            raise ExportError(f"export: {self.what} {self.reason(unknown[0])}")

    def check_unchanged(self, content: str) -> None:
        """Raise `ExportError` unless the code is what it was when it had the digest *content*."""
        if self.examine(None).digest != content:
            raise ExportError(
                f"export: the program was lowered before something that {self.what} refers to changed: a global, a "
                "function or a kernel. It has the code as it was; export it in a process that changes nothing in "
                "between."
            )

    def fingerprints(self) -> dict[str, Any]:
        """Return the fingerprints that another process may compare; None in place of one that it cannot."""
        return {"python": PYTHON, "bytecode": self._fingerprint(None), "source": self._fingerprint(definition)}

    def check_same(self, checks: Mapping[str, Any], changed: str = "") -> None:
        """Raise `ExportError` unless the code has the fingerprints of what was exported.

        Args:
          checks: what `fingerprints` returned there.
          changed: what else may have changed, for messages.
        """
        kind = "bytecode" if checks["python"] == PYTHON else "source"
        here = self._fingerprint(None if kind == "bytecode" else definition)
        if here is not None and here == checks[kind]:
            return
        what = f"deserialize: {self.what}"
        if unknown := self.examine(None).unknown:
            raise ExportError(f"{what} cannot be compared with the one that was exported: it {self.reason(unknown[0])}")
        if kind == "source" and None in (here, checks["source"]):
            raise ExportError(
                f"{what} was exported by Python {checks['python']} and this is Python {PYTHON}: it can only be compared"
                " by its source, which is missing for it or for something it refers to. Export it again with this "
                "Python."
            )
        raise ExportError(
            f"{what} is not the one that was exported: its code has changed, or that of a function or kernel, or an "
            f"option, or a constant that it refers to{changed}. Bring back the source that was exported, or export the "
            "program again."
        )

    def _fingerprint(self, definition: Definition | None) -> str | None:
        try:
            found = self.examine(definition)
        except SourceError:
            return None
        return None if found.unknown else found.digest
