"""`Rearranged`: methods that return a matrix with another structure, computed on the host; and linear systems.

SciPy rearranges numbers instead of weights: the number of a place, from 1 on. JAX then takes the weights of these
places, which may be traced and are differentiated.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, DtypeError, ShapeError, StructureError

from ..operators.arguments import as_array, as_integer
from ..operators.dtypes import accumulator, check_convertible
from ..operators.units import check_plain, in_unit, is_quantity, joined, linear, split
from .duplicates import evaluated
from .elements import Elements
from .symbolic import Places, axis_of, matrix_like, places_of

#: The formats by their names in SciPy.
FORMATS = ("csr", "csc", "coo")


class Rearranged(Elements, abc.ABC):
    """Methods whose results have another structure; a base of `SparseMatrix`.

    The index arrays must be concrete. Under `jax.jit`, let the matrices be constants of the function, and only their
    weights arguments. Duplicates are added up, padding is left out, and entries are sorted by row and column.
    """

    __slots__ = ()

    def sum_duplicates(self) -> Self:
        """Return the matrix with one entry for each place, sorted and without padding.

        Raises:
          StructureError: if the structure is traced.
        """
        return self._rearranged("sum_duplicates", lambda numbers: numbers)

    @linear
    def eliminate_zeros(self) -> Self:
        """Return the matrix without entries that are zero.

        Raises:
          StructureError: if the matrix is traced, also if only its weights are.
        """
        caller = f"{type(self).__name__}.eliminate_zeros"
        if isinstance(self.data, jax.core.Tracer):
            raise StructureError(
                f"{caller}: the weights are traced, so it is not known which are zero. Call it outside of jit."
            )

        def without_zeros(numbers: Any) -> Any:
            numbers.data[weights == 0] = 0
            numbers.eliminate_zeros()
            return numbers

        with evaluated():  # if the matrix is a constant of a program
            weights = np.asarray(places_of(caller, self, 0).weights(self))
        return self._rearranged("eliminate_zeros", without_zeros)

    def asformat(self, format: str | None) -> Any:
        """Return the matrix in another format.

        Args:
          format: ``"csr"``, ``"csc"`` or ``"coo"``, as for `tocsr`, `tocsc` and `tocoo`; None for the matrix itself.

        Raises:
          ArgumentError: if there is no such format.
        """
        if format is None:
            return self
        if format not in FORMATS:
            raise ArgumentError(f"{type(self).__name__}.asformat: format is {format!r}; allowed: {FORMATS} or None.")
        return getattr(self, f"to{format}")()

    def reshape(self, *shape: Any, order: str = "C") -> Self:
        """Return the matrix in another shape.

        Args:
          *shape: two numbers, or one tuple of them. One may be -1: it follows from the number of elements.
          order: the order of the elements, which the new shape keeps: ``"C"`` for row after row, ``"F"`` for column
            after column.

        Raises:
          ShapeError: if the number of elements differs.
          ArgumentError: if *order* is neither.
          StructureError: if the structure is traced.
        """
        caller = f"{type(self).__name__}.reshape"
        extents = _new_shape(caller, self.shape, shape)
        if order not in ("C", "F"):
            raise ArgumentError(f"{caller}: order is {order!r}; allowed: 'C' for rows, 'F' for columns.")
        return self._rearranged("reshape", lambda numbers: numbers.tocoo().reshape(extents, order=order))

    def setdiag(self, values: Any, k: int = 0) -> Self:
        """Return the matrix with other elements on a diagonal.

        Args:
          values: a number, or the elements, ``(length,)``. If there are fewer than the diagonal has, its other elements
            stay; if there are more, the last ones are not used.
          k: 0 for the main diagonal, positive for those above it, negative for those below.

        Raises:
          ShapeError: if *values* has more than one dimension.
          InputError: if *values* cannot be converted to an array.
          DtypeError: if its dtype is not supported, or the matrix cannot hold its numbers.
          ArgumentError: if *k* is not the number of a diagonal.
          StructureError: if the structure is traced.
        """
        caller = f"{type(self).__name__}.setdiag"
        offset = as_integer(k)
        rows, columns = self.shape
        if offset is None or not -rows < offset < columns:
            raise ArgumentError(
                f"{caller}: k is {k!r}; expected the number of a diagonal, from {1 - rows} to {columns - 1}."
            )
        matrix, unit = split(self)
        if unit is not None or is_quantity(values):
            found: Self = joined(matrix.setdiag(in_unit(caller, "values", values, unit), k), unit)
            return found
        weights = as_array(caller, "values", values)
        check_convertible(caller, "values", weights.dtype, self.dtype, "the matrix")
        if weights.ndim > 1:
            raise ShapeError(f"{caller}: values has the shape {weights.shape}; expected a number or a vector.")
        length = min(rows + min(offset, 0), columns - max(offset, 0))
        weights = jnp.broadcast_to(weights, length) if weights.ndim == 0 else weights[:length]

        def with_diagonal(numbers: Any) -> Any:
            first = numbers.nnz + 1
            coordinates = numbers.tocoo()
            on_diagonal = coordinates.col - coordinates.row == offset
            replaced = on_diagonal & (np.minimum(coordinates.row, coordinates.col) < weights.size)
            places = np.arange(weights.size)
            row = np.append(coordinates.row[~replaced], places - min(offset, 0))
            column = np.append(coordinates.col[~replaced], places + max(offset, 0))
            data = np.append(coordinates.data[~replaced], first + places)
            return type(coordinates)((data, (row, column)), shape=self.shape)

        return self._rearranged("setdiag", with_diagonal, weights.astype(self.dtype))

    def solve(self, b: Any) -> jax.Array:
        """Solve ``A @ x = b``; on the CPU with SciPy's SuperLU, on an NVIDIA GPU with cuSOLVER's QR factorization.

        It differentiates with respect to *b* and the weights, and cannot be mapped by `jax.vmap`: give a matrix of
        right-hand sides. On the CPU, the call runs Python. If the matrix is singular, elements are not finite.

        Args:
          b: the right-hand side, ``(rows,)``, or several, ``(rows, k)``.

        Returns:
          The solution, of the shape of *b*.

        Raises:
          ShapeError: if the matrix is not square, or *b* does not fit.
          InputError: if *b* cannot be converted to an array.
          DtypeError: if the matrix or *b* is in half precision. Integers are converted to floats.
          StructureError: if the structure is traced.
        """
        from jax.experimental.sparse.linalg import spsolve

        caller = f"{type(self).__name__}.solve"
        check_plain(caller, "A.data", self.data)
        right = as_array(caller, "b", b)
        rows, columns = self.shape
        if rows != columns or right.ndim not in (1, 2) or right.shape[0] != rows:
            raise ShapeError(
                f"{caller}: the matrix has the shape {self.shape} and b {right.shape}; expected a square matrix, and "
                "one element of b, or one row, for each row of the matrix."
            )
        dtype = jnp.result_type(self.dtype, right.dtype, jnp.float32)
        if accumulator(self.dtype) != self.dtype or accumulator(right.dtype) != right.dtype:
            raise DtypeError(f"{caller}: half precision is not supported; expected .astype('float32').")
        known: Any = rearranged(caller, lambda numbers: numbers, [self]).astype(dtype).tocsr()
        if not rows or not known.nnz:
            return jnp.full(right.shape, jnp.nan, dtype)

        def solve_one(column: jax.Array) -> jax.Array:
            x: jax.Array = spsolve(known.data, known.indices, known.indptr, column)
            return x

        right = right.astype(dtype)
        return solve_one(right) if right.ndim == 1 else jax.lax.map(solve_one, right.T).T

    def _rearranged(self, method: str, rearrange: Callable[[Any], Any], *weights: jax.Array) -> Self:
        found: Self = rearranged(f"{type(self).__name__}.{method}", rearrange, [self], *weights)
        return found


def rearranged(caller: str, rearrange: Callable[..., Any], matrices: Sequence[Any], *weights: jax.Array) -> Any:
    """Return a matrix of entries of *matrices*, in the format of the first one.

    Args:
      caller: what is computed, for messages.
      rearrange: a function of a CSR array of SciPy for each matrix, whose data are numbers of places; the numbers of
        the second matrix follow those of the first, and so on. It returns a sparse array of such numbers.
      matrices: the matrices.
      *weights: vectors of weights whose numbers follow.

    Raises:
      StructureError: if a structure is traced.
      DtypeError: if the units of the weights are not compatible.
    """
    _, unit = split(matrices[0])
    matrices = [in_unit(caller, "a matrix", matrix, unit) for matrix in matrices]
    of = [places_of(caller, matrix, 0) for matrix in matrices]
    axis = axis_of(matrices[0])
    result = rearrange(*_numbered(of, matrices))
    result = result.tocsr() if axis == 0 else result.tocsc()
    result.sort_indices()
    known = [each.weights(matrix) for each, matrix in zip(of, matrices, strict=True)]
    dtype = jnp.result_type(*(matrix.dtype for matrix in matrices))
    data = jnp.concatenate([*known, *weights])[result.data.astype(np.int64) - 1].astype(dtype)  # floats if empty
    return joined(matrix_like(matrices[0], axis, data, result.indices, result.indptr, result.shape), unit)


def _numbered(of: Sequence[Places], matrices: Sequence[Any]) -> list[Any]:
    """Return the arrays of numbers, counted on from one matrix to the next."""
    numbered, before = [], 0
    for each, matrix in zip(of, matrices, strict=True):
        array = each.numbers(matrix.shape)
        array.data += before
        before += array.nnz
        numbered.append(array)
    return numbered


def _new_shape(caller: str, before: tuple[int, int], shape: tuple[Any, ...]) -> tuple[int, int]:
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    size = before[0] * before[1]
    extents = [extent for extent in map(as_integer, given) if extent is not None and extent >= -1]
    if len(extents) == len(given) == 2 and extents.count(-1) == 1:
        other = max(extents)
        extents = [size // max(other, 1) if extent == -1 else extent for extent in extents]
    if len(extents) != 2 or len(given) != 2 or -1 in extents or extents[0] * extents[1] != size:
        raise ShapeError(
            f"{caller}: the shape is {given!r}; expected two numbers whose product is {size}, the number of elements. "
            "One of them may be -1."
        )
    return extents[0], extents[1]
