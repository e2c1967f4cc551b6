"""What a call is told about its arrays: the user's ``outs``, checked and flattened, and how they are batched."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .errors import ArityError, DtypeError, InputError, KernelTypeError, OutputSpecError, XLAKernelError

Struct = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Mapped:
    """One level of ``jax.vmap``: where each input has the batch (None: nowhere), and its size."""

    axes: tuple[int | None, ...]
    size: Any  # int, or symbolic under jax.export


def is_smooth(dtype: Any) -> bool:
    """Whether numbers of *dtype* have derivatives: real and complex floats do."""
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def check_plain(array: Any, where: str) -> Struct:
    """Return the shape and dtype of *array*, and nothing else that it may carry.

    Raises:
      DtypeError: if its dtype is one of JAX's own, such as that of random keys.
    """
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise DtypeError(
            f"{where} has the extended dtype {array.dtype}; pass plain data, such as jax.random.key_data(key)."
        )
    return Struct(array.shape, array.dtype)


def check_enabled(outs: Sequence[Struct], asked_by: str) -> None:
    """Raise `OutputSpecError` for a 64-bit dtype that JAX is not set to have: its functions would not take it."""
    for i, out in enumerate(outs):
        if not jax.dtypes.issubdtype(out.dtype, jax.dtypes.extended):
            known = jax.dtypes.canonicalize_dtype(out.dtype)
            if known != out.dtype:
                raise OutputSpecError(
                    f"{asked_by}: outs[{i}] has dtype {out.dtype}, but JAX's 64-bit types are off; ask for {known}, or "
                    'switch them on with jax.config.update("jax_enable_x64", True).'
                )


def is_function(outs: Any) -> bool:
    """Whether ``outs`` is a function of the inputs' structs, and no array or struct that can be called."""
    return callable(outs) and not hasattr(outs, "dtype")


def flatten_outs(outs: Any, asked_by: str) -> tuple[tuple[Struct, ...], Any]:
    """Flatten a pytree of objects with ``shape`` and ``dtype``.

    Args:
      outs: the pytree; its leaves may be structs, arrays or anything alike.
      asked_by: who asks, for the message.

    Returns:
      The leaves as plain structs, and the tree.

    Raises:
      OutputSpecError: if a leaf has no usable shape and dtype.
    """
    try:
        leaves, tree = jax.tree.flatten(outs, is_leaf=lambda leaf: leaf is None)
    except ValueError as error:  # a dictionary with keys of several kinds, which cannot be sorted
        raise OutputSpecError(
            f"{asked_by}: outs is {outs!r}, which JAX does not take for a pytree: {error}."
        ) from error
    return tuple(_struct(leaf, f"{asked_by}: outs[{i}]") for i, leaf in enumerate(leaves)), tree


def order_of(tree: Any, names: Sequence[str], asked_by: str) -> tuple[int, ...]:
    """Return for each leaf of the tree of ``outs`` the number of the output that it describes.

    A dictionary is bound by name: JAX sorts its keys, which says nothing of a kernel's outputs. Every other tree has
    its leaves in the order of the outputs.

    Args:
      tree: the tree that `flatten_outs` returned.
      names: the names of the outputs, in their order.
      asked_by: the kernel's name, for messages.

    Raises:
      OutputSpecError: if there is a dictionary that is not all of the tree, or has other keys than *names*.
    """
    paths = dictionary_paths(tree)
    if not any(paths):
        return tuple(range(tree.num_leaves))
    keys = [path[0] for path in paths if len(path) == 1]
    if tree.num_nodes != 1 + len(names) or set(keys) != set(names):
        found = [key for path in paths for key in path]
        raise OutputSpecError(
            f"{asked_by}: outs has a dictionary with the keys {found}; allowed is one with a struct for each output of "
            f"the kernel, under the name of its parameter: {list(names)}. Rename the keys, or describe the outputs in "
            "the kernel's order, with a tuple, a list or a named tuple: a dictionary has no order of its own in JAX."
        )
    return tuple(list(names).index(key) for key in keys)


@functools.lru_cache(maxsize=1024)
def check_has_order(tree: Any, asked_by: str) -> None:
    """Raise `OutputSpecError` for a tree with dictionaries, where results have an order and no names."""
    if keys := [key for path in dictionary_paths(tree) for key in path]:
        raise OutputSpecError(
            f"{asked_by}: outs has a dictionary with the keys {keys}, which has no order of its own in JAX; an "
            "operator's kernels return their results in an order. Give a tuple, a list or a named tuple, and make the "
            "dictionary of the results."
        )


