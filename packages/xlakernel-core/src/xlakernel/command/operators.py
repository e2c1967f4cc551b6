"""Operators of the installed packages, and of modules that a user names."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .facts import own_packages
from .text import complain

if TYPE_CHECKING:
    from xlakernel.core import XLACustomKernel


def find(modules: Sequence[str]) -> tuple[Mapping[str, XLACustomKernel], dict[str, str]]:
    """Import the modules that register operators, with an error on stderr for each that cannot be imported.

    Args:
      modules: modules beside the packages of the namespace; also from the current folder, which Python has on its path
        when it runs a module, and not when it runs a console script.

    Returns:
      The operators by name, and the errors by module.
    """
    if modules and not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    failed = {}
    with contextlib.redirect_stdout(sys.stderr):  # for messages of libraries
        for module in [*own_packages(), *modules]:
            try:
                importlib.import_module(module)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # one that is broken must not hide the others
                failed[module] = f"{type(error).__name__}: {error}"
                complain(f"{module} cannot be imported: {failed[module]}")
    return ({} if "xlakernel.core" in failed else importlib.import_module("xlakernel.core").operators()), failed


def choose(asked: Sequence[str], known: Mapping[str, XLACustomKernel]) -> list[XLACustomKernel]:
    """Return the operators of some names, patterns of names, or tags, in this order.

    Raises:
      LookupError: if there is none for one of them.
    """
    chosen: dict[str, XLACustomKernel] = {}
    for pattern in asked:
        # A name may have brackets, which would stand for one of the characters between them.
        names = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        found = {name: op for name, op in known.items() if name in names or pattern in op.tags}
        if not found:
            raise LookupError(unknown(pattern, {*known, *(tag for op in known.values() for tag in op.tags)}))
        chosen |= found
    return list(chosen.values())


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the error about an operator that is not there, with similar names."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    advice = f"Did you mean {' or '.join(near)}?" if near else "`xlakernel backends` lists all operators."
    return f"there is no operator {name!r}. {advice}"
