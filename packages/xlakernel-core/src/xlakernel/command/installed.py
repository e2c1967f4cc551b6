"""The operators that there are: those of the packages of the namespace, and of modules that a user names."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from .facts import own_packages
from .text import complain

if TYPE_CHECKING:
    from xlakernel.core import XLACustomKernel


def find(modules: Sequence[str]) -> tuple[Mapping[str, XLACustomKernel], dict[str, str]]:
    """Import what registers operators, and say on stderr what cannot be imported.

    Args:
      modules: modules to import beside the packages of the namespace; from the current folder too, where Python looks
        for them when it runs a module, and a console script does not.

    Returns:
      The operators by name, and why modules cannot be imported.
    """
    if modules and not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    failed = load([package for package in own_packages() if package != "xlakernel.command"] + list(modules))
    for module, why in failed.items():
        complain(f"{module} cannot be imported: {why}")
    return ({} if "xlakernel.core" in failed else operators()), failed


def load(modules: Iterable[str]) -> dict[str, str]:
    """Import modules, which registers their operators, and return why some of them cannot be."""
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # one that is broken must not hide the others
            is_file = "/" in module or module.endswith(".py")
            hint = ". What is expected is a module's name, as after `import`" * is_file
            failed[module] = f"{type(error).__name__}: {error}{hint}"
    return failed


def operators() -> Mapping[str, XLACustomKernel]:
    """Return the operators that are registered, by name."""
    from xlakernel.core import operators

    return operators()


def choose(asked: Sequence[str], known: Mapping[str, XLACustomKernel]) -> list[XLACustomKernel]:
    """Return the operators that names, patterns of names, or tags stand for, in the order in which they are asked for.

    Raises:
      LookupError: if one stands for none.
    """
    chosen: dict[str, XLACustomKernel] = {}
    for pattern in asked:
        # A name may have brackets, which would stand for one of the characters between them.
        names = {pattern} & known.keys() or {name for name in known if fnmatchcase(name, pattern)}
        found = {name: op for name, op in known.items() if name in names or pattern in op.tags}
        if not found:
            raise LookupError(unknown(pattern, {*known, *(tag for op in known.values() for tag in op.tags)}))
        chosen |= found
    return list(chosen.values())


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that there is no operator of a name, and which of those that are known are like it."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    listed = f" Did you mean {' or '.join(near)}?" if near else " `xlakernel backends` lists those that there are."
    return f"there is no operator {name!r}.{listed}"
