"""Output of the command."""

from __future__ import annotations

import sys


def say(text: str = "") -> None:
    """Write a line to stdout."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """Write an error of the command to stderr."""
    sys.stderr.write(f"xlakernel: {text}\n")
