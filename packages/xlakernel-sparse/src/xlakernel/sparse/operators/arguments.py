"""Checks of the operators' arguments: of ranks, lengths and dtypes, which JAX knows while tracing."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from xlakernel.core.backend import is_tracing
from xlakernel.core.errors import DtypeError, InputError, ShapeError

from .._compat import put_beside
from .dtypes import check_dtype
from .operand import BINARY, DENSE, Operand
from .units import check_plain

#: The alignment, in bytes, of memory that XLA uses as it is, and the size from which a second copy costs much.
_ALIGNMENT, _LARGE = 64, 1 << 16


def as_array(caller: str, what: str, value: Any) -> jax.Array:
    """Return *value* as a JAX array.

    Raises:
      InputError: if *value* cannot be converted, or is a quantity with a unit.
      DtypeError: if JAX would wrap an integer of *value*.
    """
    if isinstance(value, jax.Array):  # without a conversion, which jit would trace
        return value
    check_plain(caller, what, value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iu":
        _check_not_wrapped(caller, what, np.asarray(value), jax.dtypes.canonicalize_dtype(value.dtype))
    is_native = not isinstance(value, np.ndarray) or value.dtype.isnative
    try:
        if not is_native or isinstance(value, np.ma.MaskedArray):  # jax before 0.8 would accept the byte order
            raise TypeError
        if isinstance(value, np.ndarray) and value.dtype == bool:
            # A mask, for example from np.frombuffer, may have bytes other than 0 and 1.
            return jnp.asarray(value.view(np.uint8) != 0)
        return _own(value) if isinstance(value, np.ndarray) else jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.char in "gG":  # long double
            check_dtype(caller, what, value.dtype)
        hint = " Convert SciPy's matrices with CSR.from_scipy." * type(value).__module__.startswith("scipy.sparse")
        if isinstance(error, OverflowError):
            hint = f" JAX's integers go up to {np.iinfo(jax.dtypes.canonicalize_dtype('int64')).max}.{_hint_of_wider()}"
        if isinstance(value, np.ma.MaskedArray):
            hint = " Replace its masked elements, as in x.filled(0)."
        if not is_native:
            hint = " Convert it to the native byte order, x.astype(x.dtype.newbyteorder('='))."
        raise InputError(
            f"{caller}: {what} is {reprlib.repr(value)} of type {type(value).__name__}; expected an array.{hint}"
        ) from error


def _own(array: np.ndarray) -> jax.Array:
    """Return a copy of *array* as a JAX array; indices must not change after they were checked."""
    if array.nbytes < _LARGE or is_tracing() or jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return jnp.array(array)  # which would copy a large array twice
    found: jax.Array = jax.device_put(copied(array))
    return found


def copied(array: np.ndarray) -> np.ndarray:
    """Return a copy of *array*, which JAX uses without another copy if it is large."""
    if array.nbytes < _LARGE:
        return array.copy()
    copy = empty(array.size, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def empty(size: int, dtype: Any) -> np.ndarray:
    """Return an uninitialized vector, which JAX uses without a copy if it is large."""
    nbytes = size * dtype.itemsize
    if nbytes < _LARGE:
        return np.empty(size, dtype)
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + nbytes].view(dtype)


def bits(array: np.ndarray) -> np.ndarray:
    """Return *array* as unsigned integers, for kernels that copy elements of any dtype; complex128 as it is."""
    return array if array.itemsize == 16 else array.view(f"u{array.itemsize}")


def put(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Return *array*, to which nothing else writes, as a JAX array on the device of *like*; JAX does not trace it."""
    is_exact = jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype
    if is_exact and isinstance(like.sharding, jax.sharding.SingleDeviceSharding):
        return put_beside(array, like)
    with jax.ensure_compile_time_eval():
        placed: jax.Array = jax.device_put(array, device_of(like))
    return placed


