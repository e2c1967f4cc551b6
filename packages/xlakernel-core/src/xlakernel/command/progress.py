"""How far a long command is: a bar in a terminal, a line for each part anywhere else."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_WIDTH = 24  # of the bar
_DEFAULT_COLUMNS = 80


class Progress:
    """Tells on a stream, which is stderr unless given, what is being done.

    It can be written to itself, as a stream can: what libraries print then goes where the bar is, and not through it.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._drawn = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._part = ""
        self._bar = False

    def begin(self, part: str) -> None:
        """Say which part begins."""
        self._part = part
        if not self._drawn:
            self.write(f"{part}\n")
            self.flush()

    def step(self, done: int, total: int, what: str) -> None:
        """Draw how much of the part is done, and what comes next; only in a terminal."""
        if not self._drawn:
            return
        full = _WIDTH * done // total
        bar = "#" * full + "-" * (_WIDTH - full)
        line = f"{self._part} [{bar}] {100 * done // total:3} %  {what}"
        # A line that the terminal breaks could not be drawn over.
        self._out.write(f"\r{line[: self._columns() - 1]}\033[K")
        self.flush()
        self._bar = True

    def clear(self) -> None:
        """Take the bar away."""
        if self._bar:
            self._out.write("\r\033[K")
            self.flush()
            self._bar = False

    def write(self, text: str) -> int:
        """Write *text* in the place of the bar."""
        self.clear()
        return self._out.write(text)

    def flush(self) -> None:
        """Let all be seen that was written."""
        self._out.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or _DEFAULT_COLUMNS
        except OSError:
            return _DEFAULT_COLUMNS
