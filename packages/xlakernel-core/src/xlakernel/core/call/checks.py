"""What is looked at in the functions that an author declares, and in what they return."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ResultError
from ..specs import Struct, counted, is_smooth


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


def flat_results(
    owner: str, keyword: str, found: Any, outs: Sequence[Struct], tree: Any, *, tangents: bool = False
) -> list[Any]:
    """Flatten what an author's function returned, and check it against *outs*.

    Args:
      owner: the kernel's or operator's name, for messages.
      keyword: the name under which the function was given, for messages.
      found: what it returned.
      outs: the results that it should return, in the order of *tree*.
      tree: their structure.
      tangents: whether they are the tangents of the results, of which integers have none.

    Raises:
      ResultError: if *found* differs from *outs* in structure, shape or dtype.
    """
    what = "tangents of the results" if tangents else "results"
    paths, flat = places(found)
    # The tangent of one integer is None.
    if found is None and not (tangents and len(outs) == 1 and not is_smooth(outs[0].dtype)):
        raise ResultError(f"{owner}: {keyword} returned None; return the {what} (does it lack a return?).")
    if len(flat) != len(outs):
        both = tangents and isinstance(found, (tuple, list)) and len(found) == 2 and len(flat) == 2 * len(outs)
        hint = " Return only the tangents, unlike the function given to jax.custom_jvp's defjvp." if both else ""
        number = counted(len(flat), "tangent" if tangents else "result") + (" of the results" if tangents else "")
        raise ResultError(f"{owner}: {keyword} returned {number}; the kernel has {counted(len(outs), 'result')}.{hint}")
    expected = jax.tree.unflatten(tree, [text(out) for out in outs])
    # Of one array alone it is clear what it stands for.
    if len(flat) > 1 and paths != places(expected)[0]:
        given = jax.tree.unflatten(jax.tree.structure(found, is_leaf=is_none), [text(value) for value in flat])
        raise ResultError(f"{owner}: {keyword} returned {what} as {given}; return them as {expected}.")
    for i, (value, out) in enumerate(zip(flat, outs, strict=True)):
        if tangents and not is_smooth(out.dtype):
            continue
        if not fits(value, out):
            raise ResultError(
                f"{owner}: result {i} of {keyword} is {text(value)}; outs[{i}] is {text(out)}. It must return {what} "
                "in the kernel's own shapes and dtypes."
            )
        flat[i] = as_array(value, out.dtype)
    return flat