def is_known(value: Any) -> bool:
    """Return True for an array or a number whose values this process can read."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    return isinstance(value, (np.ndarray, np.generic, int))


def is_on_cpu(array: jax.Array) -> bool:
    """Return True for a known array on CPU devices, which NumPy can read."""
    return is_known(array) and all(device.platform == "cpu" for device in array.devices())


def device_of(array: Any) -> Any:
    """Return the device that *array* is committed to; None if there is none, or several."""
    is_committed = isinstance(array, jax.Array) and getattr(array, "committed", False)
    devices = array.devices() if is_committed else ()
    return next(iter(devices)) if len(devices) == 1 else None


def fits(number: Any, dtype: Any) -> bool:
    """Return True if integers of *dtype* can hold *number*; True for symbolic numbers."""
    return export.is_symbolic_dim(number) or bool(number <= np.iinfo(dtype).max)


def check_shape(caller: str, shape: Any) -> tuple[int, int]:
    """Return the *shape* of a matrix as two Python integers."""
    try:
        rows, cols = map(operator.index, shape)
    except (TypeError, ValueError) as error:
        symbolic = isinstance(shape, Sequence) and any(map(export.is_symbolic_dim, shape))
        hint = (
            " A program is exported for a matrix of one shape; the number of entries, columns of dense operands and "
            "batches may be symbolic."
        )
        raise ShapeError(
            f"{caller}: shape is {shape!r}; expected (rows, columns), two integers.{hint * symbolic}"
        ) from error
    if rows < 0 or cols < 0:
        raise ShapeError(f"{caller}: shape is {(rows, cols)}; both must be at least 0.")
    return rows, cols


def check_size(caller: str, size: Any) -> int:
    """Return the number of an array's elements as a Python integer.

    Raises:
      ShapeError: if *size* is negative or is not an integer.
    """
    number = as_integer(size)
    if number is None or number < 0:
        raise ShapeError(f"{caller}: size is {size!r}; expected an integer of at least 0.")
    return number


def as_integer(value: Any) -> int | None:
    """Return *value* as a Python integer; None for a bool or another type."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _hint_of_wider() -> str:
    if jax.dtypes.canonicalize_dtype("int64").itemsize == 8:
        return ""
    return ' JAX\'s 64-bit types are off; switch them on with jax.config.update("jax_enable_x64", True).'


