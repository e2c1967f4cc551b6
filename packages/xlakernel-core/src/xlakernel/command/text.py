"""Output of the command ``xlakernel``."""

from __future__ import annotations

import sys


def print_line(text: str = "") -> None:
    """Write a line to stdout."""
    sys.stdout.write(f"{text}\n")


def print_error(text: str) -> None:
    """Write an error message to stderr, after the name of the command."""
    sys.stderr.write(f"xlakernel: {text}\n")
