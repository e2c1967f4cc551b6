"""How findings and tables look in a terminal, a file or a pipe."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from .findings import Finding

_COLORS = {"ok": "32", "note": "33", "problem": "31", "title": "1", "weak": "2"}
_PARTS = re.compile(rf"\033\[(?:0|{'|'.join(_COLORS.values())})m|.", re.DOTALL)  # colors, and other characters
_WIDEST = 100  # lines longer than that are hard to read


class Printer:
    """Writes to a stream, in colors if it is a terminal and nobody objects (https://no-color.org)."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.colored = self.out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)

    def line(self, text: str = "") -> None:
        """Write one line, or several; `printable` but for the colors."""
        self.out.write(f"{printable(text.rstrip(), colors=self.colored)}\n")

    def title(self, text: str) -> None:
        """Write the title of what follows."""
        self.line(self.paint(text, "title"))

    def paint(self, text: str, style: str) -> str:
        """Return *text* in the color of a style, a key of `_COLORS`."""
        return f"\033[{_COLORS[style]}m{text}\033[0m" if self.colored else text

    def pairs(self, rows: Mapping[str, str]) -> None:
        """Write names and values, in two columns."""
        longest = max(map(len, rows), default=0)
        for name, value in rows.items():
            self.line(f"  {name:{longest}}  {value}")

    def findings(self, findings: Iterable[Finding]) -> None:
        """Write findings, each with what mends it on a line of its own, to be copied."""
        rows = list(findings)
        states, names = (max((len(getattr(row, key)) for row in rows), default=0) for key in ("state", "name"))
        indent = " " * (2 + states + 2 + names + 2)
        for row in rows:
            head = f"  {self.paint(f'{row.state:{states}}', row.state)}  {row.name:{names}}  "
            first, *more = self._wrapped(row.text, len(indent))
            self.line(head + first)
            for line in more:
                self.line(indent + line)
            if row.mend is not None:
                self.line(f"{indent}mend: {self.paint(row.mend, 'title')}")
            if row.link is not None and row.state == "problem":
                self.line(indent + self.paint(f"see {row.link}", "weak"))

    def _wrapped(self, text: str, indent: int) -> Sequence[str]:
        width = max(self.width - indent, 40)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def printable(text: str, *, colors: bool = False) -> str:
    r"""Return *text* with an escape sequence in the place of each control character, except for newlines.

    What is printed comes from files that other users may have written, and from errors of any library: it must not
    control the terminal.

    Args:
      text: what to print.
      colors: whether to keep the colors of `Printer.paint`.

    Example:
      >>> printable("a\x1b[2Jb")
      'a\\x1b[2Jb'
    """

    def shown(found: re.Match[str]) -> str:
        part = found[0]
        return part if part.isprintable() or part in "\n\t" or (colors and len(part) > 1) else ascii(part)[1:-1]

    return _PARTS.sub(shown, text)


def complain(text: str) -> None:
    """Write an error of the command to stderr."""
    sys.stderr.write(f"xlakernel: {printable(text)}\n")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
      >>> counted(1, "problem"), counted(2, "problem")
      ('1 problem', '2 problems')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
