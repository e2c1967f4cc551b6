"""Pickles of operators: the names that their modules have for them."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from ..call.names import MissingKernel, name_in_module


def reduced(op: Any) -> tuple[Any, ...]:
    """Return what ``__reduce__`` does for an operator.

    Raises:
      PicklingError: if its module has no name for it.
    """
    name = name_in_module(op)
    if name is None:
        raise pickle.PicklingError(
            f"{op.name}: an operator is pickled as the name that its module has for it, as a function is, and "
            f"{op.__module__}, where it was made, has none. Bind it to a name at the top level of that module, or pass "
            "a function of such a module that calls it."
        )
    return _find, (type(op), op.__module__, name, op.name)


def _find(kind: type, module: str, name: str, operator: str) -> Any:
    """Return the operator; an object whose call raises if it is not here, as an error ends a worker of a pool."""
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        found = None
    if isinstance(found, kind) and getattr(found, "name", None) == operator:
        return found
    there = "nothing" if found is None else f"{found!r:.80}"
    return MissingKernel(
        f"the operator {operator!r} that was pickled as {module}.{name} cannot be found: this process has {there} "
        f'under that name. Make it at the top level of {module}, not below if __name__ == "__main__", and bind it once.'
    )
