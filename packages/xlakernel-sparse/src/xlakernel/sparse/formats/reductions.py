"""`Reductions`: extremes, counts and places of the elements, with SciPy's names. Duplicates are added up first."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError, StructureError

from ..operators.active import positions_of
from ..operators.arguments import as_integer, check_room
from ..operators.reductions import reduce_rows
from ..operators.units import linear, unitless
from .base import Format
from .duplicates import Known, evaluated, known_of, sums_at_places


class Reductions(Format, abc.ABC):
    """Dense results of the elements of each line or of the matrix; a base of `SparseMatrix`."""

    __slots__ = ()

    @linear
    def max(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the greatest elements, NaN where an element is NaN.

        Equal maxima share the derivative; the zeros that are not stored count as one of them.

        Args:
          axis: 0 or -2 for the maximum of each column, ``(columns,)``; 1 or -1 for that of each row, ``(rows,)``; None
            for that of the matrix, ``()``.
          explicit: if True, zeros that are not stored are left out. Where nothing is stored, the maximum is 0.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex.
        """
        return self._reduce_real("max", _compiled_extreme, axis, explicit)

    @linear
    def min(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the smallest elements, NaN where an element is NaN.

        Equal minima share the derivative; the zeros that are not stored count as one of them.

        Args:
          axis: 0 or -2 for the minimum of each column, ``(columns,)``; 1 or -1 for that of each row, ``(rows,)``; None
            for that of the matrix, ``()``.
          explicit: if True, zeros that are not stored are left out. Where nothing is stored, the minimum is 0.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex.
        """
        return self._reduce_real("min", _compiled_extreme, axis, explicit)

    @linear
    def nanmax(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the greatest elements, like `max`, but leave out NaN; NaN where all elements are NaN.

        Args:
          axis: that of `max`.
          explicit: that of `max`.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex.
        """
        return self._reduce_real("nanmax", _compiled_extreme, axis, explicit)

    @linear
    def nanmin(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the smallest elements, like `min`, but leave out NaN; NaN where all elements are NaN.

        Args:
          axis: that of `min`.
          explicit: that of `min`.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex.
        """
        return self._reduce_real("nanmin", _compiled_extreme, axis, explicit)

    @unitless
    def argmax(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the position of the greatest element, the first of equal ones; of NaN where an element is NaN.

        Args:
          axis: 0 or -2 for the row of each column's maximum, ``(columns,)``; 1 or -1 for the column of each row's,
            ``(rows,)``; None for ``row * columns + column`` of the matrix's, ``()``.
          explicit: if True, zeros that are not stored are left out. Where nothing is stored, the position is 0.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex, or there are more than JAX's integers can number.
        """
        return self._reduce_real("argmax", _compiled_position, axis, explicit)

    @unitless
    def argmin(self, axis: int | None = None, *, explicit: bool = False) -> jax.Array:
        """Return the position of the smallest element, the first of equal ones; of NaN where an element is NaN.

        Args:
          axis: 0 or -2 for the row of each column's minimum, ``(columns,)``; 1 or -1 for the column of each row's,
            ``(rows,)``; None for ``row * columns + column`` of the matrix's, ``()``.
          explicit: if True, zeros that are not stored are left out. Where nothing is stored, the position is 0.

        Raises:
          ShapeError: if the axis does not exist, or has no elements.
          DtypeError: if the elements are complex, or there are more than JAX's integers can number.
        """
        return self._reduce_real("argmin", _compiled_position, axis, explicit)

    def _reduce_real(self, method: str, reduce: Any, axis: int | None, explicit: bool) -> jax.Array:
        self._check_axis(method, axis)
        self._check_real(method)
        if 0 in (self.shape if axis is None else (self.shape[axis],)):
            raise ShapeError(f"{type(self).__name__}.{method}: a matrix of shape {self.shape} has no elements there.")
        if axis is None and reduce is _compiled_position:
            check_room(f"{type(self).__name__}.{method}", "positions", "int64", math.prod(self.shape))
        axis = None if axis is None else axis % 2
        found: jax.Array = reduce(self, method, axis, bool(explicit), known_of(self))
        return found

    def _check_real(self, method: str) -> None:
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            raise DtypeError(
                f"{type(self).__name__}.{method}: the matrix is of dtype {self.dtype}; expected integers or real "
                "numbers. A.real and A.imag are the parts of complex numbers."
            )

    @linear
    def trace(self, offset: int = 0) -> jax.Array:
        """Return the sum of a diagonal; see `diagonal`.

        Args:
          offset: 0 for the main diagonal, positive for those above it, negative for those below.

        Raises:
          ArgumentError: if *offset* is not an integer.
        """
        return jnp.sum(self.diagonal(offset))

    @unitless
    def count_nonzero(self, axis: int | None = None) -> jax.Array:
        """Count the elements that are not zero; stored zeros are not counted.

        Args:
          axis: 0 or -2 to count those of each column, ``(columns,)``; 1 or -1 for each row, ``(rows,)``; None for all.

        Raises:
          ShapeError: if the axis does not exist.
        """
        self._check_axis("count_nonzero", axis)
        count: jax.Array = _compiled_count(self, None if axis is None else axis % 2, known_of(self))
        return count

    @unitless
    def nonzero(self, *, size: int | None = None) -> tuple[jax.Array, jax.Array]:
        """Return the rows and the columns of the elements that are not zero, in the order of the entries.

        Args:
          size: the length of the results; None: the number of these elements, which must be known: if the matrix is
            traced, *size* is necessary. Results that are longer are filled up with the rows and columns of *shape*, out
            of range.

        Raises:
          ArgumentError: if *size* is not an integer of at least 0.
          StructureError: if *size* is None, and the matrix is traced.
        """
        number = None if size is None else as_integer(size)
        if size is not None and (number is None or number < 0):
            raise ArgumentError(
                f"{type(self).__name__}.nonzero: size is {size!r}; expected an integer of at least 0, or None."
            )
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self))
        if number is None and is_traced:
            raise StructureError(
                f"{type(self).__name__}.nonzero: the matrix is traced, so the number of elements that are not zero is "
                "not known. Give an upper bound: A.nonzero(size=A.nnz)."
            )
        with nullcontext() if is_traced else evaluated():
            entries, count = positions_of(_compiled_nonzero(self, known_of(self)))
            if number is None:
                number = int(count)
                if number == self.nnz:
                    return self.coordinates()
            places: tuple[jax.Array, jax.Array] = _compiled_places(self, entries, count, number)
        return places


