"""`SparseMatrix`, `CSR`, `CSC` and `COO`: the formats, made of others and converted to each other."""

from __future__ import annotations

import abc
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError

from ..operators.arguments import as_integer, check_shape
from .arithmetic import Arithmetic
from .compressed import Compressed
from .coordinates import Coordinates
from .interchange import coordinates_of_bcoo, coordinates_of_dense, rows_of_bcsr, scipy_matrix
from .random import draw_data, draw_structure, split_key
from .selection import select
from .sharded import ShardedMatrix, shard


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

    def dot(self, other: Any) -> Any:
        """Return the product ``A @ other``; with a number ``A * other``, as SciPy does.

        Args:
          other: a vector, ``(columns,)``, a matrix, ``(columns, k)``, an event array, or a number.
        """
        return self * other if np.ndim(other) == 0 else self @ other

    @property
    @abc.abstractmethod
    def T(self) -> SparseMatrix:
        """The transposed matrix, of the same arrays."""

    def transpose(self, *axes: Any, copy: bool = False) -> SparseMatrix:
        """Return the transposed matrix, of the same arrays: `T`.

        Args:
          *axes: as the methods of JAX and SciPy take them: nothing, None, or 1 and 0, also as a tuple.
          copy: as SciPy takes it; nothing is copied, since nothing can change.

        Raises:
          ArgumentError: if *axes* are others, which would not transpose.
        """
        order = axes[0] if len(axes) == 1 else axes or None
        if order is not None and (not isinstance(order, (tuple, list)) or [as_integer(a) for a in order] != [1, 0]):
            given = ", ".join(map(repr, axes))
            raise ArgumentError(
                f"{type(self).__name__}.transpose: axes are {given}; allowed: none, None, (1, 0), or 1, 0. A matrix "
                "that is not to be transposed is A itself."
            )
        return self.T

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
        return select(self, index)

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
        data, row, col = coordinates_of_dense(f"{cls.__name__}.from_dense", dense, nnz)
        rows, columns = np.shape(dense)
        return cls._of_coordinates((data, row, col), (rows, columns), in_range=True)

    @classmethod
    def from_scipy(cls, matrix: Any) -> Self:
        """Make a matrix of one of SciPy's, sparse array or sparse matrix, in any of its formats.

        Args:
          matrix: SciPy's, ``(rows, columns)``.

        Raises:
          InputError: if it is none.
          ShapeError: if it does not have two dimensions.
          DtypeError: if its dtype is not supported.
        """
        kind, names = cls._scipy
        known = scipy_matrix(f"{cls.__name__}.from_scipy", matrix, kind)
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
        data, row, col = coordinates_of_bcoo(f"{cls.__name__}.from_bcoo", matrix)
        entries = COO((data, row, col), shape=matrix.shape)
        return cls._of_coordinates((entries.data, *entries.structure), entries.shape)

    @classmethod
    def from_bcsr(cls, matrix: Any) -> Self:
        """Make a matrix of a `jax.experimental.sparse.BCSR` without batch and dense dimensions.

        Args:
          matrix: JAX's, ``(rows, columns)``.

        Raises:
          InputError: if it is none.
          ShapeError: if it is no matrix, or has batch or dense dimensions.
        """
        arrays = rows_of_bcsr(f"{cls.__name__}.from_bcsr", matrix)
        rows = CSR(arrays, shape=matrix.shape)
        return cls._of_lines(0, (rows.data, *rows.structure), rows.shape)

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
          DtypeError: if *dtype* is not supported.

        Example:
          >>> import jax
          >>> from xlakernel.sparse import CSR
          >>> print(CSR.random(jax.random.key(0), (1000, 500), per_row=20, weights=0.1))
          CSR(float32[1000,500], nnz=20000, equal weights)
        """
        who = f"{cls.__name__}.random"
        shape = check_shape(who, shape)
        of_places, of_weights = split_key(who, key)
        row, col = draw_structure(who, of_places, shape, density, per_row)
        data = draw_data(who, of_weights, weights, row.shape[0], dtype)
        return cls._of_coordinates((data, row, col), shape, in_range=True)

    def tocsr(self) -> CSR:
        """Return the matrix in compressed rows; those of columns ascend within each, coordinates keep their order."""
        return self if isinstance(self, CSR) else CSR(self._lines(0), shape=self.shape, check=False)

    def tocsc(self) -> CSC:
        """Return the matrix in compressed columns; those of rows ascend within each, coordinates keep their order."""
        return self if isinstance(self, CSC) else CSC(self._lines(1), shape=self.shape, check=False)

    def tocoo(self) -> COO:
        """Return the matrix in coordinates."""
        if isinstance(self, COO):
            return self
        return COO((self.data, *self.coordinates()), shape=self.shape, check=False)

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


class _CompressedMatrix(Compressed, SparseMatrix):
    """A matrix in compressed rows or columns, which can be spread over devices."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def T(self) -> _CompressedMatrix:
        """The transposed matrix, of the same arrays."""

    def shard(self, mesh: Any, axis_name: str) -> ShardedMatrix:
        """Spread the matrix over the devices of a mesh: its rows if it is in compressed rows, else its columns.

        Each device gets as many lines, and room for as many entries as the fullest needs. What `prepare` added is left
        out; the result has a `prepare` of its own. Where the devices belong to several processes, each of them calls
        this with the same matrix, and passes the result to jitted functions as an argument: JAX lets none close over
        it.

        Args:
          mesh: the devices, a ``jax.sharding.Mesh`` as ``jax.make_mesh`` makes.
          axis_name: the mesh axis to spread over.

        Raises:
          InputError: if *mesh* is none.
          ArgumentError: if it has no such axis.
          StructureError: if the matrix or its weights are traced.
        """
        return shard(self, mesh, axis_name)

    def _transposed(self) -> dict[str, Any]:
        """Return the attributes of the transposed matrix."""
        return {"shape": self.shape[::-1], **{name: getattr(self, name) for name in self._leaves}}


