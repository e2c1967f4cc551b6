"""Structs (shapes and dtypes of a call's arrays), and calls of the user's functions of structs, such as ``outs``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .errors import ArityError, DtypeError, InputError, KernelTypeError, OutputSpecError, XLAKernelError

Struct = jax.ShapeDtypeStruct


def is_smooth(dtype: Any) -> bool:
    """Return True if numbers of *dtype* have derivatives: real and complex floats."""
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def check_plain(array: Any, where: str) -> Struct:
    """Return the struct of *array*; raise `DtypeError` for an extended dtype, such as JAX's dtype of keys."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise DtypeError(
            f"{where} has the extended dtype {array.dtype}; pass plain data, such as jax.random.key_data(key)."
        )
    return Struct(array.shape, array.dtype)


def check_inputs(inputs: Sequence[Any], owner: str) -> None:
    """Raise `InputError` for the first of *inputs* that is not an array or number of a dtype that JAX has."""
    for i, value in enumerate(inputs):
        if not _is_array_like(value):
            text = repr(value)
            expected = "an array of numbers. Pass each array as a positional argument of its own, and build it with "
            expected += "jnp.asarray(...)."
            if value is None:
                expected += " In a vjp, the cotangent of an integer result is None: leave it out."
            if isinstance(value, np.ndarray) and not value.dtype.isnative:
                expected = "native byte order, x.astype(x.dtype.newbyteorder('='))."
            raise InputError(
                f"{owner}: input {i} is {text if len(text) <= 60 else text[:57] + '...'} of type "
                f"{type(value).__name__}; expected {expected}"
            )


def _is_array_like(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        kind, size = value.dtype.kind, value.dtype.itemsize
        if not value.dtype.isnative:
            return False
        widest = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # NumPy's long double is wider
        return size <= widest.get(kind, 0) or value.dtype.type.__module__ == "ml_dtypes"
    return isinstance(value, (jax.Array, bool, int, float, complex))


def check_callable(owner: str, what: str, function: Any) -> Any:
    """Return *function* if it can be called, else raise `KernelTypeError`."""
    if not callable(function):
        raise KernelTypeError(f"{owner}: {what} takes a function; got {function!r} of type {type(function).__name__}.")
    return function


# Texts for messages.


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, ``1 input`` or ``2 inputs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def text_of(value: Any) -> str:
    """Return the dtype and shape of an array or a struct, ``float32[2,3]``; for anything else the value and type."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return "None" if value is None else f"{value!r} of type {type(value).__name__}"
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


# Functions of the inputs' structs.


def of_structs(
    owner: str,
    what: str,
    function: Callable[..., Any],
    inputs: Sequence[Struct],
    *,
    parameters: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
    kind: type[XLAKernelError] = OutputSpecError,
) -> Any:
    """Call a function that a user gave in place of a value, with the inputs' structs and some of the *scalars*.

    *scalars* has the scalars with known values, by name. The function gets each scalar for which it has a parameter.
    Raise `ArityError` if the function takes another number of inputs. Raise an error of type *kind* if the function
    raises AttributeError or TypeError, for example because it uses the structs as arrays.
    """
    known = scalars or {}
    named = {name: known[name] for name in keywords_of(function, known, len(inputs))}
    try:
        inspect.signature(function).bind(*inputs, **named)
    except TypeError as error:
        kernel = f" The kernel is {owner}({', '.join(parameters)})." if parameters else ""
        raise ArityError(
            f"{owner}: {what} is a function, called with the {len(inputs)} inputs' shape/dtype structs: {error}. It "
            f"takes {inspect.signature(function)}, and the call gives {counted(len(inputs), 'input')}: either may be "
            f"wrong.{' Scalars are passed by keyword, to parameters of their names.' * (scalars is not None)}{kernel}"
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    try:
        return function(*inputs, **named)
    except (AttributeError, TypeError) as error:
        if isinstance(error, XLAKernelError):
            raise
        raise kind(
            f"{owner}: the function {what} raised {type(error).__name__}: {error}. It is called with a "
            "jax.ShapeDtypeStruct for each input, which has a shape and a dtype and no elements; jax.eval_shape(f, "
            "*inputs) returns the structs of the results of a function of arrays."
        ) from error


def keywords_of(function: Callable[..., Any], names: Collection[str], inputs: int = 0) -> list[str]:
    """Return the *names* that *function* takes as keywords if *inputs* arguments are passed by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return []
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    filled = {parameter.name for parameter in by_position[:inputs]}
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [p.name for p in by_name if p.name in names and p.name not in filled]
