"""Checks of what the operators are called with: ranks, lengths and dtypes, which are known while tracing."""

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

from xlakernel.core.errors import DtypeError, InputError, ShapeError

from .dtypes import check_dtype
from .operand import BINARY, DENSE, Operand


def as_array(who: str, what: str, value: Any) -> jax.Array:
    """Return *value* as a JAX array.

    Raises:
      InputError: if it is none and nothing that NumPy takes for one.
    """
    if isinstance(value, jax.Array):  # what is known stays so inside of jit
        return value
    try:
        # `asarray` of jax before 0.8 may use NumPy's memory in place, and indices that were checked change with it.
        return jnp.array(value) if isinstance(value, np.ndarray) else jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        theirs = " SciPy's matrices come by CSR.from_scipy." * type(value).__module__.startswith("scipy.sparse")
        raise InputError(
            f"{who}: {what} is {reprlib.repr(value)} of type {type(value).__name__}; expected an array.{theirs}"
        ) from error


def is_known(value: Any) -> bool:
    """Whether *value* is an array or a number whose values this process can look at."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    return isinstance(value, (np.ndarray, np.generic, int))


def known_stays_known(value: Any) -> AbstractContextManager[Any]:
    """Return a context in which what is made of *value* is not traced inside of jit, unless it is itself.

    Its values are then known to checks.
    """
    return jax.ensure_compile_time_eval() if is_known(value) else nullcontext()


def fits(number: Any, dtype: Any) -> bool:
    """Whether integers of *dtype* can count as far as *number*; one that is symbolic is taken for a number that can."""
    return export.is_symbolic_dim(number) or bool(number <= np.iinfo(dtype).max)


def check_shape(who: str, shape: Any) -> tuple[int, int]:
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
            f"{who}: shape is {shape!r}; expected (rows, columns), two integers.{hint * symbolic}"
        ) from error
    if rows < 0 or cols < 0:
        raise ShapeError(f"{who}: shape is {(rows, cols)}; both must be at least 0.")
    return rows, cols


def check_size(who: str, size: Any) -> int:
    """Return the number of an array's elements as a Python integer.

    Raises:
      ShapeError: if it is none, or negative.
    """
    number = as_integer(size)
    if number is None or number < 0:
        raise ShapeError(f"{who}: size is {size!r}; expected an integer of at least 0.")
    return number


def as_integer(value: Any) -> int | None:
    """Return *value* as a Python integer; None if it is none, or a bool."""
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


def check_room(who: str, what: str, dtype: Any, most: Any) -> None:
    """Raise `DtypeError` unless numbers from 0 to *most* can be of *dtype*, an integer one; JAX would wrap them."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if not fits(most, dtype):
        raise DtypeError(
            f"{who}: {what} up to {most} have no room in {dtype}, which ends at {np.iinfo(dtype).max}. Take int64."
            f"{_hint_of_wider()}"
        )


def index_array(who: str, what: str, value: Any) -> jax.Array:
    """Return *value* as a 1-D array of int32 or int64.

    Raises:
      ShapeError: if it has another rank.
      DtypeError: if it is of another dtype, or holds numbers that need int64 while JAX's 64-bit types are off.
    """
    if isinstance(value, jax.Array) and value.ndim == 1 and value.dtype.name in ("int32", "int64"):
        return value  # as in most calls, of which each costs time
    widest = jax.dtypes.canonicalize_dtype("int64")  # int32 where JAX's 64-bit types are off
    if isinstance(value, (list, tuple, range)):
        value = _known_numbers(value)
    if is_known(value) and _has_integers(value):
        value = _with_room(who, what, np.asarray(value), widest)  # by NumPy, and so never traced
    with known_stays_known(value):
        array = as_array(who, what, value)
    if array.ndim != 1:
        raise ShapeError(f"{who}: {what} has the shape {array.shape}; expected one dimension.")
    if not _has_integers(array):
        raise DtypeError(f"{who}: {what} is of dtype {array.dtype}; expected int32 or int64.")
    return array.astype(_index_dtype(array.dtype, widest))


def _has_integers(array: Any) -> bool:
    dtype = getattr(array, "dtype", None)  # that of a key of `jax.random` is none of NumPy's
    return isinstance(dtype, np.dtype) and dtype.kind in "iu"


