"""`FixedNumPerPre` and `FixedNumPerPost`: matrices with one number of entries in each row, or in each column."""

from __future__ import annotations

import abc
from collections.abc import Container
from contextlib import nullcontext
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from xlakernel.core.errors import InputError, ShapeError, StructureError

from ..operators.arguments import as_array, check_room, check_shape, index_array, is_known, strong
from ..operators.units import joined, split
from .base import Arrays, Values
from .duplicates import evaluated
from .matrices import CSC, CSR, CompressedMatrix
from .validation import check_places, should_check, to_inspect


class FixedNumConn(CompressedMatrix):
    """A matrix with one number of entries in each line; the base of `FixedNumPerPre` and `FixedNumPerPost`.

    Products and methods are those of a compressed matrix, whose arrays are *data* and *indices*, reshaped, and an
    *indptr* made of their shape. Results with another structure, such as ``A @ B``, are a `CSR` or a `CSC`.
    `from_dense`, `from_scipy`, `random` and the other constructors need the same number of entries in each line.

    Attributes:
      data: weights, ``(lines, num_conn)``, or ``(1,)`` where all entries are equal.
      indices: the place of each entry in its line, ``(lines, num_conn)``.
      shape: (rows, columns).
    """

    __slots__ = ()
    _rank = 2

    def __init__(self, data: Any, indices: Any = None, *, shape: Any = None, check: bool | None = None) -> None:
        caller = type(self).__name__
        data, indices = _two_arrays(caller, data, indices)
        shape = check_shape(caller, shape)
        lines, places = shape if self._axis == 0 else shape[::-1]
        indices = _checked_indices(caller, indices, lines, self._names[0])
        check_room(caller, "rows and columns", indices.dtype, max(shape))
        if should_check(caller, check, indices):
            check_places(caller, "indices", to_inspect(indices), places, self._names[1])
        starts = _starts(caller, indices)
        data, unit = split(data)
        data = joined(_checked(caller, data, indices), unit)
        self._set(data=data, indices=indices, indptr=starts, shape=shape, prepared=None)

    @property
    @abc.abstractmethod
    def T(self) -> FixedNumConn:
        """The transposed matrix, which shares the arrays."""

    @property
    def num_pre(self) -> int:
        """The number of rows."""
        return self.shape[0]

    @property
    def num_post(self) -> int:
        """The number of columns."""
        return self.shape[1]

    @property
    def num_conn(self) -> int:
        """The number of entries in each line."""
        return self.indices.shape[-1]

    @property
    def nnz(self) -> int:
        """The number of entries."""
        return self.line_shape[0] * self.num_conn

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights and the same structure; a prepared matrix stays prepared.

        Args:
          data: the weights, ``(lines, num_conn)``, or ``(nnz,)`` in the same order; one number, ``()`` or ``(1,)``,
            where all are to be equal. They may have any dtype that a matrix may have, and a unit.

        Raises:
          ShapeError: if *data* has another shape.
          DtypeError: if its dtype is not supported.
        """
        self._check_single()
        data, unit = split(data)
        matrix: Self = joined(self._with_data(_checked(f"{type(self).__name__}.with_data", data, self.indices)), unit)
        return matrix

    def _with_data(self, data: jax.Array) -> Self:
        weights = _split(data, self.indices)
        if self.prepared is None:
            return self._like(data=weights)
        return super()._with_data(_joined(data))._set(data=weights)

    @property
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays of the compressed matrix: ``(indices, indptr)``."""
        with evaluated():  # known, also under jit
            return _joined(self.indices), self.indptr

    @property
    def _index_arrays(self) -> tuple[jax.Array, jax.Array]:
        return self.indices, self.indptr

    @property
    def _weights(self) -> jax.Array:
        return _joined(super()._weights)

    @classmethod
    def _general(cls) -> type[CSR | CSC]:
        return CSR if cls._axis == 0 else CSC

    @classmethod
    def _of_arrays(cls, arrays: Arrays, shape: tuple[int, int], *, check: bool | None = None) -> Self:
        matrix = cls._general()(arrays, shape=shape, check=check)
        if not is_known(matrix.indptr):
            raise StructureError(
                f"{cls.__name__}: the number of entries of each {cls._names[0]} is traced, and must be known. Make the "
                f"matrix outside of jit, or of its arrays, {cls.__name__}(data, indices, shape=...)."
            )
        counts = np.diff(np.asarray(matrix.indptr))
        number, most = int(counts.min(initial=matrix.nnz)), int(counts.max(initial=0))
        if number * counts.size != matrix.nnz:
            raise StructureError(
                f"{cls.__name__}: the {cls._names[0]}s have {number} to {most} entries, and the matrix {matrix.nnz}; "
                "expected equally many in each, and no padding. For other matrices use "
                f"{cls._general().__name__}."
            )
        indices = matrix.indices.reshape(counts.size, number)
        return cls(_split(matrix.data, indices), indices, shape=shape, check=False)

    def _part(self, numbers: Any, values: Values) -> Any:
        with evaluated():  # the reshaped index array is known, also under jit
            return super()._part(numbers, values)

    def _traced_lines(self, axis: int, numbers: Any) -> Self | None:
        if axis != self._axis:
            return None
        data = self.data if self.homogeneous else self.data[numbers]
        shape = (numbers.size, self.shape[1]) if axis == 0 else (self.shape[0], numbers.size)
        return type(self)(data, self.indices[numbers], shape=shape, check=False)

    def _with_part(
        self, axes: Container[int], data: jax.Array, indices: jax.Array, indptr: jax.Array, shape: tuple[int, int]
    ) -> Any:
        if 1 - self._axis in axes:
            return super()._with_part(axes, data, indices, indptr, shape)
        indices = indices.reshape(shape[self._axis], self.num_conn)
        return self._of(data=_split(data, indices), indices=indices, indptr=indptr, shape=shape, prepared=None)


