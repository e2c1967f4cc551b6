"""What is looked at in the functions that an author declares, and in what they return."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Whether *function* has a parameter called *name*."""
    try:
        return name in inspect.signature(function).parameters
    except ValueError:  # a builtin without a signature
        return False


def group_of(inputs: Any) -> tuple[int, ...] | None:
    """Return the positions that an input, or a tuple of several, stands for; None if it is neither."""
    group = inputs if isinstance(inputs, tuple) else (inputs,)
    if not group or not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) and i >= 0 for i in group):
        return None
    return tuple(map(int, group)) if len(set(group)) == len(group) else None


def captured_tracer(function: Any) -> Any:
    """Return a tracer that *function* has from where it is defined; None if it has none."""
    values = []
    while isinstance(function, functools.partial):
        values += [*function.args, *function.keywords.values()]
        function = function.func
    for cell in getattr(function, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return next((leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.core.Tracer)), None)


def is_none(value: Any) -> bool:
    """Whether *value* is None; where results are flattened None is a leaf."""
    return value is None


def places(tree: Any) -> tuple[list[Any], list[Any]]:
    """Return the places of a pytree's leaves, the same in a list and in a tuple, and the leaves."""
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_none)[0]
    return [path for path, _ in found], [leaf for _, leaf in found]


_NUMBERS = (bool, int, float, complex)


def fits(value: Any, like: Any) -> bool:
    """Whether *value* is an array of the shape and dtype of *like*, or a Python number that can stand for one."""
    if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
        return bool(like.shape == () and jnp.result_type(value, like.dtype) == like.dtype)
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return bool(is_array and (value.shape, value.dtype) == (like.shape, like.dtype))


def as_array(value: Any, dtype: Any) -> Any:
    """Return *value*, which `fits`, as a JAX array."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value, dtype)


def text(value: Any) -> str:
    """Describe *value* for a message."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return "None" if value is None else f"{value!r} of type {type(value).__name__}"
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