def _index_dtype(dtype: Any, widest: Any) -> Any:
    """Return which of int32 and int64 indices of another integer dtype become."""
    return np.dtype("int32") if dtype.itemsize < 4 else dtype if dtype in ("int32", "int64") else widest


def _with_room(who: str, what: str, known: np.ndarray, widest: Any) -> np.ndarray:
    """Return known integers as int32 or int64."""
    if not np.can_cast(known.dtype, widest):
        limits = np.iinfo(widest)
        lost = known[(known > limits.max) | (known < limits.min)]
        if lost.size:
            raise DtypeError(
                f"{who}: {what} holds {lost.flat[0]}; {widest} has room from {limits.min} to {limits.max}."
                f"{_hint_of_wider()}"
            )
        return known.astype(widest)
    return known.astype(_index_dtype(known.dtype, widest), copy=False)


def _known_numbers(numbers: Sequence[Any]) -> Any:
    """Return *numbers* as an array of NumPy's; as they are if some are traced, or are no numbers."""
    if not numbers:
        return np.zeros(0, np.int32)  # and not of floats, as NumPy takes it
    try:
        known = np.asarray(numbers)
    except (TypeError, ValueError):  # what is traced, or of several lengths
        return numbers
    return known if known.dtype.kind in "iufbc" else numbers


def check_compressed(who: str, data: Any, indices: Any, indptr: Any, shape: Any) -> Any:
    """Return the arrays of a matrix in compressed rows, and its shape, as they must be.

    Raises:
      ShapeError, DtypeError: if their lengths, ranks or dtypes do not fit each other, or the shape.
    """
    shape = check_shape(who, shape)
    indices, indptr = check_structure(who, indices, indptr, shape)
    return check_data(who, data, indices.shape[0]), indices, indptr, shape


def check_structure(who: str, indices: Any, indptr: Any, shape: tuple[int, int], *, lines: str = "rows") -> Any:
    """Return the index arrays of a matrix compressed by *lines*, the first extent of *shape*, as they must be."""
    indices, indptr = index_array(who, "indices", indices), index_array(who, "indptr", indptr)
    if indptr.shape[0] != shape[0] + 1:
        raise ShapeError(
            f"{who}: indptr has {indptr.shape[0]} elements; a matrix with {shape[0]} {lines} has {shape[0] + 1}, one "
            "more."
        )
    # Padding is in the row and the column behind the last; and either array may hold either in a conversion.
    for array in (indices, indptr):
        check_room(who, "rows and columns", array.dtype, max(shape))
    check_room(who, "numbers of entries", indptr.dtype, indices.shape[0])
    return indices, indptr


def check_data(who: str, data: Any, entries: int) -> jax.Array:
    """Return the weights of a matrix with this many entries: as many, or one for all."""
    array = as_array(who, "data", data)
    if array.ndim != 1 or array.shape[0] not in (1, entries):
        raise ShapeError(
            f"{who}: data has the shape {array.shape}; expected ({entries},), one number for each of the indices, or "
            "(1,) where all entries are equal."
        )
    return strong(who, "data", array)


def strong(who: str, what: str, array: jax.Array) -> jax.Array:
    """Return weights of a dtype that they may have, which is not JAX's weak one: that of x would win against it.

    Raises:
      DtypeError: if they are of another.
    """
    check_dtype(who, what, array.dtype)
    return array.astype(array.dtype)


def check_operand(
    who: str, operand: Operand, x: Any, ranks: Sequence[int], length: int, shape: tuple[int, int]
) -> jax.Array:
    """Return *x* as an array with one of the *ranks* and *length* elements along its first axis.

    Raises:
      ShapeError: if it has another rank or length.
      DtypeError: if a matrix cannot be multiplied by its dtype.
    """
    what = "x" if operand is DENSE else "events"
    array = as_array(who, what, x)
    if array.ndim not in ranks or array.shape[0] != length:
        forms = {1: f"({length},)", 2: f"({length}, k)"}
        raise ShapeError(
            f"{who}: {what} has the shape {array.shape}; with a matrix of shape {shape} it must be "
            f"{' or '.join(forms[rank] for rank in ranks)}."
        )
    if array.dtype != bool:
        check_dtype(who, what, array.dtype)
    if operand is BINARY and array.dtype.kind == "c":
        raise DtypeError(f"{who}: events are of dtype {array.dtype}; expected bool, integers or real numbers.")
    return array
