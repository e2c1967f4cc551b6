"""Numba device arrays over XLA's memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types

from xlakernel.core.errors import DtypeError

# Numba's type of an element, and the typestr in the array interface. bfloat16, which has none, uses that of uint16.
_DTYPES = {
    "bool": (types.boolean, "|b1"),
    **{f"int{bits}": (getattr(types, f"int{bits}"), f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(types, f"uint{bits}"), f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "float16": (types.float16, "<f2"),
    "bfloat16": (types.bfloat16, "<u2"),
    "float32": (types.float32, "<f4"),
    "float64": (types.float64, "<f8"),
    "complex64": (types.complex64, "<c8"),
    "complex128": (types.complex128, "<c16"),
}


def array_type(dtype: str, ndim: int, where: str, *, readonly: bool, shared: bool = False) -> types.Array:
    """Return Numba's type of an array. The first dimension of a *shared* array has stride 0.

    Raise `DtypeError`, with *where* in the message, if Numba CUDA lacks the dtype.
    """
    if dtype not in _DTYPES:
        raise DtypeError(
            f"{where} has dtype {dtype}, which Numba CUDA kernels cannot read; allowed: {', '.join(_DTYPES)}. "
            "Cast before and after the call, for example with x.astype(jnp.float32)."
        )
    return types.Array(_DTYPES[dtype][0], ndim, "A" if shared else "C", readonly=readonly)


class Argument(cuda.In):  # type: ignore[misc]  # Numba has no stubs
    """A device array of a given Numba type: read-only, for example, or of elements that NumPy lacks.

    Numba passes a device array unchanged; the base class ``In`` only prevents a copy back to the host.
    """

    def __init__(self, value: Any, type_: types.Array) -> None:
        super().__init__(value)
        self._type = type_

    @property
    def _numba_type_(self) -> types.Array:
        return self._type


def array_at(address: int, type_: types.Array, dtype: str, shape: tuple[int, ...], *, shared: int = 0) -> Argument:
    """Return the array at *address* as an argument for a kernel; see `Slot` for *shape* and *shared*."""
    typestr = _DTYPES[dtype][1]
    strides = None
    if shared:
        inner = [np.dtype(typestr).itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        shape, strides = (shared, *shape), (0, *inner)
    interface = {
        "shape": shape,
        "strides": strides,
        "typestr": typestr,
        "data": (address, not type_.mutable),
        "version": 3,
    }
    return Argument(cuda.from_cuda_array_interface(interface, sync=False), type_)