@jax.tree_util.register_pytree_with_keys_class
class CSR(_CompressedMatrix):
    """A matrix in compressed rows: row ``i`` has the entries ``indptr[i]`` to ``indptr[i + 1] - 1``.

    Args:
      arrays: ``(data, indices, indptr)``: weights, ``(nnz,)``, or ``(1,)`` where all entries are equal; the column of
        each entry, ``(nnz,)``, in any order within a row, of which duplicates add up; and where each row begins,
        ``(rows + 1,)``. Indices are int32 or int64. Entries from ``indptr[-1]`` on are padding.
      shape: (rows, columns); it is always given, and never guessed from the indices.
      check: whether to check the values of the indices, on which the kernels rely: they read and write where those
        say. None: unless they are traced. False is for indices that you trust.

    Raises:
      InputError: if *arrays* are not three arrays.
      ShapeError: if lengths do not fit each other.
      DtypeError: if a dtype is not supported, or that of the indices has no room for the shape.
      StructureError: if an index is out of range, or *indptr* is not monotone from 0 to at most ``nnz``.
      ArgumentError: if *check* is true and the indices are traced.

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
        """The transposed matrix, in compressed columns, of the same arrays."""
        return object.__new__(CSC)._set(**self._transposed())


@jax.tree_util.register_pytree_with_keys_class
class CSC(_CompressedMatrix):
    """A matrix in compressed columns: column ``j`` has the entries ``indptr[j]`` to ``indptr[j + 1] - 1``.

    Args:
      arrays: ``(data, indices, indptr)``: weights, ``(nnz,)``, or ``(1,)`` where all entries are equal; the row of each
        entry, ``(nnz,)``, in any order within a column, of which duplicates add up; and where each column begins,
        ``(columns + 1,)``. Indices are int32 or int64. Entries from ``indptr[-1]`` on are padding.
      shape: (rows, columns); it is always given, and never guessed from the indices.
      check: whether to check the values of the indices, as for `CSR`.

    Raises:
      InputError: if *arrays* are not three arrays.
      ShapeError: if lengths do not fit each other.
      DtypeError: if a dtype is not supported, or that of the indices has no room for the shape.
      StructureError: if an index is out of range, or *indptr* is not monotone from 0 to at most ``nnz``.
      ArgumentError: if *check* is true and the indices are traced.
    """

    __slots__ = ()
    _axis = 1
    _names = ("column", "row")
    _scipy = ("csc_array", ("data", "indices", "indptr"))

    @property
    def T(self) -> CSR:
        """The transposed matrix, in compressed rows, of the same arrays."""
        return object.__new__(CSR)._set(**self._transposed())


@jax.tree_util.register_pytree_with_keys_class
class COO(Coordinates, SparseMatrix):
    """A matrix in coordinates: entry ``k`` is in row ``row[k]``, column ``col[k]``, in any order.

    It is the format to build a matrix in. `CSR` and `CSC` multiply faster, and products with events cost there what the
    events cost.

    Args:
      arrays: ``(data, row, col)``: weights, ``(nnz,)``, or ``(1,)`` where all entries are equal; the row and the column
        of each entry, ``(nnz,)``, int32 or int64. Entries of one place add up. An entry whose row and column are both
        those of *shape*, out of range, is padding.
      shape: (rows, columns); it is always given, and never guessed from the indices.
      check: whether to check the values of the indices, on which the kernels rely: they read and write where those
        say. None: unless they are traced. False is for indices that you trust.

    Raises:
      InputError: if *arrays* are not three arrays.
      ShapeError: if lengths do not fit each other.
      DtypeError: if a dtype is not supported, or that of the indices has no room for the shape.
      StructureError: if an index is out of range.
      ArgumentError: if *check* is true and the indices are traced.

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
        """The transposed matrix, of the same arrays."""
        return self._like(row=self.col, col=self.row, shape=self.shape[::-1])
