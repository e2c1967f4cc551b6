"""Parts of a matrix: ``A[i]``, ``A[i, j]``, ``A[2:5]``, ``A[:, [3, 1]]``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, StructureError

from ..events.arrays import BinaryArray
from ..operators.entries import in_order
from .base import Format


def select(matrix: Format, index: Any) -> Any:
    """Return the part of *matrix* that *index* asks for, dense where it asks for one row or column, else sparse."""
    who = f"{type(matrix).__name__}[...]"
    first, second = _two(who, index)
    if _is_number(first):
        return _elements(who, _line(who, matrix, 0, first), 1, second)
    if _is_number(second):
        return _elements(who, _line(who, matrix, 1, second), 0, first)
    if _is_list(first) and _is_list(second):
        raise ArgumentError(
            f"{who}: both indices are arrays, which NumPy takes for pairs. For a submatrix write A[rows][:, columns]; "
            "for elements A.todense()[rows, columns]."
        )
    chosen = {axis: part for axis, part in enumerate((first, second)) if not _is_everything(part)}
    return _submatrix(who, matrix, chosen) if chosen else matrix


def _two(who: str, index: Any) -> tuple[Any, Any]:
    given = index if isinstance(index, tuple) else (index,)
    if len(given) > 2 or any(part is None or part is Ellipsis for part in given):
        raise ArgumentError(f"{who}: the index is {index!r}; expected one or two integers, slices or vectors.")
    return (*given, slice(None), slice(None))[:2]


def _is_number(index: Any) -> bool:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        return False
    return np.ndim(index) == 0 and getattr(index, "dtype", np.dtype(int)).kind in "iu"


def _is_traced(index: Any) -> bool:
    return isinstance(index, jax.core.Tracer)


def _is_list(index: Any) -> bool:
    return not isinstance(index, slice)


def _is_everything(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _number(who: str, index: Any, extent: int) -> Any:
    """Return a number from 0 on; one that is traced is brought into the range, as JAX does."""
    if _is_traced(index):
        return _within(index, extent)
    number = operator.index(index)
    if not -extent <= number < extent:
        raise IndexError(f"{who}: the index {number} is out of range for an extent of {extent}.")
    return number % extent


def _within(index: jax.Array, extent: int) -> jax.Array:
    """Bring a traced number into the range from 0 to *extent* - 1; its own dtype may have no room for that."""
    last = max(extent - 1, 0)
    wide = jnp.int32 if last <= np.iinfo(np.int32).max else jnp.int64
    if index.dtype.kind == "u":
        return jnp.minimum(index, min(last, int(np.iinfo(index.dtype).max))).astype(wide)
    index = index.astype(jnp.promote_types(index.dtype, wide))
    return jnp.clip(jnp.where(index < 0, index + extent, index), 0, last)


def _line(who: str, matrix: Format, axis: int, index: Any) -> jax.Array:
    """Return a row or a column as a dense vector: the product with the event that asks for it."""
    extent = matrix.shape[axis]
    event = BinaryArray(_is_number_of(_number(who, index, extent), extent))
    return event @ matrix if axis == 0 else matrix @ event  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnums=1)
def _is_number_of(number: jax.Array, extent: int) -> jax.Array:
    return jnp.arange(extent) == number


def _elements(who: str, line: jax.Array, axis: int, chosen: Any) -> jax.Array:
    """Return one element or several of a dense row or column, along *axis* of the matrix."""
    if _is_number(chosen):
        return line[_number(who, chosen, line.shape[0])]
    if _is_traced(chosen) and chosen.ndim == 1 and chosen.dtype.kind in "iu":
        return line[_within(chosen, line.shape[0])]
    return line[chosen if isinstance(chosen, slice) else _numbers(who, chosen, axis, line.shape[0])]


def _submatrix(who: str, matrix: Format, chosen: Mapping[int, Any]) -> Format:
    """Return some of the rows and columns, by axis, as a matrix of the same format."""
    numbers = {axis: _numbers(who, part, axis, matrix.shape[axis]) for axis, part in chosen.items()}
    if any(map(_is_traced, matrix.structure)):
        raise StructureError(
            f"{who}: the matrix is traced, so how many entries its part has is not known yet. Take the part outside of "
            "jit; or one line, A[i] or A[:, j], which is dense; or several, jax.vmap(lambda i: A[i])(rows)."
        )
    # The weights may be traced where the structure is known: what is selected from are the numbers of the entries.
    with jax.ensure_compile_time_eval():
        # Of an array of NumPy's as it is, the constructor would compile a program that copies it.
        dtype = "int32" if matrix.nnz <= np.iinfo(np.int32).max else "int64"
        entries = jax.device_put(np.arange(matrix.nnz, dtype=dtype))
        part = type(matrix)((entries, *matrix.structure), shape=matrix.shape, check=False)
        for axis, lines in numbers.items():
            part = _lines(part, axis, lines)
    return part.with_data(matrix.data if matrix.homogeneous else in_order(matrix.data, part.data))


def _lines(matrix: Format, axis: int, numbers: np.ndarray) -> Format:
    """Return these rows or columns as a matrix of the same format."""
    data, *structure = matrix._lines(axis)
    indices, indptr = map(np.asarray, structure)
    lengths = np.diff(indptr)[numbers]
    ends = np.cumsum(lengths)
    # The entries of line after line: each line's counts on from where it begins.
    entries = np.arange(ends[-1] if ends.size else 0) + np.repeat(indptr[:-1][numbers] - (ends - lengths), lengths)
    data = data if matrix.homogeneous else in_order(data, entries)
    starts = np.concatenate([[0], ends]).astype(indptr.dtype)
    rows, columns = matrix.shape
    shape = (rows, len(numbers)) if axis else (len(numbers), columns)
    return matrix._of_lines(axis, (data, *jax.device_put((indices[entries], starts))), shape)


def _numbers(who: str, chosen: Any, axis: int, extent: int) -> np.ndarray:
    """Return the numbers of the chosen lines, rows where *axis* is 0."""
    if isinstance(chosen, slice):
        return np.arange(extent)[chosen]
    if not _is_traced(chosen):
        chosen = np.asarray(chosen)
        chosen = chosen if chosen.size else chosen.astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iub":
        raise ArgumentError(
            f"{who}: the index is {chosen!r}; expected an integer, a slice, or a vector of integers or of bools."
        )
    if _is_traced(chosen):
        raise StructureError(
            f"{who}: the index is traced, so how many entries the part has is not known yet. Use one that is known; or "
            "take dense lines, jax.vmap(lambda i: A[i])(rows)."
        )
    lines = ("rows", "columns")[axis]
    if chosen.dtype.kind == "b" and len(chosen) != extent:
        raise IndexError(f"{who}: the index is a vector of {len(chosen)} bools; the matrix has {extent} {lines}.")
    if chosen.dtype.kind != "b":
        wrong = chosen[(chosen < -extent) | (chosen >= extent)]
        if wrong.size:
            raise IndexError(f"{who}: the index {wrong[0]} is out of range for {extent} {lines}.")
    numbers: np.ndarray = np.arange(extent)[chosen]
    return numbers