def dictionary_paths(tree: Any) -> list[list[Any]]:
    """Return for each leaf of *tree* the keys of the dictionaries that it is in."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))[0]
    return [[key.key for key in path if isinstance(key, jax.tree_util.DictKey)] for path, _ in leaves]


def check_has_effect(outs: Sequence[Struct], has_side_effect: bool, asked_by: str) -> None:
    """Raise `OutputSpecError` for a call without outputs that JAX would drop."""
    if not outs and not has_side_effect:
        raise OutputSpecError(
            f"{asked_by}: outs describes no output, and has_side_effect is False: JAX would drop every call as unused. "
            "Set has_side_effect=True, or describe what the kernel writes."
        )


def of_structs(
    asked_by: str,
    what: str,
    function: Callable[..., Any],
    inputs: Sequence[Struct],
    *,
    parameters: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    kind: type[XLAKernelError] = OutputSpecError,
) -> Any:
    """Call a function that a user gave in place of a value, with the inputs' structs and the scalars that it names.

    Args:
      asked_by: the kernel's name, for messages.
      what: the argument's name, for messages.
      function: the user's.
      inputs: the structs.
      parameters: the kernel's parameters, for messages.
      scalars: the scalars whose values are known, by name.
      kind: what to raise if it takes the structs for arrays, or fails with another AttributeError or TypeError.

    Raises:
      ArityError: if it takes another number of inputs.
    """
    known = scalars or {}
    named = {name: known[name] for name in asked_for(function, len(inputs), known)}
    try:
        inspect.signature(function).bind(*inputs, **named)
    except TypeError as error:
        kernel = f" The kernel is {asked_by}({', '.join(parameters)})." if parameters else ""
        raise ArityError(
            f"{asked_by}: {what} is a function, called with the {len(inputs)} inputs' shape/dtype structs: {error}. It "
            f"takes {inspect.signature(function)}, and the call gives {counted(len(inputs), 'input')}: either may be "
            f"wrong.{' It is passed the scalars that it has parameters for, by name.' * (scalars is not None)}{kernel}"
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    try:
        return function(*inputs, **named)
    except (AttributeError, TypeError) as error:
        if isinstance(error, XLAKernelError):
            raise
        raise kind(
            f"{asked_by}: the function {what} raised {type(error).__name__}: {error}. It is called with a "
            "jax.ShapeDtypeStruct for each input, which has a shape and a dtype and no elements; jax.eval_shape(f, "
            "*inputs) says what a function of arrays would return."
        ) from error


def asked_for(function: Callable[..., Any], inputs: int, names: Collection[str]) -> list[str]:
    """Return those of *names* that *function* has parameters for besides those that *inputs* inputs fill."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return []
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    filled = {parameter.name for parameter in by_position[:inputs]}
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [p.name for p in by_name if p.name in names and p.name not in filled]


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
        if (concrete and extent < 0) or not (concrete or _is_symbolic(extent)):
            raise OutputSpecError(f"{where} has the shape {shape}; expected non-negative integers.")
    return Struct(shape, dtype)


def _is_symbolic(extent: Any) -> bool:
    from jax import export  # not part of `import jax` everywhere, and seldom needed

    return export.is_symbolic_dim(extent)


def check_inputs(inputs: Sequence[Any], asked_by: str) -> None:
    """Raise `InputError` for the first of *inputs* that JAX would not take as one array."""
    for i, value in enumerate(inputs):
        if not _is_array_like(value):
            raise InputError(
                f"{asked_by}: input {i} is {_describe(value)}; expected an array of numbers. "
                "Pass each array as a positional argument of its own, and build it with jnp.asarray(...)."
            )


def _is_array_like(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        kind, size = value.dtype.kind, value.dtype.itemsize
        widest = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # NumPy's long double is wider
        return size <= widest.get(kind, 0) or value.dtype.type.__module__ == "ml_dtypes"
    return isinstance(value, (jax.Array, bool, int, float, complex))


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def counted(number: int, noun: str) -> str:
    """Say how many there are, ``1 input`` or ``2 inputs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_callable(asked_by: str, what: str, fn: Any) -> Any:
    """Return *fn* if it can be called, else raise `KernelTypeError`."""
    if not callable(fn):
        raise KernelTypeError(f"{asked_by}: {what} takes a function; got {fn!r} of type {type(fn).__name__}.")
    return fn
