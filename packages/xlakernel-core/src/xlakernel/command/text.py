"""Output of the command."""

from __future__ import annotations

import sys


def say(text: str = "") -> None:
    """Write a line to stdout."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """Write an error of the command to stderr."""
    sys.stderr.write(f"xlakernel: {text}\n")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
      >>> counted(1, "problem"), counted(2, "problem")
      ('1 problem', '2 problems')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
