"""`SparseMatrix`, `CSR`, `CSC` and `COO`: the formats, with their constructors and conversions."""

from __future__ import annotations

import abc
from typing import Any, Self

import jax
import numpy as np

from xlakernel.core.errors import ArgumentError

from ..operators.arguments import as_integer, check_shape
from ..operators.delays import deliver
from ..operators.units import joined, linear, split
from .coordinates import Coordinates
from .interchange import bcoo_of, bcsr_of, coordinates_of_bcoo, coordinates_of_dense, rows_of_bcsr, scipy_matrix
from .plastic import Plastic
from .random import draw_data, draw_structure, two_keys
from .rearranged import Rearranged
from .selection import select
from .sharded import ShardedMatrix, shard
from .symbolic import multiply


class SparseMatrix(Rearranged):
    """A matrix that stores only some of its elements, the entries; the base of `CSR`, `CSC` and `COO`.

    It is an immutable pytree with its arrays as leaves. Functions under ``jax.jit``, ``jax.vmap``, ``jax.lax.scan`` and
    ``jax.export`` can take and return it like an array, and matrices of the same shape and number of entries share a
    compiled program. Its *data* is differentiable: take gradients with respect to ``A.data``, and set new weights with
    `with_data`. Like JAX's arrays, a matrix has no hash and cannot be a static argument. Comparison with ``==`` is an
    error: compare ``A.todense() == B.todense()``.

    Attributes:
      data: weights, ``(nnz,)``, or ``(1,)`` where all entries are equal.
      shape: (rows, columns).
    """

    __slots__ = ()

    def __matmul__(self, other: Any) -> Any:
        return multiply(self, other) if isinstance(other, SparseMatrix) else super().__matmul__(other)

    def dot(self, other: Any) -> Any:
        """Return the product ``A @ other``; with a number ``A * other``, like SciPy.

        Args:
          other: a vector, ``(columns,)``, a matrix, ``(columns, k)``, an event array, or a number.
        """
        return self * other if np.ndim(split(other)[0]) == 0 else self @ other

    @property
    @abc.abstractmethod
    def T(self) -> SparseMatrix:
        """The transposed matrix, which shares the arrays."""

    @property
    def mT(self) -> SparseMatrix:
        """The transposed matrix, like `T`."""
        return self.T

    def transpose(self, *axes: Any, copy: bool = False) -> SparseMatrix:
        """Return the transposed matrix, which shares the arrays, like `T`.

        Args:
          *axes: as in JAX and SciPy: none, None, or 1 and 0, also as a tuple.
          copy: as in SciPy; the arrays are never copied, since they cannot change.

        Raises:
          ArgumentError: if *axes* are not one of these.
        """
        order = axes[0] if len(axes) == 1 else axes or None
        if order is not None and (not isinstance(order, (tuple, list)) or [as_integer(a) for a in order] != [1, 0]):
            given = ", ".join(map(repr, axes))
            raise ArgumentError(
                f"{type(self).__name__}.transpose: axes are {given}; allowed: none, None, (1, 0), or 1, 0. Without a "
                "transposition, use A itself."
            )
        return self.T

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the matrix.

        Args:
          index: one or two indices, for rows and columns. One integer selects a row or column as a dense vector, and
            two integers select an element; integers may be traced. Slices, and one vector of integers or of bools,
            select a matrix of the same format, and so does ``np.ix_(rows, columns)``. Two vectors select the elements
            at these pairs of rows and columns, as a dense vector. Slices and vectors must be concrete, and so must the
            index arrays of the matrix. An ellipsis stands for the indices that are not given.

        Raises:
          IndexError: if an integer is out of range.
          ArgumentError: if an index is of another kind.
          StructureError: if a matrix is selected while tracing.
        """
        return select(self, index)

    # Construction and conversion.

    @classmethod
    def from_dense(cls, dense: Any, *, nnz: int | None = None) -> Self:
        """Make a matrix from the nonzero elements of a dense one.

        Args:
          dense: the dense matrix, ``(rows, columns)``.
          nnz: the number of entries to allocate; those beyond the nonzero elements are padding. None: the number of
            nonzero elements; *dense* must not be traced then. If *dense* is traced and has more nonzero elements than
            *nnz*, all entries are NaN.

        Raises:
          ShapeError: if *dense* does not have two dimensions, or has more nonzero elements than *nnz*.
          ArgumentError: if *nnz* is not a number of entries; for a traced *dense*, also if *nnz* is None or 0, or if
            the elements are neither real nor complex.
          DtypeError: if the dtype of *dense* is not supported.
        """
        dense, unit = split(dense)
        entries = coordinates_of_dense(f"{cls.__name__}.from_dense", dense, nnz)
        matrix: Self = joined(cls._of_coordinates(entries, np.shape(dense), in_range=True), unit)
        return matrix

    @classmethod
    def from_scipy(cls, matrix: Any) -> Self:
        """Convert one of SciPy's sparse arrays or matrices, in any of its formats.

        Args:
          matrix: the SciPy array or matrix, ``(rows, columns)``.

        Raises:
          InputError: if *matrix* is of another type.
          ShapeError: if *matrix* does not have two dimensions.
          DtypeError: if the dtype is not supported.
        """
        kind, names = cls._scipy
        known = scipy_matrix(f"{cls.__name__}.from_scipy", matrix, kind)
        return cls._of_arrays(tuple(getattr(known, name) for name in names), known.shape)

    @classmethod
    def from_bcoo(cls, matrix: Any) -> Self:
        """Convert a `jax.experimental.sparse.BCOO` without batch and dense dimensions.

        Args:
          matrix: JAX's matrix, ``(rows, columns)``.

        Raises:
          InputError: if *matrix* is of another type.
          ShapeError: if *matrix* does not have two dimensions, or has batch or dense dimensions.
        """
        entries = COO(coordinates_of_bcoo(f"{cls.__name__}.from_bcoo", matrix), shape=matrix.shape)
        return cls._of_coordinates((entries.data, *entries.structure), entries.shape)

    @classmethod
    def from_bcsr(cls, matrix: Any) -> Self:
        """Convert a `jax.experimental.sparse.BCSR` without batch and dense dimensions.

        Args:
          matrix: JAX's matrix, ``(rows, columns)``.

        Raises:
          InputError: if *matrix* is of another type.
          ShapeError: if *matrix* does not have two dimensions, or has batch or dense dimensions.
        """
        rows = CSR(rows_of_bcsr(f"{cls.__name__}.from_bcsr", matrix), shape=matrix.shape)
        return cls._of_lines(0, (rows.data, *rows.structure), rows.shape)

    @classmethod
    def random(
        cls,
        key: Any,
        shape: Any = None,
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
            distinct places of the matrix.
          per_row: the number of entries in each row, at distinct random columns; give either *density* or *per_row*.
          weights: a function ``(key, shape, dtype)`` like those of `jax.random`; or one number for all entries.
          dtype: the dtype of the weights; None: float32, or the dtype of the number.

        Raises:
          InputError: if *key* is not a key.
          ShapeError: if *shape* is not that of a matrix.
          ArgumentError: if not exactly one of *density* and *per_row* is given, or it is out of range; or *weights* is
            neither a number nor such a function.
          DtypeError: if *dtype* is not supported.

        Example:
          >>> import jax
          >>> from xlakernel.sparse import CSR
          >>> print(CSR.random(jax.random.key(0), (1000, 500), per_row=20, weights=0.1))
          CSR(float32[1000,500], nnz=20000, equal weights)
        """
        caller = f"{cls.__name__}.random"
        of_places, of_weights = two_keys(caller, key)
        shape = check_shape(caller, shape)
        row, col = draw_structure(caller, of_places, shape, density, per_row)
        data = draw_data(caller, of_weights, weights, row.shape[0], dtype)
        return cls._of_coordinates((data, row, col), shape, in_range=True)

    @linear
    def tocsr(self) -> CSR:
        """Return the matrix in compressed rows; entries of a `COO` keep their order in each, a `CSC` is sorted."""
        return self if isinstance(self, CSR) else CSR(self._lines(0), shape=self.shape, check=False)

    @linear
    def tocsc(self) -> CSC:
        """Return the matrix in compressed columns; entries of a `COO` keep their order in each, a `CSR` is sorted."""
        return self if isinstance(self, CSC) else CSC(self._lines(1), shape=self.shape, check=False)

    @linear
    def tocoo(self) -> COO:
        """Return the matrix in coordinates."""
        if isinstance(self, COO):
            return self
        return COO((self._weights, *self.coordinates()), shape=self.shape, check=False)

    def to_bcoo(self) -> Any:
        """Return a `jax.experimental.sparse.BCOO`."""
        return bcoo_of(self)

    def to_bcsr(self) -> Any:
        """Return a `jax.experimental.sparse.BCSR`."""
        return bcsr_of(self.tocsr())


