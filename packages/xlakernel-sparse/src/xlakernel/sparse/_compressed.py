"""`CSR` and `CSC`: matrices in compressed rows and in compressed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError

from . import _prepared, _sharded
from ._compact import CompactArray
from ._interchange import host_data
from ._matrix import SparseMatrix
from ._sharded import ShardedMatrix
from ._validation import check_compressed_values, should_check, three_arrays
from .operators.arguments import check_data, check_shape, check_structure
from .operators.compact import compact_csrmv
from .operators.conversion import csr_to_csc, sort_entries
from .operators.entries import in_order, rows_of_entries
from .operators.operand import BINARY, Operand
from .operators.product import PRODUCTS

if TYPE_CHECKING:
    from ._coo import COO


class Compressed(SparseMatrix):
    """A matrix stored line by line; the base of `CSR` and `CSC`."""

    __slots__ = ("indices", "indptr", "prepared")
    _leaves = ("data", "indices", "indptr", "prepared")

    #: The axis that counts the lines.
    _axis: ClassVar[int]
    _lines: ClassVar[tuple[str, str]]  # what the lines are, and what their places are

    indices: jax.Array
    indptr: jax.Array
    prepared: _prepared.Prepared | None

    def __init__(self, arrays: Any, shape: Any = None, *, check: bool | None = None) -> None:
        who = type(self).__name__
        data, indices, indptr = three_arrays(who, arrays, "data, indices, indptr")
        shape = check_shape(who, shape)
        lines = _line_shape(self._axis, shape)
        indices, indptr = check_structure(who, indices, indptr, lines, lines=f"{self._lines[0]}s")
        data = check_data(who, data, indices.shape[0])
        if should_check(who, check, indices, indptr):
            check_compressed_values(who, indices, indptr, lines[1], self._lines)
        self._set(data=data, indices=indices, indptr=indptr, shape=shape, prepared=None)

    @property
    def structure(self) -> tuple[jax.Array, jax.Array]:
        """The index arrays: ``(indices, indptr)``."""
        return self.indices, self.indptr

    @property
    def line_shape(self) -> tuple[int, int]:
        """How many lines there are, and how many places a line has."""
        return _line_shape(self._axis, self.shape)

    def coordinates(self) -> tuple[jax.Array, jax.Array]:
        """Return the row and the column of each entry, ``(nnz,)``; for padding those of *shape*, out of range."""
        self._check_single()
        lines, places = self.line_shape
        line = rows_of_entries(self.indptr, self.nnz)
        place = jnp.where(line < lines, self.indices, places)
        return (line, place) if self._axis == 0 else (place, line)

    def _is_entry(self) -> jax.Array:
        self._check_single()
        return jnp.arange(self.nnz) < self.indptr[-1]

    def with_data(self, data: Any) -> Self:
        """Return the matrix with other weights, and all else as it is, what `prepare` added too.

        Args:
          data: the weights, ``(nnz,)``, or ``(1,)`` where all are to be equal, of any dtype that a matrix may have.

        Raises:
          ShapeError: if it has another length.
          DtypeError: if its dtype is not supported.
        """
        data = self._checked_data(data)
        prepared = None if self.prepared is None else self.prepared.with_data(data)
        return self._like(data=data, prepared=prepared)

    def prepare(self, *, blocks: bool | None = None) -> Self:
        """Return the matrix with what makes its products fast on both sides.

        It adds the entries in the order of the other axis: products with event arrays then cost what the active rows
        *or columns* cost, and dense ones read along the result. That doubles the memory, or adds the indices alone
        where all weights are equal. It may be called inside of ``jax.jit``; call it once, outside of loops.

        The matrix holds its weights twice then. Derivatives are those in *data*, and `with_data` puts new weights in
        both places. A derivative in the matrix as a whole is an error: leaves that are updated one by one would no
        longer agree.

        Args:
          blocks: whether to add two more orders, which the GPU's kernels for dense vectors read fastest: columns are
            16-bit numbers in blocks that fit in shared memory. None: where JAX's default device is a GPU.

        Raises:
          ArgumentError: if *blocks* is none of these.
        """
        if blocks is not None and not isinstance(blocks, bool):
            raise ArgumentError(f"{type(self).__name__}.prepare: blocks is {blocks!r}; allowed: True, False or None.")
        self._check_single()
        blocks = jax.default_backend() == "gpu" if blocks is None else blocks
        prepared = _prepared.prepare(self.data, *self.structure, self.line_shape, blocks=blocks)
        return self._like(prepared=prepared)

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
        return _sharded.shard(self, mesh, axis_name)

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self.prepared is None else f"{text[:-1]}, prepared)"

    # Products, of the matrix whose rows the lines are.

    def _multiply(self, operand: Operand, x: jax.Array, *, transpose: bool, who: str) -> jax.Array:
        across = transpose != (self._axis == 1)
        if self.prepared is not None:
            return _prepared.multiply(self, operand, x, transpose=across, who=who)
        return PRODUCTS[operand](
            who, self.data, *self.structure, x, shape=self.line_shape, transpose=across, backend=None
        )

    def _multiply_compact(self, events: CompactArray, *, transpose: bool, who: str) -> jax.Array:
        if transpose == (self._axis == 1):  # the events are places, and not lines
            return self._multiply(BINARY, events.value, transpose=transpose, who=who)
        return compact_csrmv(self.data, *self.structure, events.indices, events.count, shape=self.line_shape)

    # From and to others.

    @classmethod
    def _convert(cls, matrix: SparseMatrix) -> Self:
        if isinstance(matrix, cls):
            return matrix
        if isinstance(matrix, Compressed):
            matrix._check_single()
            arrays = csr_to_csc(matrix.data, *matrix.structure, shape=matrix.line_shape)
            return cls(arrays, shape=matrix.shape, check=False)
        return cls._of_entries(matrix.tocoo())

    @classmethod
    def _of_entries(cls, entries: COO, *, in_range: bool = False) -> Self:
        line, place = entries.coordinates() if cls._axis == 0 else entries.coordinates()[::-1]
        shape = _line_shape(cls._axis, entries.shape)
        indices, indptr, permutation = sort_entries(line, place, shape, in_range=in_range)
        data = entries.data if entries.homogeneous else in_order(entries.data, permutation)
        return cls((data, indices, indptr), shape=entries.shape, check=False)

    def to_scipy(self) -> Any:
        """Return a sparse array of SciPy's of the same format, on the host and without padding.

        float16 and bfloat16, which SciPy does not know, become float32.
        """
        import scipy.sparse

        self._check_single()
        indices, indptr = (np.array(array) for array in self.structure)  # SciPy sorts in place
        data = host_data(self.data, self.nnz)
        kind = getattr(scipy.sparse, self._scipy[0])
        return kind((data[: indptr[-1]], indices[: indptr[-1]], indptr), shape=self.shape)


def _line_shape(axis: int, shape: tuple[int, int]) -> tuple[int, int]:
    return shape if axis == 0 else shape[::-1]


@jax.tree_util.register_pytree_with_keys_class
class CSR(Compressed):
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
    _lines = ("row", "column")
    _scipy = ("csr_array", ("data", "indices", "indptr"))

    @property
    def T(self) -> CSC:
        """The transposed matrix, in compressed columns, of the same arrays."""
        return object.__new__(CSC)._set(**_attributes(self))


@jax.tree_util.register_pytree_with_keys_class
class CSC(Compressed):
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
    _lines = ("column", "row")
    _scipy = ("csc_array", ("data", "indices", "indptr"))

    @property
    def T(self) -> CSR:
        """The transposed matrix, in compressed rows, of the same arrays."""
        return object.__new__(CSR)._set(**_attributes(self))


def _attributes(matrix: Compressed) -> dict[str, Any]:
    return {"shape": matrix.shape[::-1], **{name: getattr(matrix, name) for name in matrix._leaves}}
