"""`Format`: the abstract base of all formats, with their products, sums and dense results."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, InputError, ShapeError

from .._immutable import ImmutablePytree
from ..events.arrays import EventArray
from ..events.compact import CompactArray
from ..operators.arguments import as_array, as_integer, check_data
from ..operators.dtypes import accumulator
from ..operators.operand import DENSE, Operand
from .interchange import is_scipy_sparse

#: The weights and the index arrays of a matrix.
Arrays = tuple[jax.Array, jax.Array, jax.Array]


class Format(ImmutablePytree, abc.ABC):
    """An immutable matrix: the abstract methods that each format implements, and the methods that all formats share."""

    __slots__ = ("data", "shape")
    _static = ("shape",)
    _advice = " A.with_data(new) returns the matrix with other weights."
    ndim = 2

    data: jax.Array
    shape: tuple[int, int]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"{type(self).__name__} is immutable: elements cannot be set. A.with_data(A.data.at[k].set(value)) returns "
            "the matrix with another weight of entry k."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Without this method NumPy would make an array of one object, and np.dot(A, x) an array of matrices.
        raise InputError(
            f"{type(self).__name__}: {self!r} is not converted to a dense array implicitly. A.todense() returns a "
            "dense array, A.to_scipy() a SciPy sparse array, for S @ A.to_scipy(); a product is A @ x."
        )

    # Provided by each format.

    #: The name of SciPy's class, and the names of its attributes that hold the constructor's arrays.
    _scipy: ClassVar[tuple[str, tuple[str, str, str]]]

    @abc.abstractmethod
    def __init__(self, arrays: Any, shape: Any = None, *, check: bool = True) -> None: ...

    @classmethod
    @abc.abstractmethod
    def _of_coordinates(cls, arrays: Arrays, shape: tuple[int, int], *, in_range: bool = False) -> Self:
        """Return the matrix of these weights, rows and columns; *in_range* is True if all are known to be in range."""

    @classmethod
    @abc.abstractmethod
    def _of_lines(cls, axis: int, arrays: Arrays, shape: tuple[int, int]) -> Self:
        """Return the matrix of these weights, indices and indptr: compressed rows if *axis* is 0, else columns."""

    @abc.abstractmethod
    def _lines(self, axis: int) -> Arrays:
        """Return the weights, indices and indptr in compressed rows if *axis* is 0, else in compressed columns."""

    @property
    @abc.abstractmethod
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays."""

    @abc.abstractmethod
    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; padding has those of *shape*, out of range."""

    @abc.abstractmethod
    def _is_entry(self) -> jax.Array:
        """Return an array, ``(nnz,)``, that is False for padding."""

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights and the same structure; a prepared matrix stays prepared.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have.

        Raises:
          ShapeError: if *data* has another length.
          DtypeError: if its dtype is not supported.
        """
        self._check_single()
        return self._with_data(check_data(f"{type(self).__name__}.with_data", data, self.nnz))

    def _with_data(self, data: jax.Array) -> Self:
        return self._like(data=data)

    @abc.abstractmethod
    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, caller: str) -> jax.Array:
        """Return the product with *x* of rank 1 or 2."""

    @abc.abstractmethod
    def _multiply_compact(self, events: CompactArray, *, transpose: bool, caller: str) -> jax.Array:
        """Return the product with the indices of active elements."""

    @abc.abstractmethod
    def to_scipy(self) -> Any:
        """Return a SciPy sparse array of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not support, become float32.
        """

    @abc.abstractmethod
    def _dense(self) -> jax.Array:
        """Return the matrix as a dense array."""

    @abc.abstractmethod
    def _diagonal(self, offset: int) -> jax.Array:
        """Return the elements with ``column - row == offset``, a number from ``-rows`` to ``columns``."""

    @abc.abstractmethod
    def _part(self, numbers: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries in the rows ``numbers[0]`` and columns ``numbers[1]``, and the part's index arrays.

        A missing axis stands for all its rows or columns. The structure of the matrix is known.
        """

    @abc.abstractmethod
    def _line(self, axis: int, number: Any) -> jax.Array:
        """Return a row if *axis* is 0, else a column, as a dense vector; *number* is in range."""

    @abc.abstractmethod
    def _at_entries(self, row: jax.Array | None, column: jax.Array | None) -> jax.Array:
        """Return ``row[i] * column[j]`` for each entry in row i and column j, ``(nnz,)``; a factor of None is 1."""

    @abc.abstractmethod
    def _first_of_places(self) -> tuple[jax.Array, jax.Array]:
        """Return the first entry of each entry's place, ``(nnz,)``, and the number of entries that are not first."""

    # Shared by all formats.

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """The number of stored entries, including zeros, duplicates and padding."""
        return self.structure[0].shape[-1]  # symbolic where a program is exported for any number

    @property
    def homogeneous(self) -> bool:
        """True if all entries have one weight, the only element of `data`."""
        return self.data.shape == (1,)

    def __repr__(self) -> str:
        leaves = (self.data, *self.structure)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other objects into pytrees
            return f"{type(self).__name__}({leaves}, shape={self.shape})"
        weights = ", equal weights" if self.homogeneous and self.nnz != 1 else ""
        rows, columns = self.shape
        several = self.structure[0].shape[:-1]  # the batch dimensions of matrices that `jax.vmap` returned
        batch = f", batch={several}" if several else ""
        return f"{type(self).__name__}({self.dtype.name}[{rows},{columns}], nnz={self.nnz}{weights}{batch})"

    def astype(self, dtype: Any) -> Self:
        """Return the matrix with weights of another dtype.

        Args:
          dtype: one that a matrix may have.
        """
        return self.with_data(self.data.astype(dtype))

    def conj(self) -> Self:
        """Return the matrix with conjugated weights."""
        return self.with_data(jnp.conj(self.data))

    conjugate = conj

    def copy(self) -> Self:
        """Return the matrix itself, which is immutable."""
        return self

    # Products.

    def __matmul__(self, other: Any) -> jax.Array:
        return _matmul(self, other, transpose=False)

    def __rmatmul__(self, other: Any) -> jax.Array:
        return _matmul(self, other, transpose=True)

    def _checked_product(self, other: Any, *, transpose: bool) -> jax.Array:
        """Return ``self @ other``; ``other @ self`` if *transpose*."""
        caller = f"x @ {type(self).__name__}" if transpose else f"{type(self).__name__} @ x"
        self._check_single()
        is_scipy = is_scipy_sparse(other)
        if isinstance(other, Format) or is_scipy:
            raise InputError(
                f"{caller}: both are sparse. Products of two sparse matrices are not supported: multiply by one after "
                "the other, A @ (B @ x); or convert one, A @ B.todense(); or let SciPy multiply, A.to_scipy() @ "
                f"B{'' if is_scipy else '.to_scipy()'}."
            )
        if isinstance(other, CompactArray):
            other._check_single()
            self._check_extent(caller, (other.size,), transpose)
            return self._multiply_compact(other, transpose=transpose, caller=caller)
        operand, x = (other.operand, other.operand_array()) if isinstance(other, EventArray) else (DENSE, other)
        x = as_array(caller, "x", x)
        self._check_extent(caller, x.shape, transpose)
        if transpose and x.ndim == 2:
            return self._multiply(operand, x.T, transpose=True, caller=caller).T
        return self._multiply(operand, x, transpose=transpose, caller=caller)

    def _check_extent(self, caller: str, shape: tuple[int, ...], transpose: bool) -> None:
        length = self.shape[0 if transpose else 1]
        axis = -1 if transpose else 0
        if len(shape) not in (1, 2) or shape[axis] != length:
            matrix = f"(k, {length})" if transpose else f"({length}, k)"
            hint = ""
            if len(shape) in (1, 2) and shape[-1 - axis] == self.shape[1 if transpose else 0]:
                hint = f" It fits on the other side: {'A @ x' if transpose else 'x @ A'}."
            elif len(shape) == 2 and shape[-1 - axis] == length:
                hint = " It fits transposed: give x.T."
            raise ShapeError(
                f"{caller}: x has the shape {shape}; with a matrix of shape {self.shape} it must be ({length},) or "
                f"{matrix}.{hint}"
            )

    # Dense results.

    def todense(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``."""
        return self._dense()

    def toarray(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``, like `todense`."""
        return self.todense()

    def sum(self, axis: int | None = None) -> jax.Array:
        """Add up the entries.

        Args:
          axis: 0 or -2 for the sum of each column, ``(columns,)``; 1 or -1 for the sum of each row, ``(rows,)``; None
            for the sum of all entries.

        Returns:
          The sums, of the dtype that ``jax.numpy.sum`` gives to an array of the matrix's dtype.

        Raises:
          ShapeError: if the axis does not exist.
        """
        self._check_axis("sum", axis)
        dtype = jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), self.dtype)).dtype
        total: jax.Array = _compiled_sum(self, axis, dtype)
        return total

    def mean(self, axis: int | None = None) -> jax.Array:
        """Return the mean of the elements, including zeros that are not stored.

        Args:
          axis: 0 or -2 for the mean of each column, ``(columns,)``; 1 or -1 for the mean of each row, ``(rows,)``; None
            for the mean of all elements.

        Returns:
          The means, of the dtype that ``jax.numpy.mean`` gives to an array of the matrix's dtype.

        Raises:
          ShapeError: if the axis does not exist.
        """
        self._check_axis("mean", axis)
        dtype = jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), self.dtype)).dtype
        total = self.astype(accumulator(dtype)).sum(axis)
        # Divide by a float, because the number of all elements may exceed JAX's integers.
        return (total / float(math.prod(self.shape) if axis is None else self.shape[axis])).astype(dtype)

    def diagonal(self, offset: int = 0) -> jax.Array:
        """Return a diagonal, the elements with ``column - row == offset``, like ``jax.numpy.diagonal``.

        Args:
          offset: 0 for the main diagonal, positive for those above it, negative for those below.

        Raises:
          ArgumentError: if *offset* is not an integer.
        """
        number = as_integer(offset)
        if number is None:
            raise ArgumentError(f"{type(self).__name__}.diagonal: offset is {offset!r}; expected an integer.")
        rows, columns = self.shape
        return self._diagonal(max(-rows, min(number, columns)))  # beyond these, diagonals are empty

    def _check_axis(self, method: str, axis: Any) -> None:
        if axis is not None and as_integer(axis) not in (0, 1, -1, -2):
            raise ShapeError(f"{type(self).__name__}.{method}: axis is {axis!r}; allowed: 0, 1, -1, -2 or None.")

    def _check_single(self) -> None:
        """Raise `ShapeError` for a batch of matrices, as `jax.vmap` returns it."""
        indices = self.structure[0].shape
        weights = getattr(self.data, "shape", indices)  # JAX puts other objects into pytrees
        if len(weights) != 1 or len(indices) != 1:
            raise ShapeError(
                f"{type(self).__name__}: this is a batch of matrices, with data of shape {weights} and index "
                f"arrays of shape {indices}. Map over it, as in jax.vmap(lambda A: A.todense())(matrices) or "
                "jax.vmap(lambda A, x: A @ x)(matrices, xs)."
            )


