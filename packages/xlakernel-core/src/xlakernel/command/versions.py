"""Versions, as far as the doctor compares them. The library `packaging` may not be installed."""

from __future__ import annotations

import re


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, as many for each.

    Example:
      >>> release("2.5.0rc1") == release("2.5") < release("2.10")
      True
    """
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in found[1].split(".")] if found else []
    return (*numbers, *[0] * (6 - len(numbers)))
