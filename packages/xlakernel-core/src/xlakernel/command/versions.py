"""Versions and requirements, as far as the doctor compares them. The library `packaging` may not be installed."""

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


def bounds(requirements: tuple[str, ...], name: str) -> str | None:
    """Return the versions of *name* that a distribution asks for; None if it does not, or not always.

    Args:
      requirements: its requirements, as its metadata has them.
      name: the distribution asked for, in lower case with hyphens.

    Example:
      >>> bounds(("llvmlite<0.51,>=0.50", "numpy>=1.22; extra == 'x'"), "llvmlite")
      '<0.51,>=0.50'
    """
    for requirement in requirements:
        text, _, marker = requirement.partition(";")
        found = re.match(r"\s*([\w.-]+)\s*(?:\[[^]]*\])?\s*\(?([^)]*)\)?\s*$", text)
        if found and not marker and re.sub(r"[-_.]+", "-", found[1]).lower() == name:
            return found[2].replace(" ", "") or None
    return None


def allows(asked: str, version: str) -> bool:
    """Whether a version is within the bounds that a requirement gives.

    Example:
      >>> allows("<2.5,>=1.22", "2.4.6"), allows("<2.5,>=1.22", "2.5.0")
      (True, False)
    """
    return all(_is_met(part, version) for part in asked.split(","))


def _is_met(part: str, version: str) -> bool:
    found = re.match(r"(===|~=|==|!=|<=|>=|<|>)(.*)$", part)
    if found is None or found[1] == "===":
        return True  # a form that none of the requirements we compare has
    operator, wanted, own = found[1], release(found[2]), release(version)
    compatible = operator == "~="
    if found[2].endswith(".*") or compatible:
        digits = found[2].removesuffix(".*").count(".") + 1 - compatible
        same = own[:digits] == wanted[:digits]
        return same and own >= wanted if compatible else same == (operator == "==")
    return {
        "==": own == wanted,
        "!=": own != wanted,
        "<=": own <= wanted,
        ">=": own >= wanted,
        "<": own < wanted,
        ">": own > wanted,
    }[operator]