def picked(places: np.ndarray, numbers: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    """Select the entries at certain rows or columns.

    Args:
      places: the row, or the column, of each entry.
      numbers: the chosen rows or columns, with or without repetitions.
      extent: the number of rows, or of columns.

    Returns:
      The selected entries in their order, one for each repetition, and the position of their place in *numbers*.
    """
    positions = np.full(extent, -1, places.dtype)
    positions[numbers] = np.arange(numbers.size)
    found = positions[places]
    entries = np.flatnonzero(found >= 0)
    found = found[entries]
    times = np.bincount(numbers, minlength=extent)
    if times.max(initial=0) <= 1:
        return entries, found
    of_entry = times[places[entries]]
    repetition = np.arange(of_entry.sum()) - np.repeat(np.cumsum(of_entry) - of_entry, of_entry)
    entries = np.repeat(entries, of_entry)
    first = (np.cumsum(times) - times)[places[entries]]
    return entries, np.argsort(numbers, kind="stable")[first + repetition].astype(places.dtype)


@functools.partial(jax.jit, static_argnums=1)
def is_number(number: jax.Array, extent: int) -> jax.Array:
    """Return a vector of *extent* bools that is True at the position *number*."""
    return jnp.arange(extent) == number


def _sum(matrix: Format, axis: int | None, dtype: Any) -> jax.Array:
    if axis is None:  # sums of rows may overflow half precision where the sum of all does not
        wide = accumulator(dtype)
        if matrix.homogeneous:
            return jnp.sum(matrix.astype(wide) @ jnp.ones(matrix.shape[1], wide)).astype(dtype)
        return jnp.sum(jnp.where(matrix._is_entry(), matrix.data, 0), dtype=wide).astype(dtype)
    matrix = matrix.astype(dtype)
    ones = jnp.ones(matrix.shape[axis], dtype)
    return ones @ matrix if axis in (0, -2) else matrix @ ones  # type: ignore[no-any-return]


_compiled_sum = jit_when_eager(_sum, static_argnums=(1, 2))


def _checked_product(matrix: Format, other: Any, *, transpose: bool) -> jax.Array:
    return matrix._checked_product(other, transpose=transpose)


_compiled_product = jit_when_eager(_checked_product, static_argnames="transpose")


def _matmul(matrix: Format, other: Any, *, transpose: bool) -> jax.Array:
    """Return a product, computed by one compiled program if *other* can be an argument of compiled programs."""
    multiply = _compiled_product if isinstance(other, (jax.Array, EventArray)) else _checked_product
    product: jax.Array = multiply(matrix, other, transpose=transpose)
    return product
