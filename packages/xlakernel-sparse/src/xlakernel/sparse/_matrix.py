"""`SparseMatrix`: what the formats have in common."""

from __future__ import annotations

import abc
import functools
import math
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.backend import jit_when_eager
from xlakernel.core.errors import ArgumentError, InputError, ShapeError

from . import _interchange, _random, _selection
from ._arithmetic import Arithmetic
from ._compact import CompactArray
from ._events import EventArray
from .operators.arguments import as_array, as_integer, check_data, check_shape
from .operators.dtypes import accumulator
from .operators.operand import DENSE

if TYPE_CHECKING:
    from ._compressed import CSC, CSR
    from ._coo import COO

#: The formats by name: each can be made of any other.
FORMATS: dict[str, type[Any]] = {}


class SparseMatrix(Arithmetic):
    """A matrix of which only some entries are stored; the base of `CSR`, `CSC` and `COO`.

    It is an immutable pytree whose arrays are all leaves: it goes through ``jax.jit``, ``jax.vmap``, ``jax.lax.scan``
    and ``jax.export`` like an array, and two matrices of one shape and number of entries share a compiled program.
    Its *data* is differentiable; take gradients with respect to ``A.data`` and put new weights in with `with_data`.
    Like JAX's arrays it cannot be hashed, and so be no static argument. With ``==`` it is compared to nothing that has
    elements: say what is to be equal, as ``A.todense() == B.todense()``.

    Attributes:
      data: weights, ``(nnz,)``, or ``(1,)`` where all entries are equal.
      shape: (rows, columns).
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        FORMATS[cls.__name__] = cls

    # Products.

    def __matmul__(self, other: Any) -> jax.Array:
        return _multiply(self, other, transpose=False)

    def __rmatmul__(self, other: Any) -> jax.Array:
        return _multiply(self, other, transpose=True)

    def _product(self, other: Any, *, transpose: bool) -> jax.Array:
        """Return ``self @ other``; ``other @ self`` if *transpose*."""
        who = f"x @ {type(self).__name__}" if transpose else f"{type(self).__name__} @ x"
        self._check_single()
        theirs = _interchange.is_of_scipy(other)
        if isinstance(other, SparseMatrix) or theirs:
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

    def dot(self, other: Any) -> Any:
        """Return the product ``A @ other``; with a number ``A * other``, as SciPy does.

        Args:
          other: a vector, ``(columns,)``, a matrix, ``(columns, k)``, an event array, or a number.
        """
        return self * other if np.ndim(other) == 0 else self @ other

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

    # Parts.

    def __getitem__(self, index: Any) -> Any:
        """Return part of the matrix.

        Args:
          index: one or two indices, for rows and columns. An integer, which may be traced, asks for one row or column,
            which is returned dense; two for an element. Slices, and one vector of integers or of bools, ask for a
            matrix of the same format; that must be outside of jit, since its number of entries is to be known.

        Raises:
          IndexError: if an integer is out of range.
          ArgumentError: if an index is none of these.
          StructureError: if a matrix is asked for while tracing.
        """
        return _selection.select(self, index)

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

    # From and to others.

    @classmethod
    def from_dense(cls, dense: Any, *, nnz: int | None = None) -> Self:
        """Make a matrix of the elements of a dense one that are not zero.

        Args:
          dense: the dense matrix, ``(rows, columns)``.
          nnz: how many entries to make room for; None: as many as are needed, which must be known. The rest is padding.
            Inside of jit, where a matrix of real numbers has too little room, each of its entries is NaN.

        Raises:
          ShapeError: if it is no matrix, or has more elements that are not zero than *nnz*.
          ArgumentError: if *nnz* is no number of entries; if *dense* is traced, and *nnz* is None or 0, or its elements
            are integers.
          DtypeError: if its dtype is not supported.
        """
        data, row, col = _interchange.coordinates_of_dense(f"{cls.__name__}.from_dense", dense, nnz)
        entries = FORMATS["COO"]((data, row, col), shape=np.shape(dense), check=False)
        return cls._of_entries(entries, in_range=True)

    @classmethod
    def from_scipy(cls, matrix: Any) -> Self:
        """Make a matrix of one of SciPy's, sparse array or sparse matrix, in any of its formats.

        Args:
          matrix: SciPy's, ``(rows, columns)``.

        Raises:
          InputError: if it is none.
          DtypeError: if its dtype is not supported.
        """
        kind, names = cls._scipy
        known = _interchange.scipy_matrix(f"{cls.__name__}.from_scipy", matrix, kind)
        return cls(tuple(getattr(known, name) for name in names), shape=known.shape)

    @classmethod
    def from_bcoo(cls, matrix: Any) -> Self:
        """Make a matrix of a `jax.experimental.sparse.BCOO` without batch and dense dimensions.

        Args:
          matrix: JAX's, ``(rows, columns)``.

        Raises:
          InputError: if it is none.
          ShapeError: if it is no matrix, or has batch or dense dimensions.
        """
        data, row, col = _interchange.coordinates_of_bcoo(f"{cls.__name__}.from_bcoo", matrix)
        return cls._of_entries(FORMATS["COO"]((data, row, col), shape=matrix.shape))

    @classmethod
    def from_bcsr(cls, matrix: Any) -> Self:
        """Make a matrix of a `jax.experimental.sparse.BCSR` without batch and dense dimensions.

        Args:
          matrix: JAX's, ``(rows, columns)``.

        Raises:
          InputError: if it is none.
          ShapeError: if it is no matrix, or has batch or dense dimensions.
        """
        arrays = _interchange.rows_of_bcsr(f"{cls.__name__}.from_bcsr", matrix)
        return cls._convert(FORMATS["CSR"](arrays, shape=matrix.shape))

    @classmethod
    def random(
        cls,
        key: Any,
        shape: Any,
        *,
        density: float | None = None,
        per_row: int | None = None,
        weights: Any = jax.random.uniform,
        dtype: Any = None,
    ) -> Self:
        """Draw a matrix without duplicates.

        The same key gives the same matrix on every device and in every format.

        Args:
          key: a key of `jax.random`.
          shape: (rows, columns).
          density: the fraction of all places that are entries, between 0 and 1: ``round(density * rows * columns)``
            different places, drawn from all.
          per_row: instead of *density*: the number of entries in each row, drawn from its columns.
          weights: a function ``(key, shape, dtype)``, as those of `jax.random` are; or a number that all entries have.
          dtype: that of the weights; None: float32, or that of the number.

        Raises:
          InputError: if *key* is no key.
          ShapeError: if *shape* is not that of a matrix.
          ArgumentError: if not exactly one of *density* and *per_row* is given, or one is out of range.

        Example:
          >>> import jax
          >>> from xlakernel.sparse import CSR
          >>> print(CSR.random(jax.random.key(0), (1000, 500), per_row=20, weights=0.1))
          CSR(float32[1000,500], nnz=20000, equal weights)
        """
        who = f"{cls.__name__}.random"
        shape = check_shape(who, shape)
        of_places, of_weights = _random.split_key(who, key)
        row, col = _random.draw_structure(who, of_places, shape, density, per_row)
        data = _random.draw_data(who, of_weights, weights, row.shape[0], dtype)
        return cls._of_entries(FORMATS["COO"]((data, row, col), shape=shape, check=False), in_range=True)

    def tocsr(self) -> CSR:
        """Return the matrix in compressed rows; those of columns ascend within each, coordinates keep their order."""
        return FORMATS["CSR"]._convert(self)  # type: ignore[no-any-return]

    def tocsc(self) -> CSC:
        """Return the matrix in compressed columns; those of rows ascend within each, coordinates keep their order."""
        return FORMATS["CSC"]._convert(self)  # type: ignore[no-any-return]

    def tocoo(self) -> COO:
        """Return the matrix in coordinates."""
        return FORMATS["COO"]._convert(self)  # type: ignore[no-any-return]

    @abc.abstractmethod
    def to_scipy(self) -> Any:
        """Return a sparse array of SciPy's of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not know, become float32.
        """

    def to_bcoo(self) -> Any:
        """Return a `jax.experimental.sparse.BCOO`."""
        from jax.experimental.sparse import BCOO

        indices = jnp.stack(self.coordinates(), axis=1)
        return BCOO((self._each_weight(), indices), shape=self.shape)

    def to_bcsr(self) -> Any:
        """Return a `jax.experimental.sparse.BCSR`."""
        from jax.experimental.sparse import BCSR

        rows = self.tocsr()
        places = rows.coordinates()[1].astype(rows.indices.dtype)
        return BCSR((rows._each_weight(), places, rows.indptr), shape=self.shape)

    def _each_weight(self) -> jax.Array:
        return jnp.broadcast_to(self.data, (self.nnz,)) if self.homogeneous else self.data

    # Checks that formats share.

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

    def _checked_data(self, data: Any) -> jax.Array:
        self._check_single()
        return check_data(f"{type(self).__name__}.with_data", data, self.nnz)


@jax.jit
def _dense(matrix: SparseMatrix) -> jax.Array:
    return _added_up(matrix, matrix.shape, matrix.coordinates())


@functools.partial(jax.jit, static_argnums=1)
def _diagonal(matrix: SparseMatrix, offset: int) -> jax.Array:
    rows, columns = matrix.shape
    first = max(-offset, 0)
    length = max(min(rows - first, columns - max(offset, 0)), 0)
    row, column = matrix.coordinates()
    place = jnp.where((column - row == offset) & (row < rows), row - first, length)
    return _added_up(matrix, (length,), (place,))


def _added_up(matrix: SparseMatrix, shape: tuple[int, ...], places: tuple[jax.Array, ...]) -> jax.Array:
    """Add the weights up where *places* says; duplicates of half precision in float32, as products do."""
    wide = accumulator(matrix.dtype)
    sums = jnp.zeros(shape, wide).at[places].add(matrix.data.astype(wide), mode="drop")
    return sums.astype(matrix.dtype)


def _product(matrix: SparseMatrix, other: Any, *, transpose: bool) -> jax.Array:
    return matrix._product(other, transpose=transpose)


_compiled_product = jit_when_eager(_product, static_argnames="transpose")


def _multiply(matrix: SparseMatrix, other: Any, *, transpose: bool) -> jax.Array:
    """Return a product, of one program where it is called outside of all; lists are no arguments of programs."""
    multiply = _compiled_product if hasattr(other, "dtype") else _product
    product: jax.Array = multiply(matrix, other, transpose=transpose)
    return product
