"""Scalars of a call, which a kernel takes by value under the names of its parameters.

A scalar is an operand of the call, so that a new value compiles nothing, and a value may be traced or mapped. A number
keeps its NumPy dtype. With JAX's 64-bit types off, complex64 is the only dtype of 64 bits, so the operand of a 64-bit
number is a complex64 of the same bytes. (An array of two 32-bit numbers works too, but XLA takes longer to pass the
array.) Some backends take static scalars instead, and compile the values into the kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import get_abstract_mesh

from .._compat import is_tracing
from ..errors import StaticArgumentError
from ..structs import Struct

#: A scalar of a call: its name, its dtype, and the bytes of its value; None: the value is an operand. The value is
#: stored as bytes, because in Python 1, 1.0 and True are equal, and a NaN is not equal to itself.
Entry = tuple[str, str, bytes | None]

_FLOAT64 = struct.Struct("=d").pack
_BYTES = np.dtype(np.complex64)
# The largest size of a number in bytes, by the kind of its dtype.
_WIDEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 8}


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A scalar that is an operand.

    Attributes:
      dtype: NumPy name of the value's dtype.
      struct: the operand, of that dtype or a complex64 of the same bytes.
    """

    dtype: str
    struct: Struct


def freeze(kernel: str, name: str, value: Any, why: str = "") -> tuple[str, bytes]:
    """Return a number as its dtype and bytes; raise `StaticArgumentError` if it is no number, or is traced.

    *why*, for the message, is the reason that its value must be known when a call is traced.
    """
    if type(value) is float:  # not cached: as keys, 0.0 and -0.0 are equal, and a NaN equals nothing
        return "float64", _FLOAT64(value)
    if isinstance(value, int) or (isinstance(value, float) and value != 0):
        return _freeze_cached(kernel, name, value)
    if isinstance(value, jax.core.Tracer):
        check_scalar(kernel, name, value)
        other = "pass it by position, as a 0-d array, to a parameter that is an array, and read its one element"
        raise StaticArgumentError(
            f"{kernel}: the static scalar {name!r} is traced ({value}); its value must be known when the call is "
            f"traced{why and f', {why}'}. Name it in jax.jit(..., static_argnames={name!r}), or "
            f"{'remove that parameter if nothing depends on it' if why else other}."
        )
    return _freeze_now(kernel, name, value)


def _freeze_now(kernel: str, name: str, value: Any) -> tuple[str, bytes]:
    check_scalar(kernel, name, value)
    number = np.asarray(value)
    return number.dtype.name, number.tobytes()


_freeze_cached = functools.lru_cache(maxsize=4096, typed=True)(_freeze_now)


def check_scalar(kernel: str, name: str, value: Any) -> None:
    """Raise `StaticArgumentError` unless *value* is a number, a NumPy scalar or an array without dimensions."""
    if isinstance(value, (jax.Array, np.ndarray)) and value.shape:
        raise StaticArgumentError(
            f"{kernel}: {name!r} is an array, {value.dtype}{list(value.shape)}, and is passed by keyword, which is for "
            "scalars. Pass input arrays by position, in the order of the kernel's parameters; outputs are not passed."
        )
    if isinstance(value, jax.Array) and isinstance(value.dtype, np.dtype):
        return
    if isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        dtype = np.asarray(value).dtype
        if dtype.isnative and (dtype.itemsize <= _WIDEST.get(dtype.kind, 0) or dtype.name == "bfloat16"):
            return
    raise StaticArgumentError(
        f"{kernel}: the scalar {name!r} is {value!r} of type {type(value).__name__}; allowed: bool, int (below 2**64), "
        "float, a NumPy scalar of at most 64 bits in native byte order, or a JAX array without dimensions. Pass "
        "anything else by position, as an array."
    )


def number_of(dtype: str, data: bytes) -> np.generic:
    """Return the number with this dtype and these bytes, as `freeze` returns them, as a NumPy scalar."""
    number: np.generic = np.frombuffer(data, jax.numpy.dtype(dtype))[0]
    return number


def plain_numbers(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the scalars with known values, by name.

    A bool, int64 or float64 becomes a Python number, since a Python number keeps an array's dtype in JAX arithmetic.
    """
    numbers = {name: number_of(dtype, data) for name, dtype, data in entries if data is not None}
    return {name: x.item() if x.dtype in (np.bool_, np.int64, np.float64) else x for name, x in numbers.items()}


def operand_of(dtype: str, data: bytes) -> np.ndarray[Any, Any]:
    """Return the operand for a number; see `Scalar`."""
    own = jax.numpy.dtype(dtype)
    return np.frombuffer(data, _BYTES if own.itemsize == 8 else own).reshape(())


class _Number:
    """The operand of a number, kept on the device from the second use on: a transfer takes longer than a call."""

    def __init__(self, operand: np.ndarray[Any, Any]) -> None:
        self.operand: Any = operand
        self.calls = 0

    def count(self, platform: str) -> None:
        """Count a call on *platform*."""
        self.calls += 1
        if self.calls == 2:
            if is_tracing() or not get_abstract_mesh().empty:  # the array would be a tracer, or belong to the mesh
                self.calls = 1
            else:
                self.operand = _on_device(platform, self.operand)


@functools.lru_cache(maxsize=1024)
def _cached_number(platform: str, dtype: str, data: bytes) -> _Number:
    return _Number(operand_of(dtype, data))


def _on_device(platform: str, value: np.ndarray[Any, Any]) -> jax.Array:
    """Return *value* on the first device of *platform*; JAX may move it to others."""
    try:
        device = jax.local_devices(backend=platform)[0]
    except RuntimeError:  # there is no such device, and the call itself raises an error
        device = None
    with jax.default_device(device):
        placed: jax.Array = jax.device_put(value)
    return placed


def operand(kernel: str, platform: str, name: str, value: Any) -> tuple[str, Any]:
    """Return the dtype and the operand of a scalar *value*: a number, or a JAX array, also a traced one."""
    if not isinstance(value, (bool, int, float, np.generic)) and isinstance(value, jax.Array):
        check_scalar(kernel, name, value)
        return value.dtype.name, value
    dtype, data = freeze(kernel, name, value)
    number = _cached_number(platform, dtype, data)
    if number.calls < 2:
        number.count(platform)
    return dtype, number.operand


def operands_of(entries: Sequence[Entry], unknown: Iterable[Any]) -> list[Any]:
    """Return the operands of scalars, given the operands of those without known values."""
    rest = iter(unknown)
    return [next(rest) if data is None else operand_of(dtype, data) for _, dtype, data in entries]
