"""Names of the modules of ``"unique"`` kernels, which Warp names by the hash of their code."""

from __future__ import annotations

import itertools
import re
import weakref
from typing import Any

# Hashes of the kernels of modules that were not among Warp's when they were first hashed: those of ``"unique"``
# kernels, which Warp then names by the hash.
_named: weakref.WeakKeyDictionary[Any, frozenset[bytes]] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def rename_if_changed(module: Any, kernels: frozenset[bytes]) -> None:
    """Rename a module whose kernels are no longer those that its name is a hash of."""
    from warp._src import context

    if context.user_modules.get(module.name) is not module:
        _named.setdefault(module, kernels)
        return
    named = _named.get(module)
    if named is not None and not (named and named <= kernels):
        del _named[module]
        _rename(module)


def rename_all() -> None:
    """Rename the modules of ``"unique"`` kernels: it is not known what their names are a hash of."""
    from warp._src import context

    for name, module in list(context.user_modules.items()):
        if any(re.fullmatch(re.escape(f"{key}_") + "[0-9a-f]{8}", name) for key in module.kernels):
            _rename(module)


def _rename(module: Any) -> None:
    """Give a module a name that no other has: Warp returns the kernel of a module with the name of a new one."""
    from warp._src import context

    del context.user_modules[module.name]
    module.name = f"{module.name}_{next(_numbers)}"
    context.user_modules[module.name] = module
