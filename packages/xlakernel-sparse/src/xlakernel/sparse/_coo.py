"""`COO`: matrices in coordinates."""

from __future__ import annotations

from typing import Any, NoReturn, Self

import jax
import numpy as np

from xlakernel.core.errors import StructureError

from ._compact import CompactArray
from ._interchange import host_data
from ._matrix import SparseMatrix
from ._validation import check_coordinate_values, should_check, three_arrays
from .operators.coordinates import COORDINATE_PRODUCTS, check_coordinates
from .operators.operand import BINARY, Operand


@jax.tree_util.register_pytree_with_keys_class
class COO(SparseMatrix):
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

    __slots__ = ("col", "row")
    _leaves = ("data", "row", "col")
    _scipy = ("coo_array", ("data", "row", "col"))
    row: jax.Array
    col: jax.Array

    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None:
        who = type(self).__name__
        data, row, col, shape = check_coordinates(who, *three_arrays(who, arrays, "data, row, col"), shape)
        if should_check(who, check, row, col):
            check_coordinate_values(who, row, col, shape)
        self._set(data=data, row=row, col=col, shape=shape)

    @property
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays: ``(row, col)``."""
        return self.row, self.col

    @property
    def T(self) -> COO:
        """The transposed matrix, of the same arrays."""
        return object.__new__(COO)._set(data=self.data, row=self.col, col=self.row, shape=self.shape[::-1])

    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; for padding those of *shape*, out of range."""
        self._check_single()
        return self.structure

    def _is_entry(self) -> jax.Array:
        self._check_single()
        return self.row < self.shape[0]

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights, and all else as it is.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have.

        Raises:
          ShapeError: if it has another length.
          DtypeError: if its dtype is not supported.
        """
        return self._like(data=self._checked_data(data))

    def prepare(self, *, blocks: bool | None = None) -> NoReturn:
        """Raise an error: `CSR` and `CSC` can be prepared, coordinates cannot.

        Their entries would be in another order then, and `data` with them. ``A.tocsr().prepare()`` is such a matrix.

        Args:
          blocks: as for `CSR.prepare`.

        Raises:
          StructureError: always.
        """
        raise StructureError(
            "COO.prepare: coordinates have no prepared form; CSR and CSC have. Convert the matrix first: "
            "A.tocsr().prepare(), of which data is in the order of the rows, or A.tocsc().prepare()."
        )

    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, who: str) -> jax.Array:
        product = COORDINATE_PRODUCTS[operand]
        return product(who, self.data, *self.structure, x, shape=self.shape, transpose=transpose, backend=None)

    def _multiply_compact(self, events: CompactArray, *, transpose: bool, who: str) -> jax.Array:
        return self._multiply(BINARY, events.value, transpose=transpose, who=who)

    # From and to others.

    @classmethod
    def _convert(cls, matrix: SparseMatrix) -> Self:
        if isinstance(matrix, cls):
            return matrix
        return cls((matrix.data, *matrix.coordinates()), shape=matrix.shape, check=False)

    @classmethod
    def _of_entries(cls, entries: COO, *, in_range: bool = False) -> COO:
        return entries

    def to_scipy(self) -> Any:
        """Return a sparse array of SciPy's of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not know, become float32.
        """
        import scipy.sparse

        row, col = (np.asarray(array) for array in self.coordinates())
        is_entry = row < self.shape[0]
        data = host_data(self.data, self.nnz)[is_entry]
        return scipy.sparse.coo_array((data, (row[is_entry], col[is_entry])), shape=self.shape)
