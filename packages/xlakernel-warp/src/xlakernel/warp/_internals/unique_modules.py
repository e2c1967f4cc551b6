"""Names of the modules of ``"unique"`` kernels. Warp makes such a name from the hash of the kernel's code."""

from __future__ import annotations

import itertools
import re
import weakref
from typing import Any

# The modules of ``"unique"`` kernels, with the hashes of their kernels when Warp named them: these modules were not yet
# in Warp's table of modules when they were first hashed.
_named: weakref.WeakKeyDictionary[Any, frozenset[bytes]] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def rename_if_changed(module: Any, kernels: frozenset[bytes]) -> None:
    """Rename a module if its kernels no longer have the hashes that its name was made from."""
    from warp._src import context

    if context.user_modules.get(module.name) is not module:
        _named.setdefault(module, kernels)
        return
    named = _named.get(module)
    if named is not None and not (named and named <= kernels):
        del _named[module]
        _rename(module)


def rename_all() -> None:
    """Rename the modules of ``"unique"`` kernels, because the hashes that their names were made from are not known."""
    from warp._src import context

    for name, module in list(context.user_modules.items()):
        if any(re.fullmatch(re.escape(f"{key}_") + "[0-9a-f]{8}", name) for key in module.kernels):
            _rename(module)


def _rename(module: Any) -> None:
    """Give a module an unused name. Otherwise Warp would return its kernel for a new one with a module of that name."""
    from warp._src import context

    del context.user_modules[module.name]
    module.name = f"{module.name}_{next(_numbers)}"
    context.user_modules[module.name] = module
