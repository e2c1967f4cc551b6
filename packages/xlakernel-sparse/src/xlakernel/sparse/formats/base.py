"""`Format`: the abstract base of all formats, with their products and dense results."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, InputError, ShapeError

from ..events.arrays import EventArray
from ..events.compact import CompactArray
from ..operators.arguments import as_array, as_integer, check_data
from ..operators.dtypes import accumulator
from ..operators.operand import DENSE, Operand
from .interchange import is_of_scipy

#: The weights and the index arrays of a matrix.
Arrays = tuple[jax.Array, jax.Array, jax.Array]


class Format(abc.ABC):
    """An immutable matrix: the methods that a format provides, and those that all of them share."""

    __slots__ = ("data", "shape")

    #: NumPy leaves operators between its arrays and these to us.
    __array_ufunc__ = None
    ndim = 2

    data: jax.Array
    shape: tuple[int, int]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__} is immutable: {name} cannot be set. A.with_data(new) returns the matrix with other "
            "weights."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted.")

    def __setstate__(self, state: Any) -> None:
        _, attributes = state  # what pickle and copy found in the slots
        self._set(**attributes)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            f"{type(self).__name__} is immutable: elements cannot be set. A.with_data(A.data.at[k].set(value)) returns "
            "the matrix with another weight of entry k."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Without this NumPy would make an array of one object, and np.dot(A, x) an array of matrices.
        raise InputError(
            f"{type(self).__name__}: {self!r} is not made dense unless it is asked for. A.todense() returns a dense "
            "array, A.to_scipy() a sparse one of SciPy's, for S @ A.to_scipy(); a product is A @ x."
        )

    def _set(self, **attributes: Any) -> Self:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    def _like(self, **attributes: Any) -> Self:
        """Return the matrix with other *attributes*, unchecked."""
        known = {name: getattr(self, name) for name in ("shape", *self._leaves)}
        return object.__new__(type(self))._set(**{**known, **attributes})

    # For JAX.

    def tree_flatten(self) -> Any:
        """Return the leaves and what is static; for JAX, in each jitted call."""
        return [getattr(self, name) for name in self._leaves], self.shape

    def tree_flatten_with_keys(self) -> Any:
        """Return the leaves with their names, and what is static; for JAX."""
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in self._leaves], self.shape

    @classmethod
    def tree_unflatten(cls, shape: Any, leaves: Any) -> Self:
        """Return the matrix that was flattened; for JAX."""
        return object.__new__(cls)._set(shape=shape, **dict(zip(cls._leaves, leaves, strict=True)))

    # Provided by each format.

    #: The attributes that are leaves, besides the static `shape`.
    _leaves: ClassVar[tuple[str, ...]]
    #: The name of SciPy's class, and its attributes of our constructor's arrays.
    _scipy: ClassVar[tuple[str, tuple[str, str, str]]]

    @abc.abstractmethod
    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None: ...

    @classmethod
    @abc.abstractmethod
    def _of_coordinates(cls, arrays: Arrays, shape: tuple[int, int], *, in_range: bool = False) -> Self:
        """Return the matrix of these weights, rows and columns; *in_range* says that all are known to be valid."""

    @classmethod
    @abc.abstractmethod
    def _of_lines(cls, axis: int, arrays: Arrays, shape: tuple[int, int]) -> Self:
        """Return the matrix of these weights, indices and indptr, in compressed rows if *axis* is 0, else columns."""

    @abc.abstractmethod
    def _lines(self, axis: int) -> Arrays:
        """Return the weights, indices and indptr in compressed rows if *axis* is 0, else in compressed columns."""

    @property
    @abc.abstractmethod
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays."""

    @abc.abstractmethod
    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; for padding those of *shape*, out of range."""

    @abc.abstractmethod
    def _is_entry(self) -> jax.Array:
        """Return which entries are no padding, ``(nnz,)``."""

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights, and all else as it is, what `prepare` added too.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have.

        Raises:
          ShapeError: if it has another length.
          DtypeError: if its dtype is not supported.
        """
        self._check_single()
        return self._with_data(check_data(f"{type(self).__name__}.with_data", data, self.nnz))

    def _with_data(self, data: jax.Array) -> Self:
        return self._like(data=data)

    @abc.abstractmethod
    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, who: str) -> jax.Array:
        """Return the product with *x* of rank 1 or 2."""

    @abc.abstractmethod
    def _multiply_compact(self, events: CompactArray, *, transpose: bool, who: str) -> jax.Array:
        """Return the product with active numbers."""

    @abc.abstractmethod
    def to_scipy(self) -> Any:
        """Return a sparse array of SciPy's of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not know, become float32.
        """

    # Shared by all formats.

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """The number of entries that are stored, zeros, duplicates and padding among them."""
        return self.structure[0].shape[-1]  # symbolic where a program is exported for any number

    @property
    def homogeneous(self) -> bool:
        """True if all entries have one weight, which *data* then holds alone."""
        return self.data.shape == (1,)

    def __repr__(self) -> str:
        leaves = (self.data, *self.structure)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other things into pytrees
            return f"{type(self).__name__}({leaves}, shape={self.shape})"
        weights = ", equal weights" if self.homogeneous and self.nnz != 1 else ""
        rows, columns = self.shape
        several = self.structure[0].shape[:-1]  # as jax.vmap returns matrices
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

    def copy(self) -> Self:
        """Return the matrix itself, which cannot change."""
        return self

    # Products.

    def __matmul__(self, other: Any) -> jax.Array:
        return _multiply(self, other, transpose=False)

    def __rmatmul__(self, other: Any) -> jax.Array:
        return _multiply(self, other, transpose=True)

    def _product(self, other: Any, *, transpose: bool) -> jax.Array:
        """Return ``self @ other``; ``other @ self`` if *transpose*."""
        who = f"x @ {type(self).__name__}" if transpose else f"{type(self).__name__} @ x"
        self._check_single()
        theirs = is_of_scipy(other)
        if isinstance(other, Format) or theirs:
            raise InputError(
                f"{who}: both are sparse. Products of two sparse matrices are not offered: multiply by one after the "
                "other, A @ (B @ x); or convert one, A @ B.todense(); or let SciPy multiply, A.to_scipy() @ "
                f"B{'' if theirs else '.to_scipy()'}."
            )
        if isinstance(other, CompactArray):
            other._check_single()
            self._check_extent(who, (other.size,), transpose)
            return self._multiply_compact(other, transpose=transpose, who=who)
        operand, x = (other.operand, other.operand_array()) if isinstance(other, EventArray) else (DENSE, other)
        x = as_array(who, "x", x)
        self._check_extent(who, x.shape, transpose)
        if transpose and x.ndim == 2:
            return self._multiply(operand, x.T, transpose=True, who=who).T
        return self._multiply(operand, x, transpose=transpose, who=who)

    def _check_extent(self, who: str, shape: tuple[int, ...], transpose: bool) -> None:
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
                f"{who}: x has the shape {shape}; with a matrix of shape {self.shape} it must be ({length},) or "
                f"{matrix}.{hint}"
            )

    # Dense results.

    def todense(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``."""
        dense: jax.Array = _dense(self)
        return dense

    def toarray(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``: `todense` by the name that SciPy prefers."""
        return self.todense()

    def sum(self, axis: int | None = None) -> jax.Array:
        """Add up the entries.

        Args:
          axis: 0 or -2 for the sum of each column, ``(columns,)``; 1 or -1 for that of each row, ``(rows,)``; None for
            the sum of all.

        Returns:
          The sums, of the dtype that ``jax.numpy.sum`` gives to an array of the matrix's dtype.

        Raises:
          ShapeError: if there is no such axis.
        """
        axis = self._checked_axis("sum", axis)
        dtype = jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), self.dtype)).dtype
        if axis is None:  # sums of rows may have no place in half precision where that of all has
            wide = accumulator(dtype)
            return jnp.sum(self.astype(wide) @ jnp.ones(self.shape[1], wide)).astype(dtype)
        matrix = self.astype(dtype)
        ones = jnp.ones(self.shape[axis], dtype)
        return ones @ matrix if axis in (0, -2) else matrix @ ones

    def mean(self, axis: int | None = None) -> jax.Array:
        """Return the mean of all elements, of which those that are no entries count as 0.

        Args:
          axis: 0 or -2 for the mean of each column, ``(columns,)``; 1 or -1 for that of each row, ``(rows,)``; None for
            that of all.

        Returns:
          The means, of the dtype that ``jax.numpy.mean`` gives to an array of the matrix's dtype.

        Raises:
          ShapeError: if there is no such axis.
        """
        dtype = jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), self.dtype)).dtype
        axis = self._checked_axis("mean", axis)
        total = self.astype(accumulator(dtype)).sum(axis)
        # As a float, since JAX's integers may have no room for the number of all elements.
        return (total / float(math.prod(self.shape) if axis is None else self.shape[axis])).astype(dtype)

    def diagonal(self, offset: int = 0) -> jax.Array:
        """Return a diagonal, the entries with ``column - row == offset``, as ``jax.numpy.diagonal`` does.

        Args:
          offset: 0 for the main diagonal, above it positive, below it negative.

        Raises:
          ArgumentError: if it is no integer.
        """
        rows, columns = self.shape
        number = as_integer(offset)
        if number is None:
            raise ArgumentError(f"{type(self).__name__}.diagonal: offset is {offset!r}; expected an integer.")
        offset = max(-rows, min(number, columns))  # beyond these diagonals are empty
        elements: jax.Array = _diagonal(self, offset)
        return elements

    # Checks.

    def _check_single(self) -> None:
        indices = self.structure[0].shape
        weights = getattr(self.data, "shape", indices)  # JAX's users put other things into pytrees
        if len(weights) != 1 or len(indices) != 1:  # as jax.vmap returns them
            raise ShapeError(
                f"{type(self).__name__}: these are several matrices in one, with data of shape {weights} and index "
                f"arrays of shape {indices}. Map over them, as jax.vmap(lambda A: A.todense())(matrices) or "
                "jax.vmap(lambda A, x: A @ x)(matrices, xs)."
            )

    def _checked_axis(self, method: str, axis: Any) -> int | None:
        if axis is None:
            return None
        number = as_integer(axis)
        if number not in (0, 1, -1, -2):
            raise ShapeError(f"{type(self).__name__}.{method}: axis is {axis!r}; allowed: 0, 1, -1, -2 or None.")
        return number


