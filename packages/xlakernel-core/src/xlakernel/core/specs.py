"""What a call is told about its arrays: the user's ``outs``, checked and flattened, and how they are batched."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .errors import DtypeError, InputError, KernelTypeError, OutputSpecError

Struct = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Mapped:
    """One level of ``jax.vmap``: where each input has the batch (None: nowhere), and its size."""

    axes: tuple[int | None, ...]
    size: Any  # int, or symbolic under jax.export


def is_smooth(dtype: Any) -> bool:
    """Whether numbers of *dtype* have derivatives: real and complex floats do."""
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def has_several_devices(platform: str | None) -> bool:
    """Whether JAX has more than one device of *platform* (None: of the default one)."""
    try:
        return jax.device_count(platform) > 1
    except RuntimeError:  # there is no such platform here
        return False


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
    leaves, tree = jax.tree.flatten(outs, is_leaf=lambda leaf: leaf is None)
    return tuple(_struct(leaf, f"{asked_by}: outs[{i}]") for i, leaf in enumerate(leaves)), tree


def _struct(leaf: Any, where: str) -> Struct:
    try:
        shape, dtype = tuple(leaf.shape), jax.numpy.dtype(leaf.dtype)
    except (AttributeError, TypeError) as error:
        raise OutputSpecError(
            f"{where} is {leaf!r}; expected an object with a shape and a dtype, "
            "such as jax.ShapeDtypeStruct((n,), jnp.float32)."
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