def _reduced(matrix: Format, axis: int | None, entries: jax.Array, method: str) -> jax.Array:
    """Reduce *entries*, one number for each entry and none for padding, along *axis*, 0 or 1, or all if it is None.

    Args:
      matrix: the matrix.
      axis: the axis.
      entries: ``(nnz,)``; for padding, and for entries to be left out, a number that changes no result.
      method: "max" or "min"; or "count", for entries that are not 0.
    """
    reduced: jax.Array
    if axis is None and method == "count":
        return jnp.sum(entries.astype(bool))
    if axis is None:
        reduced = getattr(jnp, method)(entries, initial=_neutral(method, entries.dtype))
        return reduced
    if (indptr := matrix._indptr(1 - axis)) is not None:
        return reduce_rows(entries, indptr, method, jnp.result_type(int) if method == "count" else None)
    if method == "count":
        number = jnp.result_type(int)
        entries = entries.astype(bool).astype(number)
        if matrix._indptr(axis) is not None:
            return matrix._with_data(entries)._summed(axis, number)  # parallel, unlike XLA's sums of segments
    segments = getattr(jax.ops, f"segment_{'sum' if method == 'count' else method}")
    reduced = segments(entries, matrix.coordinates()[1 - axis], matrix.shape[1 - axis])
    return reduced