@jax.tree_util.register_pytree_with_keys_class
class FixedNumPerPre(FixedNumConn):
    """A matrix with `num_conn` entries in each row: ``A[i, indices[i, k]] = data[i, k]``.

    It is like a `CSR` with this structure, and the arrays of entries have two dimensions. Results with another
    structure, such as ``A @ B``, are a `CSR`. The number of entries of ``A[rows]`` is known, so *rows* may be traced.
    Make the matrix outside of ``jax.jit`` where possible: a program that makes it stores the number of the first entry
    of each row as a constant.

    Args:
      data: the weights, ``(rows, num_conn)``; one number, ``()`` or ``(1,)``, where all entries are equal; or the tuple
        ``(data, indices)``.
      indices: the column of each entry, ``(rows, num_conn)``, int32 or int64, in any order; duplicates add up.
      shape: (rows, columns).
      check: check the values of the indices, as for `CSR`.

    Raises:
      ArgumentError: if *check* is invalid, or if it is True and indices are traced.
      InputError: if *data* and *indices* are not two arrays.
      ShapeError: if shapes do not fit each other.
      DtypeError: if a dtype is not supported, or the dtype of the indices cannot hold the shape.
      StructureError: if an index is out of range.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import FixedNumPerPre
      >>> A = FixedNumPerPre(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[0, 2], [1, 2]]), shape=(2, 3))
      >>> print(A, A @ jnp.ones(3))
      FixedNumPerPre(float32[2,3], nnz=4) [3. 7.]
    """

    __slots__ = ()
    _axis = 0
    _names = CSR._names
    _scipy = CSR._scipy

    @property
    def T(self) -> FixedNumPerPost:
        """The transposed matrix, which shares the arrays."""
        return FixedNumPerPost._of(**self._transposed())


@jax.tree_util.register_pytree_with_keys_class
class FixedNumPerPost(FixedNumConn):
    """A matrix with `num_conn` entries in each column: ``A[indices[j, k], j] = data[j, k]``.

    It is like a `CSC` with this structure; see `FixedNumPerPre`.

    Args:
      data: the weights, ``(columns, num_conn)``; one number, ``()`` or ``(1,)``, where all entries are equal; or the
        tuple ``(data, indices)``.
      indices: the row of each entry, ``(columns, num_conn)``, int32 or int64, in any order; duplicates add up.
      shape: (rows, columns).
      check: check the values of the indices, as for `CSR`.

    Raises:
      ArgumentError: if *check* is invalid, or if it is True and indices are traced.
      InputError: if *data* and *indices* are not two arrays.
      ShapeError: if shapes do not fit each other.
      DtypeError: if a dtype is not supported, or the dtype of the indices cannot hold the shape.
      StructureError: if an index is out of range.
    """

    __slots__ = ()
    _axis = 1
    _names = CSC._names
    _scipy = CSC._scipy

    @property
    def T(self) -> FixedNumPerPre:
        """The transposed matrix, which shares the arrays."""
        return FixedNumPerPre._of(**self._transposed())


def _two_arrays(caller: str, data: Any, indices: Any) -> tuple[Any, Any]:
    """Return the weights and the indices, which may be given as one tuple.

    Raises:
      InputError: if they are not two.
    """
    if indices is not None:
        return data, indices
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InputError(
            f"{caller}: got one argument of type {type(data).__name__}; expected {caller}(data, indices, shape=...) or "
            f"{caller}((data, indices), shape=...). Other matrices are converted by {caller}.from_dense and from_scipy."
        )
    return data[0], data[1]


def _checked_indices(caller: str, indices: Any, lines: int, line: str) -> jax.Array:
    """Return the checked *indices* as an array of int32 or int64.

    Raises:
      ShapeError: if they are not one row of numbers for each of the *lines*.
    """
    array = index_array(caller, "indices", indices, rank=2)
    if array.shape[0] != lines:
        raise ShapeError(
            f"{caller}: indices has the shape {array.shape}; expected ({lines}, k), the k entries of each {line}."
        )
    return array


def _checked(caller: str, data: Any, indices: jax.Array) -> jax.Array:
    """Return the checked weights, of the shape of *indices* or ``(1,)``.

    Raises:
      ShapeError: if *data* has another shape.
    """
    array = as_array(caller, "data", data)
    array = array if array.ndim else array.reshape(1)
    lines, number = indices.shape
    if array.shape not in ((1,), (lines * number,), (lines, number)):
        raise ShapeError(
            f"{caller}: data has the shape {array.shape}; expected {indices.shape}, like the indices, or (1,) where "
            "all entries are equal."
        )
    return _split(strong(caller, "data", array), indices)


def _starts(caller: str, indices: jax.Array) -> jax.Array:
    """Return the first entry of each line, and the number of entries."""
    lines, number = indices.shape
    check_room(caller, "numbers of entries", indices.dtype, lines * number)
    with nullcontext() if export.is_symbolic_dim(number) else evaluated():  # known, also under jit
        return jnp.arange(lines + 1, dtype=indices.dtype) * number


def _joined(array: jax.Array) -> jax.Array:
    """Return the array of entries with its last two dimensions made one."""
    return array.reshape(array.shape[0] * array.shape[1]) if array.ndim == 2 else array


def _split(data: jax.Array, indices: jax.Array) -> jax.Array:
    """Return weights in the shape of *indices*, or the one weight of all entries."""
    return data.reshape(indices.shape) if data.ndim == 1 and data.shape != (1,) else data
