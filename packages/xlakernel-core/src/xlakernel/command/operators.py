"""Operators of the installed packages, and of modules that a user names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .facts import own_packages
from .text import print_error

if TYPE_CHECKING:
    from xlakernel.core import XLACustomKernel


class UnknownOperatorError(LookupError):
    """No operator has a name or tag that the user gave."""


def find(modules: Sequence[str]) -> tuple[Mapping[str, XLACustomKernel], bool]:
    """Import the modules that register operators, with an error on stderr for each that cannot be imported.

    Args:
      modules: modules besides the packages of the namespace. They may be in the current folder: it is added to
        `sys.path`, as ``python -m`` does and a console script does not.

    Returns:
      The operators by name, and True if all modules were imported.
    """
    if modules and not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    imported = {module: import_or_print(module) for module in [*own_packages(), *modules]}
    core = imported["xlakernel.core"]
    return core.operators() if core else {}, None not in imported.values()


def import_or_print(name: str) -> Any:
    """Import and return a module; if that fails, write the error to stderr and return None."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a broken module must not hide the others
        print_error(f"{name} cannot be imported: {type(error).__name__}: {error}")
        return None


def choose(asked: Sequence[str], known: Mapping[str, XLACustomKernel]) -> list[XLACustomKernel]:
    """Return the operators among *known* that have one of the *asked* names or tags.

    Raises:
      UnknownOperatorError: if a name or tag fits no operator.
    """
    chosen: dict[str, XLACustomKernel] = {}
    for word in asked:
        found = {name: op for name, op in known.items() if word == name or word in op.tags}
        if not found:
            raise UnknownOperatorError(
                f"no operator has the name or tag {word!r}. `xlakernel backends` lists all operators."
            )
        chosen |= found
    return list(chosen.values())