class CompressedMatrix(Plastic, SparseMatrix):
    """A matrix in compressed rows or columns, which can be spread over devices."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def T(self) -> CompressedMatrix:
        """The transposed matrix, which shares the arrays."""

    def shard(self, mesh: Any, axis_name: str) -> ShardedMatrix:
        """Spread the matrix over the devices of a mesh: its rows if it is in compressed rows, else its columns.

        All devices get the same number of rows (or columns), and memory for as many entries as the fullest device
        needs. The result is not prepared; it has a `prepare` of its own. If the devices belong to several processes,
        each process must call this method with the same matrix, and pass the result to jitted functions as an argument:
        jitted functions cannot close over it.

        Args:
          mesh: the devices, a ``jax.sharding.Mesh`` as ``jax.make_mesh`` makes it.
          axis_name: the mesh axis to spread over.

        Raises:
          InputError: if *mesh* is not a mesh.
          ArgumentError: if *mesh* has no axis *axis_name*.
          StructureError: if the matrix or its weights are traced.
        """
        return shard(self, mesh, axis_name)

    def _transposed(self) -> dict[str, Any]:
        """Return the attributes of the transposed matrix."""
        leaves = {name: getattr(self, name) for name in self._leaves}
        return {"shape": self.shape[::-1], "has_new_weights": getattr(self, "has_new_weights", False), **leaves}


@jax.tree_util.register_pytree_with_keys_class
class CSR(CompressedMatrix):
    """A matrix in compressed rows: row ``i`` has the entries ``indptr[i]`` to ``indptr[i + 1] - 1``.

    Args:
      arrays: ``(data, indices, indptr)``. *data*: the weights, ``(nnz,)``, or ``(1,)`` where all entries are equal.
        *indices*: the column of each entry, ``(nnz,)``, in any order within a row; duplicates add up. *indptr*: the
        first entry of each row, ``(rows + 1,)``; entries from ``indptr[-1]`` on are padding. Both are int32 or int64.
      shape: (rows, columns); it is never inferred from the indices.
      check: whether to check the values of the indices, which kernels use without bounds checks. None: check them
        unless they are traced; True: raise an error if they are traced; False: do not check them, for trusted indices.

    Raises:
      ArgumentError: if *check* is invalid, or if it is True and indices are traced.
      InputError: if *arrays* are not three arrays.
      ShapeError: if lengths do not fit each other.
      DtypeError: if a dtype is not supported, or the dtype of the indices cannot hold the shape.
      StructureError: if an index is out of range, or *indptr* is not monotone from 0 to at most ``nnz``.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import CSR
      >>> A = CSR((jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 1]), jnp.array([0, 1, 3])), shape=(2, 3))
      >>> print(A, A @ jnp.ones(3))
      CSR(float32[2,3], nnz=3) [1. 5.]
    """

    __slots__ = ()
    _axis = 0
    _names = ("row", "column")
    _scipy = ("csr_array", ("data", "indices", "indptr"))

    @property
    def T(self) -> CSC:
        """The transposed matrix, in compressed columns, which shares the arrays."""
        return CSC._of(**self._transposed())

    def delay_deliver(self, ring: Any, events: Any, delays: Any, t: Any, *, weighted: bool | None = None) -> jax.Array:
        """Add the weights of active rows to a ring buffer, each after its delay; see `csr_delay_deliver`.

        Args:
          ring: sums that arrive in later steps, ``(slots, columns)``; integers, real or complex numbers.
          events: bool, integers or real numbers, ``(rows,)``, or an event array.
          delays: delays in steps, ``(nnz,)``, or ``()`` if all are equal; integers from 1 to ``slots - 1``.
          t: the step, an integer, ``()``.
          weighted: True: an active row adds its weights times the value of its event; None: True for event arrays with
            values.

        Raises:
          ShapeError: if lengths do not fit.
          DtypeError: if a dtype is not supported, or *delays* or *t* are not integers.
          ArgumentError: if a known delay is out of range, or *weighted* contradicts the kind of *events*.
        """
        self._check_single()
        arrays = self.data, *self.structure, delays, t
        return deliver("CSR.delay_deliver", ring, events, *arrays, self.shape, weighted, None)


@jax.tree_util.register_pytree_with_keys_class
class CSC(CompressedMatrix):
    """A matrix in compressed columns: column ``j`` has the entries ``indptr[j]`` to ``indptr[j + 1] - 1``.

    Args:
      arrays: ``(data, indices, indptr)``. *data*: the weights, ``(nnz,)``, or ``(1,)`` where all entries are equal.
        *indices*: the row of each entry, ``(nnz,)``, in any order within a column; duplicates add up. *indptr*: the
        first entry of each column, ``(columns + 1,)``; entries from ``indptr[-1]`` on are padding. Both are int32 or
        int64.
      shape: (rows, columns); it is never inferred from the indices.
      check: check the values of the indices, as for `CSR`.

    Raises:
      ArgumentError: if *check* is invalid, or if it is True and indices are traced.
      InputError: if *arrays* are not three arrays.
      ShapeError: if lengths do not fit each other.
      DtypeError: if a dtype is not supported, or the dtype of the indices cannot hold the shape.
      StructureError: if an index is out of range, or *indptr* is not monotone from 0 to at most ``nnz``.
    """

    __slots__ = ()
    _axis = 1
    _names = ("column", "row")
    _scipy = ("csc_array", ("data", "indices", "indptr"))

    def __getattr__(self, name: str) -> Any:
        if name == "delay_deliver":
            raise AttributeError(
                "CSC has no delay_deliver; convert it once, and give the delays in the order of the rows: "
                "A.tocsr().delay_deliver(...)."
            )
        return self.__getattribute__(name)  # raises Python's own error

    @property
    def T(self) -> CSR:
        """The transposed matrix, in compressed rows, which shares the arrays."""
        return CSR._of(**self._transposed())


@jax.tree_util.register_pytree_with_keys_class
class COO(Coordinates, SparseMatrix):
    """A matrix in coordinates: entry ``k`` is in row ``row[k]``, column ``col[k]``, in any order.

    Use it to build a matrix. Each product converts it to compressed rows, so convert it once, with `tocsr` or `tocsc`,
    before several products.

    Args:
      arrays: ``(data, row, col)``. *data*: the weights, ``(nnz,)``, or ``(1,)`` where all entries are equal. *row* and
        *col*: the row and the column of each entry, ``(nnz,)``, int32 or int64. Entries at the same place add up. An
        entry with the row and the column of *shape*, out of range, is padding.
      shape: (rows, columns); it is never inferred from the indices.
      check: whether to check the values of the indices, which kernels use without bounds checks. None: check them
        unless they are traced; True: raise an error if they are traced; False: do not check them, for trusted indices.

    Raises:
      ArgumentError: if *check* is invalid, or if it is True and indices are traced.
      InputError: if *arrays* are not three arrays.
      ShapeError: if lengths do not fit each other.
      DtypeError: if a dtype is not supported, or the dtype of the indices cannot hold the shape.
      StructureError: if an index is out of range.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import COO
      >>> A = COO((jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 1, 1]), jnp.array([2, 0, 1])), shape=(2, 3))
      >>> print(A, A @ jnp.ones(3))
      COO(float32[2,3], nnz=3) [1. 5.]
    """

    __slots__ = ()

    @property
    def T(self) -> COO:
        """The transposed matrix, which shares the arrays."""
        return self._like(row=self.col, col=self.row, shape=self.shape[::-1])