def check_room(caller: str, what: str, dtype: Any, most: Any) -> None:
    """Raise `DtypeError` unless integers of *dtype* can hold 0 to *most*; JAX would wrap larger numbers."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if not fits(most, dtype):
        raise DtypeError(
            f"{caller}: {what} up to {most} do not fit into {dtype}, whose maximum is {np.iinfo(dtype).max}. Use int64."
            f"{_hint_of_wider()}"
        )


def check_entries(caller: str, indptr: Any) -> int:
    """Return the number of entries that *indptr* counts, row by row; its numbers may have wrapped around.

    Raises:
      DtypeError: if they have.
    """
    lengths = np.diff(np.asarray(indptr))  # correct in any case: a row has fewer entries than the dtype has numbers
    entries = int(lengths.sum(dtype=np.int64))
    check_room(caller, "numbers of entries", indptr.dtype, entries)
    return entries


def index_array(caller: str, what: str, value: Any, *, rank: int = 1) -> jax.Array:
    """Return *value* as an array of int32 or int64; jit does not trace a conversion of known values.

    Raises:
      ShapeError: if *value* does not have *rank* dimensions, 1 or 2.
      DtypeError: if *value* has other elements than integers, or integers outside the range of int64, or of int32 while
        JAX's 64-bit types are off.
    """
    if isinstance(value, jax.Array) and value.ndim == rank and value.dtype.name in ("int32", "int64"):
        return value  # the common case, in which each check costs time
    widest = jax.dtypes.canonicalize_dtype("int64")  # int32 where JAX's 64-bit types are off
    if isinstance(value, (list, tuple, range)):
        value = known_numbers(value)
    if is_known(value) and _has_integers(value):
        value = _without_wrapping(caller, what, np.asarray(value), widest)  # NumPy does not trace
    context: AbstractContextManager[Any] = jax.ensure_compile_time_eval() if is_known(value) else nullcontext()
    with context:
        array = as_array(caller, what, value)
    if array.ndim != rank:
        dimensions = "one dimension" if rank == 1 else "two dimensions"
        raise ShapeError(f"{caller}: {what} has the shape {array.shape}; expected {dimensions}.")
    if not _has_integers(array):
        raise DtypeError(f"{caller}: {what} is of dtype {array.dtype}; expected int32 or int64.")
    return array.astype(_index_dtype(array.dtype, widest))


def _has_integers(array: Any) -> bool:
    dtype = getattr(array, "dtype", None)  # the dtype of a `jax.random` key is not a NumPy dtype
    return isinstance(dtype, np.dtype) and dtype.kind in "iu"


def _index_dtype(dtype: Any, widest: Any) -> Any:
    """Return the dtype, int32 or int64, that indices of the integer dtype *dtype* are converted to."""
    return np.dtype("int32") if dtype.itemsize < 4 else dtype if dtype in ("int32", "int64") else widest


def _without_wrapping(caller: str, what: str, known: np.ndarray, widest: Any) -> np.ndarray:
    """Return known integers as int32 or int64.

    Raises:
      DtypeError: if JAX would wrap one of the integers.
    """
    if np.can_cast(known.dtype, widest):
        return known.astype(_index_dtype(known.dtype, widest), copy=False)
    _check_not_wrapped(caller, what, known, widest)
    return known.astype(widest)


def _check_not_wrapped(caller: str, what: str, known: np.ndarray, dtype: Any) -> None:
    """Raise `DtypeError` if an integer is outside the range of *dtype*."""
    if np.can_cast(known.dtype, dtype):
        return
    limits = np.iinfo(dtype)
    lost = known[(known > limits.max) | (known < limits.min)]
    if lost.size:
        raise DtypeError(
            f"{caller}: {what} holds {lost.flat[0]}; {dtype} ranges from {limits.min} to {limits.max}."
            f"{_hint_of_wider()}"
        )


def known_numbers(numbers: Any) -> Any:
    """Return *numbers* as a NumPy array, or unchanged if some elements are traced or are not numbers."""
    if isinstance(numbers, Sequence) and not numbers:
        return np.zeros(0, np.int32)  # NumPy's default would be float64
    try:
        known = np.asarray(numbers)
    except (TypeError, ValueError):  # traced numbers, or rows of several lengths
        return numbers
    return known if known.dtype.kind in "iufbc" else numbers


def check_compressed(caller: str, data: Any, indices: Any, indptr: Any, shape: Any) -> Any:
    """Return the checked arrays of a matrix in compressed rows, and its shape.

    Raises:
      ShapeError, DtypeError: if the arrays' lengths, ranks or dtypes do not fit each other or *shape*.
    """
    shape = check_shape(caller, shape)
    indices, indptr = check_structure(caller, indices, indptr, shape)
    return check_data(caller, data, indices.shape[0]), indices, indptr, shape


def check_structure(caller: str, indices: Any, indptr: Any, shape: tuple[int, int], *, lines: str = "rows") -> Any:
    """Return the checked index arrays of a matrix with ``shape[0]`` compressed *lines*, "rows" or "columns"."""
    indices, indptr = index_array(caller, "indices", indices), index_array(caller, "indptr", indptr)
    if indptr.shape[0] != shape[0] + 1:
        raise ShapeError(
            f"{caller}: indptr has {indptr.shape[0]} elements; a matrix with {shape[0]} {lines} has {shape[0] + 1}, "
            "one more."
        )
    # Padding has the row and the column after the last ones, and conversions may store rows or columns in either array.
    for array in (indices, indptr):
        check_room(caller, "rows and columns", array.dtype, max(shape))
    check_room(caller, "numbers of entries", indptr.dtype, indices.shape[0])
    return indices, indptr


def check_data(caller: str, data: Any, entries: int) -> jax.Array:
    """Return the checked weights of a matrix: one for each of its *entries*, or one for all."""
    array = as_array(caller, "data", data)
    if array.ndim != 1 or array.shape[0] not in (1, entries):
        raise ShapeError(
            f"{caller}: data has the shape {array.shape}; expected ({entries},), one number for each of the indices, "
            "or (1,) where all entries are equal."
        )
    return strong(caller, "data", array)


def strong(caller: str, what: str, array: jax.Array) -> jax.Array:
    """Return the weights *array* without JAX's weak type; weakly typed weights would adopt the dtype of the operand.

    Raises:
      DtypeError: if the dtype of *array* is not supported.
    """
    check_dtype(caller, what, array.dtype)
    return array.astype(array.dtype)


def check_operand(
    caller: str, operand: Operand, x: Any, ranks: Sequence[int], length: int, shape: tuple[int, int]
) -> jax.Array:
    """Return *x* as an array with one of the *ranks* and *length* elements along its first axis.

    Raises:
      ShapeError: if *x* has another rank or length.
      DtypeError: if operands of this kind cannot have the dtype of *x*.
    """
    what = "x" if operand is DENSE else "events"
    array = as_array(caller, what, x)
    if array.ndim not in ranks or array.shape[0] != length:
        forms = {1: f"({length},)", 2: f"({length}, k)"}
        raise ShapeError(
            f"{caller}: {what} has the shape {array.shape}; with a matrix of shape {shape} it must be "
            f"{' or '.join(forms[rank] for rank in ranks)}."
        )
    if array.dtype != bool:
        check_dtype(caller, what, array.dtype)
    if operand is BINARY and array.dtype.kind == "c":
        raise DtypeError(f"{caller}: events are of dtype {array.dtype}; expected bool, integers or real numbers.")
    return array
