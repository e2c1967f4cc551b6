"""`Arithmetic`: elementwise operators of sparse matrices."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import InputError, ShapeError

from ..events.arrays import EventArray
from ..operators.arguments import as_array
from ..operators.dtypes import SUPPORTED
from ..operators.units import bilinear, in_unit, joined, linear, split
from .base import Format
from .duplicates import known_of
from .symbolic import combine

_NUMBERS = (bool, int, float, complex, np.generic)


class Arithmetic(Format, abc.ABC):
    """Python's operators, except products; a base of `Elements`."""

    __slots__ = ()

    #: A matrix is not hashable, like an array of JAX, since ``==`` does not compare objects.
    __hash__ = None  # type: ignore[assignment]  # Python's own convention

    def __eq__(self, other: object) -> bool:
        _refuse_comparison(self, "==", other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        _refuse_comparison(self, "!=", other)
        return NotImplemented

    def __lt__(self, other: object) -> bool:
        _refuse_comparison(self, "<", other)
        return NotImplemented

    def __le__(self, other: object) -> bool:
        _refuse_comparison(self, "<=", other)
        return NotImplemented

    def __gt__(self, other: object) -> bool:
        _refuse_comparison(self, ">", other)
        return NotImplemented

    def __ge__(self, other: object) -> bool:
        _refuse_comparison(self, ">=", other)
        return NotImplemented

    @linear
    def __neg__(self) -> Self:
        return self.with_data(-self.data)

    def __pos__(self) -> Self:
        return self

    @bilinear
    def __mul__(self, other: Any) -> Self:
        if isinstance(other, Format):
            product: Self = _combined(self, "*", other, jnp.multiply, common=True)
            return product
        return self.with_data(entry_weights(self) * _factor_of(self, "*", other))

    __rmul__ = __mul__

    @linear
    def __truediv__(self, other: Any) -> Self:
        return self.with_data(entry_weights(self) / _factor_of(self, "/", other))

    def __add__(self, other: Any) -> Any:
        return self if _is_zero(other) else _added(self, "+", other, jnp.add)

    __radd__ = __add__  # `sum` begins with 0

    def __sub__(self, other: Any) -> Any:
        return self if _is_zero(other) else _added(self, "-", other, jnp.subtract)

    def __rsub__(self, other: Any) -> Any:
        # Not -self + other: integers would wrap before they have the result's dtype.
        return -self if _is_zero(other) else _added(self, "-", other, _subtracted_from)

    def multiply(self, other: Any) -> Self:
        """Multiply elementwise, like ``*``.

        Args:
          other: a number, a dense array that broadcasts to the matrix's shape, or a sparse matrix of the same shape.
            If it has another structure, the result has the places that are in both, also where a factor is NaN or
            infinite and the other is not stored.

        Raises:
          ShapeError: if *other* does not broadcast to the matrix's shape.
          StructureError: if *other* is a sparse matrix, and a structure is traced.
        """
        product: Self = self * other
        return product


def _refuse_comparison(matrix: Format, sign: str, other: object) -> None:
    """Raise `InputError` if *other* has elements; Python compares other objects by identity."""
    if isinstance(other, (Format, EventArray, jax.Array, np.ndarray, *_NUMBERS)):
        raise InputError(
            f"{type(matrix).__name__} {sign} x: sparse matrices cannot be compared, because their elements cannot be "
            f"bools. Write A.todense() {sign} B.todense(); for weights of one structure A.data {sign} B.data; for "
            "objects A is B."
        )


def entry_weights(matrix: Format) -> jax.Array:
    """Return the weights, with 0 for padding (unused entries).

    The weights of padding are arbitrary and do not affect results. But the derivative of ``A * s`` with respect to *s*
    multiplies them by cotangents of 0, and a NaN among them would make the derivative NaN.
    """
    if (matrix.homogeneous and matrix.nnz != 1) or not jnp.issubdtype(matrix.dtype, jnp.inexact):
        return matrix._weights
    weights: jax.Array = _weights_without_padding(matrix)
    return weights


@jax.jit
def _weights_without_padding(matrix: Format) -> jax.Array:
    return jnp.where(matrix._is_entry(), matrix._weights, 0)


def _is_zero(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and bool(value == 0)


def _factor_of(matrix: Format, sign: str, other: Any) -> Any:
    """Return the elements of *other*, a number or a dense array, at the entries.

    Raises:
      InputError: if *other* is a sparse matrix.
      ShapeError: if *other* does not broadcast to the matrix's shape.
    """
    caller = f"{type(matrix).__name__} {sign} x"
    if isinstance(other, Format):
        raise InputError(
            f"{caller}: both are sparse, and most elements of the result would be 0 {sign} 0. For matrices of one "
            f"structure write A.with_data(A.data {sign} B.data)."
        )
    other = as_array(caller, "x", other)
    if other.size == 1 and other.ndim <= 2:
        return other.reshape(1) if other.ndim else other
    try:
        fits = np.broadcast_shapes(other.shape, matrix.shape) == matrix.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{caller}: x has the shape {other.shape}, which does not broadcast to {matrix.shape}. This is the "
            "elementwise product; the matrix product is A @ x or x @ A."
        )
    if not other.size:  # JAX cannot gather from an empty array
        return jnp.ones(matrix.nnz, other.dtype)
    if other.shape in ((matrix.shape[1],), (1, matrix.shape[1])) and _is_real(other):
        return matrix._at_entries(None, other.reshape(-1))
    if other.shape == (matrix.shape[0], 1) and _is_real(other):
        return matrix._at_entries(other.reshape(-1), None)
    return _elements_at(other, *matrix.coordinates())


def _is_real(array: jax.Array) -> bool:
    """Return True if `csr_sddmm` takes the elements, and 1 times each is this element.

    A complex product makes infinities NaN. A weak type would be lost.
    """
    is_weak = getattr(array, "weak_type", False)
    return array.dtype.name in SUPPORTED and array.dtype.kind != "c" and not is_weak


@jax.jit
def _elements_at(dense: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
    """Return the elements of an array that broadcasts to the matrix's shape; 1 for padding."""
    dense = dense.reshape((1,) * (2 - dense.ndim) + dense.shape)
    row = row if dense.shape[0] > 1 else jnp.zeros_like(row)
    column = column if dense.shape[1] > 1 else jnp.zeros_like(column)
    return dense.at[row, column].get(mode="fill", fill_value=1)


def _subtracted_from(x: Any, other: Any) -> Any:
    return jnp.subtract(other, x)


def _added(matrix: Any, sign: str, other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Return the sum or the difference of a matrix and a matrix or a dense array, in the unit of the first."""
    caller = f"{type(matrix).__name__} {sign} x"
    matrix, unit = split(matrix)
    other = in_unit(caller, "x", other, unit)
    if _is_dense(matrix, other):
        return joined(function(matrix.todense(), as_array(caller, "x", other)), unit)
    return joined(_combined(matrix, sign, other, function, common=False), unit)


def _is_dense(matrix: Format, other: Any) -> bool:
    """Return True for an array of the matrix's shape, with which the sum is dense."""
    return isinstance(other, (jax.Array, np.ndarray)) and np.shape(other) == matrix.shape


def _combined(matrix: Any, sign: str, other: Any, function: Callable[[Any, Any], Any], *, common: bool) -> Any:
    """Return a sum or product of two matrices element by element; see `symbolic.combine`.

    Raises:
      InputError: if *other* is not a sparse matrix.
      ShapeError: if the shapes differ.
      StructureError: if the structures are not known to be the same, and one of them is traced.
    """
    caller = f"{type(matrix).__name__} {sign} x"
    if isinstance(other, (jax.Array, np.ndarray)) and other.ndim:
        raise ShapeError(f"{caller}: x has the shape {other.shape}; expected that of the matrix, {matrix.shape}.")
    if not isinstance(other, Format):
        raise InputError(
            f"{caller}: x is {type(other).__name__}; expected a sparse matrix of this package; SciPy's are converted "
            f"by from_scipy. To add to each entry write A.with_data(A.data {sign} x); for a dense result A.todense() "
            f"{sign} x."
        )
    # With duplicates, the product of sums is not the sum of products.
    if _have_same_structure(matrix, other) and (not common or known_of(matrix).distinct):
        other._check_single()
        weights = (entry_weights(matrix), entry_weights(other)) if common else (matrix.data, other.data)
        return matrix.with_data(function(*weights))
    return combine(caller, matrix, other, function, common=common)


def _have_same_structure(matrix: Format, other: Format) -> bool:
    """Return True if the places of entries are known to be the same, and in the same order."""
    if type(other) is not type(matrix) or other.shape != matrix.shape or other.nnz != matrix.nnz:
        return False
    return all(
        mine is others or (not _is_traced(mine) and not _is_traced(others) and np.array_equal(mine, others))
        for mine, others in zip(matrix._index_arrays, other._index_arrays, strict=True)
    )


def _is_traced(array: Any) -> bool:
    return isinstance(array, jax.core.Tracer)