def _neutral(method: str, dtype: Any) -> Any:
    """Return the number of *dtype* that changes no maximum, or no minimum."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(-jnp.inf if method == "max" else jnp.inf, dtype)
    return jnp.asarray(np.iinfo(dtype).min if method == "max" else np.iinfo(dtype).max, dtype)


_BETTER: dict[str, Callable[..., jax.Array]] = {
    "max": jnp.maximum,
    "min": jnp.minimum,
    "nanmax": jnp.fmax,
    "nanmin": jnp.fmin,
}


def _extreme(matrix: Format, method: str, axis: int | None, explicit: bool, known: Known) -> jax.Array:
    """Return the maxima or minima along *axis*, 0 or 1, or of all elements if it is None."""
    elements, used = sums_at_places(matrix, known)
    elements, operation = elements.astype(matrix.dtype), method[-3:]
    neutral, zero = _neutral(operation, matrix.dtype), jnp.zeros((), matrix.dtype)
    stored = _stored(matrix, axis, used, known)
    is_valid = used & ~jnp.isnan(elements) if method.startswith("nan") else used
    found = _reduced(matrix, axis, jnp.where(is_valid, elements, neutral), operation)
    if method.startswith("nan") and jnp.issubdtype(matrix.dtype, jnp.inexact):

        def with_nan() -> jax.Array:
            return jnp.where((stored > 0) & (_reduced(matrix, axis, is_valid, "count") == 0), jnp.nan, found)

        found = jax.lax.cond(jnp.any(found == neutral), with_nan, lambda: found)
    if explicit:
        return jnp.where(stored == 0, zero, found)
    return jnp.where(_is_full(matrix, axis, stored), found, _BETTER[method](found, zero))


def _stored(matrix: Format, axis: int | None, used: jax.Array, known: Known) -> jax.Array:
    """Return the number of different places of the entries along *axis*."""
    indptr = matrix._indptr(1 - axis) if known.distinct and axis is not None else None
    return _reduced(matrix, axis, used, "count") if indptr is None else jnp.diff(indptr)


def _is_full(matrix: Format, axis: int | None, stored: jax.Array) -> jax.Array:
    """Return True if there are as many stored elements as places."""
    places = math.prod(matrix.shape) if axis is None else matrix.shape[axis]
    if places > np.iinfo(stored.dtype).max:  # more than there are entries
        return jnp.zeros(stored.shape, bool)
    return stored == places


def _position(matrix: Format, method: str, axis: int | None, explicit: bool, known: Known) -> jax.Array:
    """Return the positions of the first maxima or minima along *axis*; of all elements, row by row, if it is None."""
    elements, used = sums_at_places(matrix, known)
    best = _extreme(matrix, method[-3:], axis, explicit, known).reshape(-1)
    row, column = (along.astype(jnp.result_type(int)) for along in matrix.coordinates())
    if axis is None:
        line, place, places = jnp.zeros_like(row), row * matrix.shape[1] + column, math.prod(matrix.shape)
    else:
        line, place, places = *((row, column) if axis == 1 else (column, row)), matrix.shape[axis]
    extremes = best.at[line].get(mode="fill", fill_value=0)
    elements = elements.astype(matrix.dtype)
    is_best = used & ((elements == extremes) | (jnp.isnan(elements) & jnp.isnan(extremes)))
    first = _reduced(matrix, axis, jnp.where(is_best, place, places), "min").reshape(-1)
    stored = _stored(matrix, axis, used, known).reshape(-1)
    if explicit:
        first = jnp.where(stored == 0, 0, first)
    else:
        is_implicit = (best == 0) & ~_is_full(matrix, axis, stored)
        missing = jax.lax.cond(
            jnp.any(is_implicit), lambda: _first_missing(line, place, used, stored), lambda: jnp.zeros_like(first)
        )
        first = jnp.where(is_implicit, jnp.minimum(first, missing), first)
    return first if axis is not None else first[0]


def _first_missing(line: jax.Array, place: jax.Array, used: jax.Array, stored: jax.Array) -> jax.Array:
    """Return the first place of each line that is not stored; *stored* are the numbers of those that are."""
    line, place = jax.lax.sort((jnp.where(used, line, stored.size), place), num_keys=2)
    before = (jnp.cumsum(stored) - stored).at[line].get(mode="fill", fill_value=0)
    rank = jnp.arange(line.size) - before
    gaps = jax.ops.segment_min(jnp.where(place != rank, rank, line.size), line, stored.size)
    return jnp.minimum(gaps, stored)


def _is_nonzero(matrix: Format, known: Known) -> jax.Array:
    """Return flags of the entries, True for one entry of each element that is not 0."""
    elements, used = sums_at_places(matrix, known)
    return used & (elements.astype(matrix.dtype) != 0)


def _count_nonzero(matrix: Format, axis: int | None, known: Known) -> jax.Array:
    elements, used = sums_at_places(matrix, known)
    return _reduced(matrix, axis, jnp.where(used, elements.astype(matrix.dtype), 0), "count")


def _places(matrix: Format, entries: jax.Array, count: jax.Array, size: int) -> tuple[jax.Array, ...]:
    """Return *size* rows and columns, those of the first *count* of *entries* and those of *shape*."""
    if not matrix.nnz:  # JAX gathers from no empty array
        return tuple(jnp.full(size, extent, matrix.structure[0].dtype) for extent in matrix.shape)
    entries = jnp.pad(entries[:size], (0, max(0, size - matrix.nnz)))
    entries = jnp.where(jnp.arange(size) < count, entries, matrix.nnz)
    along = zip(matrix.coordinates(), matrix.shape, strict=True)
    return tuple(places.at[entries].get(mode="fill", fill_value=extent) for places, extent in along)


_compiled_extreme = jit_when_eager(_extreme, static_argnums=(1, 2, 3, 4))
_compiled_position = jit_when_eager(_position, static_argnums=(1, 2, 3, 4))
_compiled_nonzero = jit_when_eager(_is_nonzero, static_argnums=1)
_compiled_count = jit_when_eager(_count_nonzero, static_argnums=(1, 2))
_compiled_places = jit_when_eager(_places, static_argnums=3)
