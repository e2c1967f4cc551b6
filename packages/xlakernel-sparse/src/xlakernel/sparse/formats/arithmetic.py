"""`Arithmetic`: what is done entry by entry."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, ShapeError, StructureError

from ..events.arrays import EventArray
from ..operators.arguments import as_array
from ..operators.dtypes import accumulator
from .base import Format

_NUMBERS = (bool, int, float, complex, np.generic)
_UNION = (
    " Matrices of different structures are added outside of jit, by SciPy: CSR.from_scipy(A.to_scipy() + B.to_scipy())."
)


class Arithmetic(Format, abc.ABC):
    """The operators of Python, but for products; a base of `SparseMatrix`."""

    __slots__ = ()

    #: As JAX's arrays: what has no == cannot be looked up.
    __hash__ = None  # type: ignore[assignment]  # how Python itself has it

    def __eq__(self, other: object) -> bool:
        _refuse_elements(self, "==", other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        _refuse_elements(self, "!=", other)
        return NotImplemented

    def __neg__(self) -> Self:
        return self.with_data(-self.data)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        if self.homogeneous:  # duplicates have one sign
            return self.with_data(jnp.abs(self.data))
        return self.with_data(_at_places(self, jnp.abs))

    def __mul__(self, other: Any) -> Self:
        return self.with_data(_known_weights(self) * _factor_of(self, "*", other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Self:
        return self.with_data(_known_weights(self) / _factor_of(self, "/", other))

    def __pow__(self, n: Any) -> Self:
        return self.power(n)

    def __add__(self, other: Any) -> Self:
        if _is_zero(other):
            return self
        return self.with_data(self.data + _with_same_structure(self, "+", other).data)

    __radd__ = __add__  # `sum` begins with 0

    def __sub__(self, other: Any) -> Self:
        if _is_zero(other):
            return self
        return self.with_data(self.data - _with_same_structure(self, "-", other).data)

    def __rsub__(self, other: Any) -> Self:
        difference: Self = -self + other
        return difference

    def multiply(self, other: Any) -> Self:
        """Multiply each entry by that of *other* at its place, as ``*`` does.

        Args:
          other: a number, or a dense array that broadcasts to the matrix's shape.

        Raises:
          ShapeError: if it does not broadcast to it.
        """
        product: Self = self * other
        return product

    def power(self, n: float) -> Self:
        """Raise each element to a power, as ``**`` does; entries of one place are added up before.

        The result has a weight for each entry, also where those of the matrix are all equal: duplicates make them
        different. Where there are none, ``A.with_data(A.data**n)`` keeps the one.

        Args:
          n: the exponent, a number above 0: others would make entries of what is none.

        Raises:
          ArgumentError: if it is none.
        """
        if not isinstance(n, (int, float, np.integer, np.floating)) or not n > 0:
            raise ArgumentError(
                f"{type(self).__name__} ** n: n is {n!r}; expected a number above 0, which keeps zeros what they are. "
                "For other powers of the entries alone write A.with_data(A.data**n); for a dense result "
                "A.todense() ** n; for a product of matrices A @ x."
            )
        return self.with_data(_at_places(self, lambda weights: weights**n))


def _refuse_elements(matrix: Format, sign: str, other: object) -> None:
    """Refuse to compare with what has elements; that all else is not equal, Python knows.

    Raises:
      InputError: if *other* is a matrix, an array or a number.
    """
    if isinstance(other, (Format, EventArray, jax.Array, np.ndarray, *_NUMBERS)):
        raise InputError(
            f"{type(matrix).__name__} {sign} x: sparse matrices are not compared: their elements would mostly be equal "
            f"zeros, and as an object a matrix equals none but itself. Write A.todense() {sign} B.todense(); for "
            f"weights of one structure A.data {sign} B.data; for objects A is B."
        )


def _known_weights(matrix: Format) -> jax.Array:
    """Return the weights, of padding 0.

    Padding's own may be anything, and no result shows them; but times a cotangent of 0, NaN is NaN, which reaches the
    derivative in what all weights are multiplied by.
    """
    if (matrix.homogeneous and matrix.nnz != 1) or not jnp.issubdtype(matrix.dtype, jnp.inexact):
        return matrix.data
    weights: jax.Array = _weights_of_entries(matrix)
    return weights


@jax.jit
def _weights_of_entries(matrix: Format) -> jax.Array:
    return jnp.where(matrix._is_entry(), matrix.data, 0)


def _at_places(matrix: Format, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return a function of the elements, at the first entry of each place; 0 at its others and at padding."""
    sums, shown, order = _sums_of_places(matrix)
    found: jax.Array = _put_back(function(sums), shown, order)
    return found


