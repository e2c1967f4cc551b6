"""`Format`: the abstract base of all formats, with their products, sums and dense results."""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, ShapeError

from ..events.arrays import BinaryArray
from ..operators.arguments import as_integer, check_data
from ..operators.dtypes import accumulator
from ..operators.reductions import reduce_rows
from ..operators.units import check_plain, joined, linear, split
from .products import Multiplied

#: The weights and the index arrays of a matrix.
Arrays = tuple[jax.Array, jax.Array, jax.Array]
#: Numbers of rows or columns; a range is not empty, and its step is 1.
Numbers = range | np.ndarray
#: Arrays of a value for each entry; None stands for the numbers of the entries.
Values = Sequence[np.ndarray | None]


class Format(Multiplied, abc.ABC):
    """An immutable matrix: the abstract methods that each format implements, and the methods that all formats share."""

    __slots__ = ("data", "shape")
    _static = ("shape",)
    #: The number of dimensions of the arrays of entries.
    _rank: ClassVar[int] = 1
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
    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None: ...

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

    @property
    def _index_arrays(self) -> tuple[jax.Array, jax.Array]:
        """The leaves that `structure` is made of, the same objects each time."""
        return self.structure

    @property
    def _weights(self) -> jax.Array:
        """The weights as a vector, ``(nnz,)`` or ``(1,)``; *data* itself, unless its shape is another one.

        Raises:
          InputError: if the weights have a unit. Methods that support units remove it first, see `operators.units`.
        """
        if hasattr(self.data, "unit"):
            check_plain(type(self).__name__, "A.data", self.data)
        return self.data

    def _without_unit(self) -> tuple[Self, Any]:
        data, unit = split(self.data)
        return (self, None) if unit is None else (copy.copy(self)._set(data=data), unit)

    def _with_unit(self, unit: Any) -> Self:
        return copy.copy(self)._set(data=self.data * unit)  # the copies of a prepared matrix have no unit

    @classmethod
    def _general(cls) -> type[Format]:
        """Return the format of results that may have any structure."""
        return cls

    @classmethod
    def _of_arrays(cls, arrays: Arrays, shape: tuple[int, int], *, check: bool | None = None) -> Self:
        """Return the matrix of the arrays of the general format."""
        return cls(arrays, shape=shape, check=check)

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights and the same structure; a prepared matrix stays prepared.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have, or
            a quantity of such weights.

        Raises:
          ShapeError: if *data* has another length.
          DtypeError: if its dtype is not supported.
        """
        self._check_single()
        data, unit = split(data)
        matrix: Self = joined(self._with_data(check_data(f"{type(self).__name__}.with_data", data, self.nnz)), unit)
        return matrix

    def _with_data(self, data: jax.Array) -> Self:
        return self._like(data=data)

    @abc.abstractmethod
    def to_scipy(self) -> Any:
        """Return a SciPy sparse array of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not support, become float32.

        Raises:
          StructureError: if the matrix is traced.
        """

    @abc.abstractmethod
    def _dense(self) -> jax.Array:
        """Return the matrix as a dense array."""

    @abc.abstractmethod
    def _diagonal(self, offset: int) -> jax.Array:
        """Return the elements with ``column - row == offset``, a number from ``-rows`` to ``columns``."""

    @abc.abstractmethod
    def _part(self, numbers: Mapping[int, Numbers], values: Values) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the index arrays of the part in the rows ``numbers[0]`` and columns ``numbers[1]``, and its *values*.

        A missing axis stands for all its rows or columns. The structure of the matrix is known.
        """

    @abc.abstractmethod
    def _with_structure(self, data: jax.Array, first: jax.Array, second: jax.Array, shape: tuple[int, int]) -> Any:
        """Return a matrix of the general format, which is not prepared, with these arrays, unchecked."""

    def _with_part(
        self, axes: Container[int], data: jax.Array, first: jax.Array, second: jax.Array, shape: tuple[int, int]
    ) -> Any:
        """Return the part of the matrix in some lines of these axes, with these arrays, unchecked."""
        return self._with_structure(data, first, second, shape)

    def _traced_lines(self, axis: int, numbers: Any) -> Format | None:
        """Return the lines *numbers*, which may be traced; None if their number of entries is not known."""
        return None

    @abc.abstractmethod
    def _at_entries(self, row: jax.Array | None, column: jax.Array | None) -> jax.Array:
        """Return ``row[i] * column[j]`` for each entry in row i and column j, ``(nnz,)``; a factor of None is 1."""

    @abc.abstractmethod
    def _indptr(self, axis: int) -> jax.Array | None:
        """Return the first entry of each row if *axis* is 0, else of each column; None if they are not stored so."""

    @abc.abstractmethod
    def _ascends(self) -> jax.Array:
        """Return True if the places of the entries ascend, so that they differ."""

    @abc.abstractmethod
    def _first_of_places(self) -> tuple[jax.Array, jax.Array]:
        """Return the first entry of each entry's place, ``(nnz,)``, and the number of entries that are not first."""

    # Shared by all formats.

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return getattr(self.data, "mantissa", self.data).dtype

    @property
    def nnz(self) -> int:
        """The number of stored entries, including zeros, duplicates and padding."""
        return self.structure[0].shape[-1]  # symbolic where a program is exported for any number

    @property
    def homogeneous(self) -> bool:
        """True if all entries have one weight, the only element of `data`."""
        return getattr(self.data, "mantissa", self.data).shape == (1,)

    def __repr__(self) -> str:
        data, unit = split(self.data)
        leaves = (data, *self._index_arrays)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other objects into pytrees
            return f"{type(self).__name__}({leaves}, shape={self.shape})"
        weights = ", equal weights" if self.homogeneous and self.nnz != 1 else ""
        weights += "" if unit is None else f", unit {unit}"
        rows, columns = self.shape
        # The batch dimensions of matrices that `jax.vmap` returned.
        several = self._index_arrays[0].shape[: -self._rank] or data.shape[: -self._rank]
        batch = f", batch={several}" if several else ""
        return f"{type(self).__name__}({self.dtype.name}[{rows},{columns}], nnz={self.nnz}{weights}{batch})"

    @linear
    def astype(self, dtype: Any) -> Self:
        """Return the matrix with weights of another dtype.

        Args:
          dtype: one that a matrix may have.
        """
        return self.with_data(self.data.astype(dtype))

    @linear
    def conj(self) -> Self:
        """Return the matrix with conjugated weights."""
        return self.with_data(jnp.conj(self.data))

    conjugate = conj

    def copy(self) -> Self:
        """Return the matrix itself, which is immutable."""
        return self

    # Dense results.

    def _summed(self, axis: int | None, dtype: Any) -> jax.Array:
        lines = [self._indptr(of) for of in ((0, 1) if axis is None else (1 - axis,))]
        indptr = next((starts for starts in lines if starts is not None), None)
        # On a GPU, the kernels of products are faster than XLA's sums of segments.
        if self.homogeneous or indptr is None or jax.default_backend() != "cpu":
            return super()._summed(axis, dtype)
        wide = accumulator(dtype) if axis is None else dtype  # sums of lines may overflow half precision
        sums = reduce_rows(self._weights.astype(wide), indptr, "sum")
        return jnp.sum(sums).astype(dtype) if axis is None else sums

    def _line(self, axis: int, number: Any) -> jax.Array:
        """Return a row if *axis* is 0, else a column, as a dense vector; *number* is in range."""
        event = BinaryArray(_is_number(number, self.shape[axis]))
        line: jax.Array = event @ self if axis == 0 else self @ event
        return line

    @linear
    def todense(self) -> jax.Array:
        """Return the matrix as a dense array, ``(rows, columns)``."""
        return self._dense()

    @linear
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

    def _check_single(self) -> None:
        """Raise `ShapeError` for a batch of matrices, as `jax.vmap` returns it."""
        indices = self._index_arrays[0].shape
        data = getattr(self.data, "mantissa", self.data)
        weights = getattr(data, "shape", indices)  # JAX puts other objects into pytrees
        if len(indices) != self._rank or (len(weights) != 1 and weights != indices):
            raise ShapeError(
                f"{type(self).__name__}: this is a batch of matrices, with data of shape {weights} and index "
                f"arrays of shape {indices}. Map over it, as in jax.vmap(lambda A: A.todense())(matrices) or "
                "jax.vmap(lambda A, x: A @ x)(matrices, xs)."
            )


def picked(places: np.ndarray, numbers: Numbers, extent: int) -> tuple[np.ndarray, np.ndarray]:
    """Select the entries at certain rows or columns.

    Args:
      places: the row, or the column, of each entry.
      numbers: the chosen rows or columns, with or without repetitions.
      extent: the number of rows, or of columns.

    Returns:
      The selected entries in their order, one for each repetition, and the position of their place in *numbers*.
    """
    if isinstance(numbers, range):
        found = places - places.dtype.type(numbers.start)
        entries = np.flatnonzero((found >= 0) & (found < len(numbers)))
        return entries, found[entries]
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


def values_of(values: Values, entries: np.ndarray) -> list[np.ndarray]:
    """Return the *values* of these entries."""
    return [entries if every is None else every[entries] for every in values]


@functools.partial(jax.jit, static_argnums=1)
def _is_number(number: jax.Array, extent: int) -> jax.Array:
    """Return a vector of *extent* bools that is True at the position *number*."""
    return jnp.arange(extent) == number
