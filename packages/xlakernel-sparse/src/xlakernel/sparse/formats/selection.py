"""Parts of a matrix: ``A[i]``, ``A[i, j]``, ``A[2:5]``, ``A[:, [3, 1]]``, ``A[np.ix_(rows, columns)]``."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, StructureError

from ..operators.arguments import check_room, is_on_cpu, put
from ..operators.entries import in_order
from ..operators.units import linear
from .base import Format, Numbers
from .symbolic import places_of


@linear
def select(matrix: Format, index: Any) -> Any:
    """Return the selected part of *matrix*: dense for one row, column or element, else sparse."""
    caller = f"{type(matrix).__name__}[...]"
    first, second = _two(caller, index)
    if _is_number(first):
        return _elements(caller, _line(caller, matrix, 0, first), 1, second)
    if _is_number(second):
        return _elements(caller, _line(caller, matrix, 1, second), 0, first)
    if not isinstance(first, slice) and not isinstance(second, slice):
        mesh = _open_mesh(first, second)
        if mesh is None:
            return _at_places(caller, matrix, first, second)
        first, second = mesh
    chosen = {axis: part for axis, part in enumerate((first, second)) if not _is_everything(part)}
    return _submatrix(caller, matrix, chosen) if chosen else matrix


def _two(caller: str, index: Any) -> tuple[Any, Any]:
    given = index if isinstance(index, tuple) else (index,)
    places = [k for k, part in enumerate(given) if part is Ellipsis]
    if len(places) == 1:
        given = (*given[: places[0]], *[slice(None)] * (3 - len(given)), *given[places[0] + 1 :])
    if len(given) > 2 or len(places) > 1 or any(part is None for part in given):
        raise ArgumentError(f"{caller}: the index is {index!r}; expected one or two integers, slices or vectors.")
    return (*given, slice(None), slice(None))[:2]


def _is_number(index: Any) -> bool:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        return False
    return np.ndim(index) == 0 and getattr(index, "dtype", np.dtype(int)).kind in "iu"


def _open_mesh(first: Any, second: Any) -> tuple[Any, Any] | None:
    """Return the vectors of a column of row numbers and a row of column numbers, which `numpy.ix_` makes, or None."""
    shapes = np.shape(first), np.shape(second)
    if [len(shape) for shape in shapes] != [2, 2] or shapes[0][1] != 1 or shapes[1][0] != 1:
        return None
    rows, columns = (part.reshape(-1) if _is_traced(part) else np.reshape(part, -1) for part in (first, second))
    return rows, columns


def _is_traced(index: Any) -> bool:
    return isinstance(index, jax.core.Tracer)


def _is_everything(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def _number(caller: str, index: Any, extent: int) -> Any:
    """Return an index as a nonnegative number; a traced index is clipped to the range, as by JAX."""
    if _is_traced(index):
        return _clipped(index, extent)
    number = operator.index(index)
    if not -extent <= number < extent:
        raise IndexError(f"{caller}: the index {number} is out of range for an extent of {extent}.")
    return number % extent


def _clipped(index: jax.Array, extent: int) -> jax.Array:
    """Clip traced numbers to the range from 0 to *extent* - 1, in a dtype that can hold them all."""
    last = max(extent - 1, 0)
    wide = jnp.int32 if last <= np.iinfo(np.int32).max else jnp.int64
    if index.dtype.kind == "u":
        return jnp.minimum(index, min(last, int(np.iinfo(index.dtype).max))).astype(wide)
    index = index.astype(jnp.promote_types(index.dtype, wide))
    return jnp.clip(jnp.where(index < 0, index + extent, index), 0, last)


def _line(caller: str, matrix: Format, axis: int, index: Any) -> jax.Array:
    """Return a row or a column as a dense vector."""
    return matrix._line(axis, _number(caller, index, matrix.shape[axis]))


def _elements(caller: str, line: jax.Array, axis: int, chosen: Any) -> jax.Array:
    """Return one element or several of a dense row or column, which runs along *axis* of the matrix."""
    if _is_number(chosen):
        return line[_number(caller, chosen, line.shape[0])]
    if _is_traced(chosen) and chosen.ndim == 1 and chosen.dtype.kind in "iu":
        return line[_clipped(chosen, line.shape[0])]
    return line[chosen if isinstance(chosen, slice) else _numbers(caller, chosen, axis, line.shape[0])]


def _at_places(caller: str, matrix: Format, first: Any, second: Any) -> jax.Array:
    """Return the elements at these pairs of rows and columns as a vector, like NumPy and SciPy."""
    chosen = enumerate((first, second))
    row, column = (np.asarray(_numbers(caller, part, axis, matrix.shape[axis])) for axis, part in chosen)
    if row.shape != column.shape and 1 not in (row.size, column.size):
        raise ArgumentError(
            f"{caller}: there are {row.size} rows and {column.size} columns, which are no pairs. For a submatrix write "
            "A[np.ix_(rows, columns)]."
        )
    places = places_of(caller, matrix, 0)
    rows, columns = matrix.shape
    keys = np.repeat(np.arange(rows) * columns, np.diff(places.indptr)) + np.asarray(places.indices)  # these ascend
    wanted = row.astype(np.int64) * columns + column
    at = np.searchsorted(keys, wanted)
    is_stored = np.append(keys, -1)[at] == wanted
    weights = places.weights(matrix).astype(matrix.dtype)
    return jnp.append(weights, jnp.zeros(1, matrix.dtype))[np.where(is_stored, at, keys.size)]


def _submatrix(caller: str, matrix: Format, chosen: Mapping[int, Any]) -> Format:
    """Return some of the rows and columns, by axis, as a matrix of the same format."""
    shape, structure, data = list(matrix.shape), matrix._index_arrays, matrix._weights
    traced = [isinstance(each, jax.core.Tracer) for each in (*structure, *chosen.values())]
    if any(traced):
        found = _traced_lines(caller, matrix, chosen)
        if found is not None:
            return found
    numbers = {axis: _numbers(caller, part, axis, shape[axis]) for axis, part in chosen.items()}
    if traced[0] or traced[1]:
        raise StructureError(
            f"{caller}: the matrix is traced, so the number of entries of its part is not known yet. Select the part "
            "outside of jit; or one line, A[i] or A[:, j], which is dense; or several, jax.vmap(lambda i: A[i])(rows)."
        )
    for axis in numbers:
        shape[axis] = len(numbers[axis])
    if max(shape) > max(matrix.shape):
        for array in structure:
            check_room(caller, "rows and columns", array.dtype, max(shape))
    is_on_host = is_on_cpu(data)  # then no program is compiled for the number of entries
    places, values = matrix._part(numbers, [] if matrix.homogeneous else [np.asarray(data) if is_on_host else None])
    for found in values:
        data = put(found, data) if is_on_host else in_order(data, found)
    # The weights may be traced while the structure is known.
    first, second = put(places[0], structure[0]), put(places[1], structure[1])
    part: Format = matrix._with_part(numbers, data, first, second, (shape[0], shape[1]))
    return part


def _traced_lines(caller: str, matrix: Format, chosen: Mapping[int, Any]) -> Format | None:
    """Return lines of a traced matrix, or of traced numbers; None if their number of entries is not known."""
    if len(chosen) != 1:
        return None
    ((axis, part),) = chosen.items()
    extent = matrix.shape[axis]
    numbers: Any
    if _is_traced(part):
        numbers = _clipped(part, extent) if part.ndim == 1 and part.dtype.kind in "iu" and extent else None
    else:
        numbers = np.asarray(_numbers(caller, part, axis, extent))
    return None if numbers is None else matrix._traced_lines(axis, numbers)


def _numbers(caller: str, chosen: Any, axis: int, extent: int) -> Numbers:
    """Return the numbers of the chosen lines, rows where *axis* is 0."""
    if isinstance(chosen, slice):
        numbers = range(extent)[chosen]
        return numbers if numbers and numbers.step == 1 else np.arange(extent)[chosen]
    if not _is_traced(chosen):
        chosen = np.asarray(chosen)
        chosen = chosen if chosen.size else chosen.astype(np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iub":
        raise ArgumentError(
            f"{caller}: the index is {chosen!r}; expected an integer, a slice, or a vector of integers or of bools. "
            "For a submatrix write A[np.ix_(rows, columns)]."
        )
    if _is_traced(chosen):
        raise StructureError(
            f"{caller}: the index is traced, so the number of entries of the part is not known yet. Give known "
            "indices; or select dense lines, jax.vmap(lambda i: A[i])(rows)."
        )
    lines = ("rows", "columns")[axis]
    if chosen.dtype.kind == "b":
        if len(chosen) != extent:
            raise IndexError(
                f"{caller}: the index is a vector of {len(chosen)} bools; the matrix has {extent} {lines}."
            )
        return np.flatnonzero(chosen)
    if chosen.size and not (-extent <= chosen.min() and chosen.max() < extent):
        wrong = chosen[(chosen < -extent) | (chosen >= extent)]
        raise IndexError(f"{caller}: the index {wrong[0]} is out of range for {extent} {lines}.")
    selected = np.array(chosen, np.int64)
    is_negative = selected < 0
    return np.where(is_negative, selected + extent, selected) if is_negative.any() else selected