@jax.jit
def _sums_of_places(matrix: Format) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the element at each entry's place, sorted by places; which of them are shown; and the entries' order."""
    row, column = matrix.coordinates()
    *place, order = jax.lax.sort((row, column, jnp.arange(matrix.nnz)), num_keys=2)
    is_first = jnp.ones(matrix.nnz, bool).at[1:].set((place[0][1:] != place[0][:-1]) | (place[1][1:] != place[1][:-1]))
    number = jnp.cumsum(is_first) - 1  # of its place, by rows
    weights = jnp.broadcast_to(_known_weights(matrix), matrix.nnz)[order]
    sums = jnp.zeros(matrix.nnz, accumulator(matrix.dtype)).at[number].add(weights)[number].astype(matrix.dtype)
    # Powers and their derivatives may be infinite at 0, so they are taken at 1 where they do not matter.
    shown = is_first & (place[0] < matrix.shape[0])
    return jnp.where(shown, sums, 1), shown, order


@jax.jit
def _put_back(found: jax.Array, shown: jax.Array, order: jax.Array) -> jax.Array:
    """Return what was found, in the order that the entries had, and 0 where it is not shown."""
    found = jnp.where(shown, found, 0)
    return jnp.zeros_like(found).at[order].set(found, unique_indices=True)


def _is_zero(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and bool(value == 0)


def _factor_of(matrix: Format, sign: str, other: Any) -> Any:
    """Return what *other*, a number or a dense array, has at the entries.

    Raises:
      InputError: if it is a sparse matrix.
      ShapeError: if it does not broadcast to the matrix's shape.
    """
    who = f"{type(matrix).__name__} {sign} x"
    if isinstance(other, Format):
        raise InputError(
            f"{who}: both are sparse. For matrices of one structure write "
            f"A.with_data(A.data {sign} B.data); for a matrix product write A @ x."
        )
    other = as_array(who, "x", other)
    if other.size == 1 and other.ndim <= 2:
        return other.reshape(1) if other.ndim else other
    try:
        fits = np.broadcast_shapes(other.shape, matrix.shape) == matrix.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{who}: x has the shape {other.shape}, which does not broadcast to {matrix.shape}. This is the product "
            "entry by entry; the matrix product is A @ x or x @ A."
        )
    if not other.size:  # of an empty array JAX gathers nothing, not even padding
        return jnp.ones(matrix.nnz, other.dtype)
    return _elements_at(other, *matrix.coordinates())


@jax.jit
def _elements_at(dense: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
    """Return the elements of an array that broadcasts to the matrix's shape; for padding 1."""
    dense = dense.reshape((1,) * (2 - dense.ndim) + dense.shape)
    row = row if dense.shape[0] > 1 else jnp.zeros_like(row)
    column = column if dense.shape[1] > 1 else jnp.zeros_like(column)
    return dense.at[row, column].get(mode="fill", fill_value=1)


def _with_same_structure(matrix: Format, sign: str, other: Any) -> Any:
    """Return *other*, a matrix of the same structure.

    Raises:
      InputError: if it is no sparse matrix.
      StructureError: if it has another structure, or that cannot be seen.
    """
    who = f"{type(matrix).__name__} {sign} x"
    if not isinstance(other, Format):
        raise InputError(
            f"{who}: x is {type(other).__name__}; expected a sparse matrix of this package; SciPy's come by "
            "from_scipy. To add to each entry write A.with_data(A.data + x); for a dense result A.todense() + x."
        )
    if type(other) is not type(matrix) or other.shape != matrix.shape or other.nnz != matrix.nnz:
        raise StructureError(f"{who}: A is {matrix!r} and x is {other!r}; expected two of one structure.{_UNION}")
    for mine, others in zip(matrix.structure, other.structure, strict=True):
        if mine is others:
            continue
        if isinstance(mine, jax.core.Tracer) or isinstance(others, jax.core.Tracer):
            raise StructureError(
                f"{who}: whether both have one structure cannot be seen while tracing. If they have, write "
                f"A.with_data(A.data {sign} B.data)."
            )
        if not np.array_equal(mine, others):
            raise StructureError(f"{who}: the entries of both are at other places.{_UNION}")
    return other
