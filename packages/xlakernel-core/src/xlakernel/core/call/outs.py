"""The user's ``outs``: a pytree that describes the results of a call, checked and flattened."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import OutputSpecError
from ..structs import Struct


def is_function(outs: Any) -> bool:
    """Return True if ``outs`` is a function of the inputs' structs. A callable object with a dtype is a struct."""
    return callable(outs) and not hasattr(outs, "dtype")


def flatten_outs(outs: Any, owner: str) -> tuple[tuple[Struct, ...], Any]:
    """Return the leaves of ``outs`` as plain structs, and its tree; raise `OutputSpecError` for any other leaf."""
    try:
        leaves, tree = jax.tree.flatten(outs, is_leaf=lambda leaf: leaf is None)
    except ValueError as error:  # a dictionary with keys of several kinds, which cannot be sorted
        raise OutputSpecError(f"{owner}: outs is {outs!r}, which JAX does not take for a pytree: {error}.") from error
    return tuple(_struct(leaf, f"{owner}: outs[{i}]") for i, leaf in enumerate(leaves)), tree


def _struct(leaf: Any, where: str) -> Struct:
    try:
        shape, dtype = tuple(leaf.shape), jax.numpy.dtype(leaf.dtype)
    except (AttributeError, TypeError) as error:
        hint = ""
        if isinstance(leaf, (int, np.integer)):
            hint = " A shape alone has no dtype, and a tuple means several outputs."
        raise OutputSpecError(
            f"{where} is {leaf!r}; expected an object with a shape and a dtype, "
            f"such as jax.ShapeDtypeStruct((n,), jnp.float32).{hint}"
        ) from error
    for extent in shape:
        # A symbolic extent (jax.export) is neither an int nor comparable to one.
        concrete = isinstance(extent, (int, np.integer)) and not isinstance(extent, bool)
        if (concrete and extent < 0) or not (concrete or is_symbolic(extent)):
            raise OutputSpecError(f"{where} has the shape {shape}; expected non-negative integers.")
    return Struct(shape, dtype)


def is_symbolic(extent: Any) -> bool:
    """Return True for a symbolic extent of `jax.export`."""
    from jax import export  # `import jax` does not import it in every version

    return export.is_symbolic_dim(extent)


def check_enabled(outs: Sequence[Struct], owner: str) -> None:
    """Raise `OutputSpecError` for a 64-bit dtype if JAX's 64-bit types are disabled (``jax_enable_x64``)."""
    for i, out in enumerate(outs):
        if not jax.dtypes.issubdtype(out.dtype, jax.dtypes.extended):
            known = jax.dtypes.canonicalize_dtype(out.dtype)
            if known != out.dtype:
                raise OutputSpecError(
                    f"{owner}: outs[{i}] has dtype {out.dtype}, but JAX's 64-bit types are off; ask for {known}, or "
                    'switch them on with jax.config.update("jax_enable_x64", True).'
                )


def check_has_effect(outs: Sequence[Struct], has_side_effect: bool, owner: str) -> None:
    """Raise `OutputSpecError` for a call without outputs and without a side effect: JAX would drop the call."""
    if not outs and not has_side_effect:
        raise OutputSpecError(
            f"{owner}: outs describes no output, and has_side_effect is False: JAX would drop every call as unused. "
            "Set has_side_effect=True, or describe what the kernel writes."
        )


def order_of(tree: Any, names: Sequence[str], owner: str) -> tuple[int, ...]:
    """Return, for each leaf of the tree of ``outs``, the position of the output that it describes.

    The keys of a dictionary must be the *names* of the outputs, since JAX sorts the keys. The leaves of any other tree
    are in the order of the outputs.
    """
    _check_mappings(tree, owner)
    paths = _dictionary_keys(tree)
    if not any(paths):
        return tuple(range(tree.num_leaves))
    keys = [path[0] for path in paths if len(path) == 1]
    if tree.num_nodes != 1 + len(names) or set(keys) != set(names):
        found = [key for path in paths for key in path]
        raise OutputSpecError(
            f"{owner}: outs has a dictionary with the keys {found}; expected a struct for each output of the kernel, "
            f"under the name of its parameter: {list(names)}. Rename the keys, or use a tuple, a list or a named "
            "tuple, in the order of the kernel's outputs. (JAX sorts the keys of a dictionary.)"
        )
    return tuple(list(names).index(key) for key in keys)


@functools.lru_cache(maxsize=1024)
def check_has_order(tree: Any, owner: str) -> None:
    """Raise `OutputSpecError` for a tree with dictionaries: the results of an operator's kernels have no names."""
    _check_mappings(tree, owner)
    if keys := [key for path in _dictionary_keys(tree) for key in path]:
        raise OutputSpecError(
            f"{owner}: outs has a dictionary with the keys {keys}, which JAX sorts; an operator's kernels return their "
            "results by position. Give a tuple, a list or a named tuple, and make the dictionary from the results."
        )


def _check_mappings(tree: Any, owner: str) -> None:
    """Raise `OutputSpecError` for a mapping of a user-defined class: its leaves may be in any order."""
    node = tree.node_data()
    if node is not None and issubclass(node[0], Mapping) and node[0] not in (dict, OrderedDict, defaultdict):
        raise OutputSpecError(
            f"{owner}: outs has a dictionary of the class {node[0].__name__}; expected a plain dict, a tuple, a list "
            "or a named tuple, since the order of its leaves is unknown. Make it from the results."
        )
    for child in tree.children():
        _check_mappings(child, owner)


def _dictionary_keys(tree: Any) -> list[list[Any]]:
    """Return for each leaf of *tree* the keys of the dictionaries that it is in."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))[0]
    return [[key.key for key in path if isinstance(key, jax.tree_util.DictKey)] for path, _ in leaves]
