"""`SparseMatrix`: what the formats have in common."""

from __future__ import annotations

import abc
import operator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import InputError, ShapeError

from . import _arithmetic, _interchange, _random, _selection
from ._compact import CompactArray
from ._events import EventArray
from .operators.arguments import as_array, check_data, check_shape
from .operators.operand import DENSE, Operand

if TYPE_CHECKING:
    from ._compressed import CSC, CSR
    from ._coo import COO

#: The formats by name: each can be made of any other.
FORMATS: dict[str, type[Any]] = {}


class SparseMatrix(abc.ABC):
    """A matrix of which only some entries are stored; the base of `CSR`, `CSC` and `COO`.

    It is an immutable pytree whose arrays are all leaves: it goes through ``jax.jit``, ``jax.vmap``, ``jax.lax.scan``
    and ``jax.export`` like an array, and two matrices of one shape and number of entries share a compiled program.
    Its *data* is differentiable; take gradients with respect to ``A.data`` and put new weights in with `with_data`.

    Attributes:
      data: weights, ``(nnz,)``, or ``(1,)`` where all entries are equal.
      shape: (rows, columns).
    """

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

    def _set(self, **attributes: Any) -> Self:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    # What a format says of itself.

    #: The name of SciPy's class, and its attributes of our constructor's arrays.
    _scipy: ClassVar[tuple[str, tuple[str, str, str]]]

    def __init_subclass__(cls) -> None:
        FORMATS[cls.__name__] = cls

    @abc.abstractmethod
    def __init__(self, arrays: Any, *, shape: Any, check: bool | None = None) -> None: ...

    @classmethod
    @abc.abstractmethod
    def _convert(cls, matrix: SparseMatrix) -> Self:
        """Return *matrix* in this format."""

    @property
    @abc.abstractmethod
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays."""

    @property
    @abc.abstractmethod
    def T(self) -> SparseMatrix:
        """The transposed matrix, of the same arrays."""

    @abc.abstractmethod
    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; for padding those of *shape*, out of range."""

    @abc.abstractmethod
    def _is_entry(self) -> jax.Array:
        """Return which entries are no padding, ``(nnz,)``."""

    @abc.abstractmethod
    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights, and all else as it is.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have.

        Raises:
          ShapeError: if it has another length.
          DtypeError: if its dtype is not supported.
        """

    @abc.abstractmethod
    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, who: str) -> jax.Array:
        """Return the product with *x* of rank 1 or 2."""

    @abc.abstractmethod
    def _multiply_compact(self, events: CompactArray, *, transpose: bool, who: str) -> jax.Array:
        """Return the product with active numbers."""

    # What arrays have.

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """How many entries are stored, zeros, duplicates and padding among them."""
        return int(self.structure[0].shape[0])

    @property
    def homogeneous(self) -> bool:
        """Whether all entries have one weight, which *data* then holds alone."""
        return self.data.shape == (1,)

    def __repr__(self) -> str:
        leaves = (self.data, *self.structure)
        if not all(hasattr(leaf, "dtype") for leaf in leaves):  # JAX puts other things into pytrees
            return f"{type(self).__name__}({leaves}, shape={self.shape})"
        weights = ", equal weights" if self.homogeneous and self.nnz != 1 else ""
        rows, columns = self.shape
        return f"{type(self).__name__}({self.dtype.name}[{rows},{columns}], nnz={self.nnz}{weights})"

    def transpose(self) -> SparseMatrix:
        """Return the transposed matrix, of the same arrays: `T`."""
        return self.T

    def astype(self, dtype: Any) -> Self:
        """Return the matrix with weights of another dtype."""
        return self.with_data(self.data.astype(dtype))

    def conj(self) -> Self:
        """Return the matrix with conjugated weights."""
        return self.with_data(jnp.conj(self.data))

    # Products.

    def __matmul__(self, other: Any) -> jax.Array:
        return self._product(other, transpose=False)

    def __rmatmul__(self, other: Any) -> jax.Array:
        return self._product(other, transpose=True)

    def _product(self, other: Any, *, transpose: bool) -> jax.Array:
        """Return ``self @ other``; ``other @ self`` if *transpose*."""
        who = f"x @ {type(self).__name__}" if transpose else f"{type(self).__name__} @ x"
        if isinstance(other, SparseMatrix):
            raise InputError(
                f"{who}: both are sparse. Products of two sparse matrices are not offered: multiply by one after the "
                "other, A @ (B @ x); or convert one, A @ B.todense(); or let SciPy multiply, A.to_scipy() @ "
                "B.to_scipy()."
            )
        if isinstance(other, CompactArray):
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
            raise ShapeError(
                f"{who}: x has the shape {shape}; with a matrix of shape {self.shape} it must be ({length},) or "
                f"{matrix}."
            )

    # Entry by entry.

    def __neg__(self) -> Self:
        return self.with_data(-self.data)

    def __mul__(self, other: Any) -> Self:
        return self.with_data(_arithmetic.known_weights(self) * _arithmetic.factor_of(self, "*", other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Self:
        return self.with_data(_arithmetic.known_weights(self) / _arithmetic.factor_of(self, "/", other))

    def __add__(self, other: Any) -> Self:
        return self.with_data(self.data + _arithmetic.with_same_structure(self, "+", other).data)

    def __sub__(self, other: Any) -> Self:
        return self.with_data(self.data - _arithmetic.with_same_structure(self, "-", other).data)

    def multiply(self, other: Any) -> Self:
        """Multiply each entry by that of *other* at its place, as ``*`` does.

        Args:
          other: a number, or a dense array that broadcasts to the matrix's shape.

        Raises:
          ShapeError: if it does not broadcast to it.
        """
        product: Self = self * other
        return product

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
        row, column = self.coordinates()
        return jnp.zeros(self.shape, self.dtype).at[row, column].add(self.data, mode="drop")

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
        if axis not in (None, 0, 1, -1, -2):
            raise ShapeError(f"{type(self).__name__}.sum: axis is {axis!r}; allowed: 0, 1, -1, -2 or None.")
        dtype = jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), self.dtype)).dtype
        matrix = self.astype(dtype)
        if axis is None:
            return jnp.sum(matrix @ jnp.ones(self.shape[1], dtype))
        ones = jnp.ones(self.shape[axis], dtype)
        return ones @ matrix if axis in (0, -2) else matrix @ ones

    def diagonal(self, offset: int = 0) -> jax.Array:
        """Return a diagonal, the entries with ``column - row == offset``, as ``jax.numpy.diagonal`` does."""
        rows, columns = self.shape
        offset = max(-rows, min(operator.index(offset), columns))  # beyond these diagonals are empty
        first = max(-offset, 0)
        length = max(min(rows - first, columns - max(offset, 0)), 0)
        row, column = self.coordinates()
        place = jnp.where((column - row == offset) & (row < rows), row - first, length)
        return jnp.zeros(length, self.dtype).at[place].add(self.data, mode="drop")

    # From and to others.

    @classmethod
    def from_dense(cls, dense: Any, *, nnz: int | None = None) -> Self:
        """Make a matrix of the elements of a dense one that are not zero.

        Args:
          dense: the dense matrix, ``(rows, columns)``.
          nnz: how many entries to make room for; None: as many as are needed, which must be known. The rest is padding.
            Inside of jit, a matrix of real numbers that has too little room is filled with NaN.

        Raises:
          ShapeError: if it is no matrix, or has more elements that are not zero than *nnz*.
          ArgumentError: if *nnz* is no number of entries; if *dense* is traced, and *nnz* is None or its elements are
            integers.
          DtypeError: if its dtype is not supported.
        """
        data, row, col = _interchange.coordinates_of_dense(f"{cls.__name__}.from_dense", dense, nnz)
        return cls._of_coordinates(data, row, col, np.shape(dense))

    @classmethod
    def from_scipy(cls, matrix: Any) -> Self:
        """Make a matrix of one of SciPy's, sparse array or sparse matrix, in any of its formats.

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

        Raises:
          InputError: if it is none.
          ShapeError: if it is no matrix, or has batch or dense dimensions.
        """
        data, row, col = _interchange.coordinates_of_bcoo(f"{cls.__name__}.from_bcoo", matrix)
        return cls._of_coordinates(data, row, col, matrix.shape)

    @classmethod
    def from_bcsr(cls, matrix: Any) -> Self:
        """Make a matrix of a `jax.experimental.sparse.BCSR` without batch and dense dimensions.

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
          ArgumentError: if not exactly one of *density* and *per_row* is given, or one is out of range.

        Example:
          >>> import jax
          >>> from xlakernel.sparse import CSR
          >>> print(CSR.random(jax.random.key(0), (1000, 500), per_row=20, weights=0.1))
          CSR(float32[1000,500], nnz=20000, equal weights)
        """
        who = f"{cls.__name__}.random"
        shape = check_shape(who, shape)
        of_places, of_weights = jax.random.split(key)
        row, col = _random.draw_structure(who, of_places, shape, density, per_row)
        data = _random.draw_data(who, of_weights, weights, row.shape[0], dtype)
        return cls._convert(FORMATS["COO"]((data, row, col), shape=shape, check=False))

    @classmethod
    def _of_coordinates(cls, data: Any, row: Any, col: Any, shape: Any) -> Self:
        return cls._convert(FORMATS["COO"]((data, row, col), shape=shape))

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

    def _checked_data(self, data: Any) -> jax.Array:
        return check_data(f"{type(self).__name__}.with_data", data, self.nnz)


def three_arrays(who: str, arrays: Any, names: str) -> tuple[Any, Any, Any]:
    """Return the three arrays that a format is made of."""
    try:
        first, second, third = arrays
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{who}: the first argument is {type(arrays).__name__}; expected the tuple ({names}). Other matrices come "
            f"by {who}.from_dense, from_scipy, from_bcoo or from_bcsr."
        ) from error
    return first, second, third
