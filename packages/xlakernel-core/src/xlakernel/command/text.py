"""Output of the command ``xlakernel``.

Names and messages come from kernels, libraries and the cache. Their control characters are escaped, since terminals
interpret them, and so are characters that the encoding of stdout lacks.
"""

from __future__ import annotations

import sys


def print_line(text: str = "") -> None:
    """Write lines to stdout; raise `OSError` if it is closed."""
    if sys.stdout is None:
        raise OSError("stdout is closed")
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{escape(text)}\n".encode(encoding, "backslashreplace").decode(encoding))


def print_error(text: str) -> None:
    """Write an error message to stderr, after the name of the command."""
    sys.stderr.write(f"xlakernel: {escape(text)}\n")


def escape(text: str, keep: str = "\n") -> str:
    """Return *text* with Python's escape sequences for its unprintable characters, except those of *keep*."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
