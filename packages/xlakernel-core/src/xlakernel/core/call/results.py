"""Checks of the arrays that an author's functions return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ResultError
from ..structs import Struct, counted, is_smooth, text_of

_NUMBERS = (bool, int, float, complex)


def is_none(value: Any) -> bool:
    """Return True if *value* is None. As ``is_leaf``, the function makes `jax.tree.flatten` keep None as a leaf."""
    return value is None


def fits(value: Any, like: Any) -> bool:
    """Return True if *value* has the shape and dtype of *like*, or is a Python number that JAX would convert to it."""
    if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
        return bool(like.shape == () and jnp.result_type(value, like.dtype) == like.dtype)
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return bool(is_array and (value.shape, value.dtype) == (like.shape, like.dtype))


def as_array(value: Any, dtype: Any) -> Any:
    """Return *value*, which `fits`, as a JAX array."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value, dtype)


def flat_results(
    owner: str, keyword: str, found: Any, outs: Sequence[Struct], tree: Any, *, tangents: bool = False
) -> list[Any]:
    """Return the results of the author's function *keyword* as a list.

    Raise `ResultError` unless they have the types *outs* and the structure *tree*. With *tangents*, the function
    returns the tangents of the results; those of integers are not checked.
    """
    what = "tangents of the results" if tangents else "results"
    paths, flat = _paths(found)
    # None is allowed as the tangent of a single integer.
    if found is None and not (tangents and len(outs) == 1 and not is_smooth(outs[0].dtype)):
        raise ResultError(f"{owner}: {keyword} returned None; return the {what} (does it lack a return?).")
    if len(flat) != len(outs):
        both = tangents and isinstance(found, (tuple, list)) and len(found) == 2 and len(flat) == 2 * len(outs)
        hint = " Return only the tangents, unlike the function given to jax.custom_jvp's defjvp." if both else ""
        number = counted(len(flat), "tangent" if tangents else "result") + (" of the results" if tangents else "")
        raise ResultError(f"{owner}: {keyword} returned {number}; the kernel has {counted(len(outs), 'result')}.{hint}")
    expected = jax.tree.unflatten(tree, [text_of(out) for out in outs])
    # A single array may stand alone, in place of a tuple of one.
    if len(flat) > 1 and paths != _paths(expected)[0]:
        given = jax.tree.unflatten(jax.tree.structure(found, is_leaf=is_none), [text_of(value) for value in flat])
        raise ResultError(f"{owner}: {keyword} returned {what} as {given}; return them as {expected}.")
    for i, (value, out) in enumerate(zip(flat, outs, strict=True)):
        if tangents and not is_smooth(out.dtype):
            continue
        if not fits(value, out):
            raise ResultError(
                f"{owner}: result {i} of {keyword} is {text_of(value)}; outs[{i}] is {text_of(out)}. It must return "
                f"{what} in the kernel's own shapes and dtypes."
            )
        flat[i] = as_array(value, out.dtype)
    return flat


def _paths(tree: Any) -> tuple[list[Any], list[Any]]:
    """Return the paths of a pytree's leaves, which are the same in a list and in a tuple, and the leaves."""
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_none)[0]
    return [path for path, _ in found], [leaf for _, leaf in found]
