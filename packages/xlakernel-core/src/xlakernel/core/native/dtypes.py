"""Numba types of the arguments of kernels."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from ..errors import DtypeError
from ..ffi import abi
from .low_precision import bfloat16, float16

_LOW_PRECISION = {"bfloat16": bfloat16, "float16": float16}


def numba_dtype(dtype: Any, where: str) -> types.Type:
    """Return the Numba type of an element of *dtype*.

    Args:
      dtype: a NumPy dtype, or one of ml_dtypes.
      where: the name of the array, for the message.

    Raises:
      DtypeError: if CPU kernels cannot take the dtype.
    """
    name = np.dtype(dtype).name
    if name in _LOW_PRECISION:
        return _LOW_PRECISION[name]
    if name in abi.DATA_TYPES:
        found: types.Type = numba.from_dtype(np.dtype(dtype))
        return found
    raise DtypeError(
        f"{where} has dtype {name}, which Numba kernels cannot read; allowed: {', '.join(abi.DATA_TYPES)}. "
        f"Cast before and after the call, for example with x.astype(jnp.{_carrier(name)})."
    )


def array_type(dtype: Any, ndim: int, where: str, *, readonly: bool) -> types.Array:
    """Return the type of a C-contiguous array in XLA's memory; see `numba_dtype`."""
    return types.Array(numba_dtype(dtype, where), ndim, "C", readonly=readonly, aligned=True)


def _carrier(name: str) -> str:
    """Return a supported dtype that represents all values of the narrow dtype *name*."""
    return "uint8" if name.startswith("uint") else "int8" if name.startswith("int") else "float32"
