"""The dtypes of weights, and the dtypes in which weights are summed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from xlakernel.core.errors import DtypeError

#: The dtypes of weights. Excluded are bool, which is not summed, and types narrower than a byte, which JAX packs.
SUPPORTED = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_HALF = ("float16", "bfloat16")


def check_dtype(caller: str, what: str, dtype: Any) -> None:
    """Raise `DtypeError` unless numbers of *dtype* can be entries or operands."""
    if dtype.name not in SUPPORTED:
        hint = " Cast it, for example with .astype('float32')." if dtype.name == "bool" else ""
        raise DtypeError(f"{caller}: {what} is of dtype {dtype.name}; allowed: {', '.join(SUPPORTED)}.{hint}")


def check_convertible(caller: str, what: str, given: Any, dtype: Any, holder: str) -> None:
    """Raise `DtypeError` if numbers of the dtype *given* lose a fraction or an imaginary part in *dtype*.

    The message names the *holder* of the numbers.
    """
    check_dtype(caller, what, given)
    kinds = (jnp.inexact, jnp.complexfloating)
    if any(jnp.issubdtype(given, kind) and not jnp.issubdtype(dtype, kind) for kind in kinds):
        raise DtypeError(f"{caller}: {what} is of dtype {given}; {holder} of dtype {dtype} cannot hold its numbers.")


def accumulator(dtype: Any) -> Any:
    """Return the dtype in which numbers of *dtype* are summed: float32 for half precision, else the same."""
    return jnp.dtype("float32") if jnp.dtype(dtype).name in _HALF else jnp.dtype(dtype)


def as_weights(data: Any, dtype: Any) -> Any:
    """Return *data* as kernels that sum in *dtype* take it: in *dtype*, or in half precision if *dtype* is float32."""
    half = data.dtype.name in _HALF and jnp.dtype(dtype) == jnp.float32
    return data if half else data.astype(dtype)