@jax.jit
def _dense(matrix: Format) -> jax.Array:
    return _added_up(matrix, matrix.shape, matrix.coordinates())


@functools.partial(jax.jit, static_argnums=1)
def _diagonal(matrix: Format, offset: int) -> jax.Array:
    rows, columns = matrix.shape
    first = max(-offset, 0)
    length = max(min(rows - first, columns - max(offset, 0)), 0)
    row, column = matrix.coordinates()
    place = jnp.where((column - row == offset) & (row < rows), row - first, length)
    return _added_up(matrix, (length,), (place,))


def _added_up(matrix: Format, shape: tuple[int, ...], places: tuple[jax.Array, ...]) -> jax.Array:
    """Add the weights up where *places* says; duplicates of half precision in float32, as products do."""
    wide = accumulator(matrix.dtype)
    sums = jnp.zeros(shape, wide).at[places].add(matrix.data.astype(wide), mode="drop")
    return sums.astype(matrix.dtype)


def _product(matrix: Format, other: Any, *, transpose: bool) -> jax.Array:
    return matrix._product(other, transpose=transpose)


_compiled_product = jit_when_eager(_product, static_argnames="transpose")


def _multiply(matrix: Format, other: Any, *, transpose: bool) -> jax.Array:
    """Return a product, as one program where none is traced; `_product` checks what is no array of JAX's first."""
    multiply = _compiled_product if isinstance(other, (jax.Array, EventArray)) else _product
    product: jax.Array = multiply(matrix, other, transpose=transpose)
    return product
