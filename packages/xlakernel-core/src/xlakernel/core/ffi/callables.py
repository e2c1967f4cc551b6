"""Functions that launch work, in exported programs: how they are found again, and whether they are still the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import ExportError
from .comparison import PYTHON, check_same
from .fingerprint import fingerprint, unknown_objects
from .kinds import describe
from .reference import Reference
from .source import SourceError, definition

_INSIDE = "function"  # of what a wrapper has as `xlakernel`


@dataclasses.dataclass(frozen=True)
class Callables:
    """A function, and whatever else is called for it.

    Attributes:
      function: the function.
      others: functions by what they are for; what is a string or None is itself, and not looked for.
    """

    function: Any
    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's module and name."""
        module, qualname = (getattr(self.function, name, None) for name in ("__module__", "__qualname__"))
        return f"{module}.{qualname or repr(self.function)}"

    @property
    def parts(self) -> tuple[Any, ...]:
        """All of them."""
        return self.function, *self.others.values()

    def content(self) -> str:
        """Return the fingerprint of all of them as they are now, with what they refer to."""
        return fingerprint(self.parts, describe=describe)

    def write(self, content: str) -> dict[str, Any]:
        """Say where they are found in another process, and what they were: `find` and `check_same` read it.

        Args:
          content: what `content` was when the function's work was recorded.

        Raises:
          ExportError: if they are not found there, or cannot be compared, or are something else by now.
        """
        references = {"function": self._reference(f"the function {self.name}", self.function)}
        for what, part in self.others.items():
            references[what] = self._reference(f"{what}={part!r} of the function {self.name}", part)
        if unknown := unknown_objects(self.parts, describe=describe):
            raise ExportError(f"export: the function {self.name} {_describe_unknown(unknown[0])}")
        if self.content() != content:
            raise ExportError(
                f"export: the function {self.name} was recorded before something that it refers to changed: a global, "
                "or a kernel. The program does what it did then; export it in a process that changes nothing in "
                "between."
            )
        checks = {"python": PYTHON, "bytecode": content, "source": self._source_fingerprint()}
        return {"name": self.name, **references, "checks": checks}

    @staticmethod
    def find(written: Mapping[str, Any], *others: str) -> Callables:
        """Return what was written, or what has the same names here.

        Args:
          written: what `write` returned.
          others: what else was written besides the function.

        Raises:
          ExportError: if there is nothing, or nothing that can be called.
        """
        function, *rest = (_find(written["name"], written[what]) for what in ("function", *others))
        return Callables(function, dict(zip(others, rest, strict=True)))

    def check_same(self, written: Mapping[str, Any], place: str, hint: str = "") -> None:
        """Raise `ExportError` unless they are what was written.

        Args:
          written: what `write` returned.
          place: where the function is, for messages.
          hint: what else may have changed, for messages.
        """
        check_same(
            f"deserialize: the function {written['name']} ({place})",
            written["checks"],
            {"bytecode": self.content, "source": self._source_fingerprint},
            lambda: next(map(_describe_unknown, unknown_objects(self.parts, describe=describe)), None),
            f"its code has changed, or that of a kernel, or a constant that it refers to{hint}",
        )

    def _source_fingerprint(self) -> str | None:
        try:
            return fingerprint(self.parts, definition=definition, describe=describe)
        except SourceError:
            return None

    @staticmethod
    def _reference(which: str, part: Any) -> Any:
        if part is None or isinstance(part, str):
            return part
        reference = Reference(getattr(part, "__module__", None) or "", getattr(part, "__qualname__", ""), _INSIDE)
        if not reference.leads_to(part):
            raise ExportError(
                f"export: {which} cannot be imported by its name, and what launches work cannot be stored in the "
                "program. Define it at the top level of a module that can be imported where the program is loaded."
            )
        return reference.data


def _find(name: str, written: Any) -> Any:
    if not isinstance(written, Mapping):
        return written
    reference = Reference(written["module"], written["qualname"], _INSIDE)
    return reference.find(
        f"the function {name}",
        # Not what the module itself imports from elsewhere, which the program does not name.
        lambda found: callable(found) and getattr(found, "__module__", None) == reference.module,
        reference.qualname,
    )


def _describe_unknown(value: Any) -> str:
    if hasattr(value, "overloads"):
        return (
            f"launches {value.__name__}, which was compiled before, and whose globals may have changed since. Call the "
            "function before its kernels are compiled otherwise."
        )
    return (
        f"refers to {value!r} of type {type(value).__name__}, which cannot be compared with one of another process. "
        "Pass an array as an input; make anything else inside the function, or in a helper decorated with "
        "functools.cache."
    )
