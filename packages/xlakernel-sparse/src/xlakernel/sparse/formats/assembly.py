"""Matrices made from other matrices, from diagonals, or from a file, under SciPy's names.

The structures are computed on the host and must be concrete; the weights may be traced, and are differentiated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import ArgumentError, InputError, ShapeError

from ..operators.arguments import as_array, as_integer, check_room
from ..operators.dtypes import accumulator, check_dtype
from ..operators.units import check_plain, joined, split
from .matrices import COO, CSC, CSR, SparseMatrix
from .rearranged import FORMATS, rearranged
from .symbolic import axis_of, matrix_like, places_of


def hstack(blocks: Sequence[SparseMatrix], format: str | None = None, dtype: Any = None) -> Any:
    """Put matrices side by side, like `scipy.sparse.hstack`.

    Args:
      blocks: matrices with the same number of rows.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of the first one.
      dtype: of the weights; None for the one that holds those of all blocks.

    Raises:
      ArgumentError: if there is no such format.
      ShapeError: if there are none, or the numbers of rows differ.
      InputError: if one is not a matrix of this package.
      StructureError: if a structure is traced.
    """
    return _blocks("hstack", [_listed("hstack", blocks)], format, dtype)


def vstack(blocks: Sequence[SparseMatrix], format: str | None = None, dtype: Any = None) -> Any:
    """Put matrices below each other, like `scipy.sparse.vstack`.

    Args:
      blocks: matrices with the same number of columns.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of the first one.
      dtype: of the weights; None for the one that holds those of all blocks.

    Raises:
      ArgumentError: if there is no such format.
      ShapeError: if there are none, or the numbers of columns differ.
      InputError: if one is not a matrix of this package.
      StructureError: if a structure is traced.
    """
    return _blocks("vstack", [[block] for block in _listed("vstack", blocks)], format, dtype)


def block_array(
    blocks: Sequence[Sequence[SparseMatrix | None]], *, format: str | None = None, dtype: Any = None
) -> Any:
    """Assemble a matrix from a grid of blocks, like `scipy.sparse.block_array`.

    Args:
      blocks: rows of blocks; None is a block of zeros. Each row and each column of the grid has a matrix, and matrices
        of a row have the same number of rows, those of a column the same number of columns.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of the first one.
      dtype: of the weights; None for the one that holds those of all blocks.

    Raises:
      ArgumentError: if there is no such format.
      ShapeError: if the blocks do not fit.
      InputError: if one is not a matrix of this package.
      StructureError: if a structure is traced.
    """
    rows = [_listed("block_array", row) for row in _listed("block_array", blocks)]
    return _blocks("block_array", rows, format, dtype)


def block_diag(mats: Sequence[SparseMatrix], format: str | None = None, dtype: Any = None) -> Any:
    """Put matrices on the diagonal of a larger matrix, like `scipy.sparse.block_diag`.

    Args:
      mats: the matrices, at least one.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of the first one.
      dtype: of the weights; None for the one that holds those of all blocks.

    Raises:
      ArgumentError: if there is no such format.
      ShapeError: if there are none.
      InputError: if one is not a matrix of this package.
      StructureError: if a structure is traced.
    """
    import scipy.sparse

    if not _listed("block_diag", mats):
        raise ShapeError("block_diag: there are no matrices; expected at least one.")
    _check_matrices("block_diag", mats)
    found = rearranged("block_diag", lambda *numbers: scipy.sparse.block_diag(numbers), mats)
    return _finished("block_diag", found, format, dtype)


def tril(A: SparseMatrix, k: int = 0, format: str | None = None) -> Any:
    """Return the lower triangle of a matrix, like `scipy.sparse.tril`.

    Args:
      A: the matrix.
      k: the last diagonal that belongs to the triangle: 0 for the main diagonal, positive for one above it.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of *A*.

    Raises:
      ArgumentError: if *k* is not an integer.
      InputError: if *A* is not a matrix of this package.
      StructureError: if the structure is traced.
    """
    return _triangle("tril", A, k, format)


def triu(A: SparseMatrix, k: int = 0, format: str | None = None) -> Any:
    """Return the upper triangle of a matrix, like `scipy.sparse.triu`.

    Args:
      A: the matrix.
      k: the first diagonal that belongs to the triangle: 0 for the main diagonal, positive for one above it.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of *A*.

    Raises:
      ArgumentError: if *k* is not an integer.
      InputError: if *A* is not a matrix of this package.
      StructureError: if the structure is traced.
    """
    return _triangle("triu", A, k, format)


def kron(A: SparseMatrix, B: SparseMatrix, format: str | None = None) -> Any:
    """Return the Kronecker product of two matrices, like `scipy.sparse.kron`.

    Args:
      A: the first matrix, ``(m, n)``.
      B: the second matrix, ``(p, q)``.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for that of *A*.

    Returns:
      The matrix of the blocks ``A[i, j] * B``, ``(m p, n q)``.

    Raises:
      ArgumentError: if there is no such format.
      InputError: if one is not a matrix of this package.
      DtypeError: if the index arrays of *A* have a dtype that is too narrow.
      StructureError: if a structure is traced.
    """
    import scipy.sparse

    _check_matrices("kron", [A, B])
    extents = [m * n for m, n in zip(A.shape, B.shape, strict=True)]
    check_room("kron", "rows, columns and entries", A.structure[0].dtype, max(*extents, A.nnz * B.nnz))
    of_a, of_b = places_of("kron", A, 0), places_of("kron", B, 0)
    numbers = of_a.numbers(A.shape), of_b.numbers(B.shape)
    ones = [_with_ones(array) for array in numbers]
    axis = axis_of(A)
    products = [scipy.sparse.kron(*pair, format="coo") for pair in ((numbers[0], ones[1]), (ones[0], numbers[1]))]
    first, second = (product.tocsr() if axis == 0 else product.tocsc() for product in products)
    for product in (first, second):
        product.sort_indices()
    (A, unit_of_a), (B, unit_of_b) = split(A), split(B)
    dtype = jnp.result_type(A.dtype, B.dtype)
    wide = accumulator(dtype)
    data = of_a.weights(A).astype(wide)[_entries(first)] * of_b.weights(B).astype(wide)[_entries(second)]
    product = matrix_like(A, axis, data.astype(dtype), first.indices, first.indptr, first.shape)
    return _finished("kron", joined(product, unit_of_a, unit_of_b), format)


def eye_array(m: int, n: int | None = None, *, k: int = 0, dtype: Any = float, format: str | None = None) -> Any:
    """Return a matrix with ones on a diagonal, like `scipy.sparse.eye_array`; all entries share one weight.

    Args:
      m: the number of rows.
      n: the number of columns; None: *m*.
      k: the diagonal: 0 for the main diagonal, positive for those above it, negative for those below.
      dtype: of the weights.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for ``"csr"``.

    Raises:
      ArgumentError: if *m*, *n* or *k* is not an integer, an extent is negative, or there is no such diagonal.
      DtypeError: if the dtype is not supported.
    """
    import scipy.sparse

    offset = _offset("eye_array", k)
    rows, columns = as_integer(m), as_integer(m if n is None else n)
    if rows is None or columns is None or min(rows, columns) < 0:
        raise ArgumentError(f"eye_array: m is {m!r}, and n is {n!r}; expected numbers of at least 0, or None for n.")
    if offset and not -rows < offset < columns:
        raise ArgumentError(
            f"eye_array: k is {k!r}; expected the number of a diagonal, from {1 - rows} to {columns - 1}."
        )
    known = scipy.sparse.eye_array(rows, columns, k=offset, format="csr")
    return _finished("eye_array", CSR((jnp.ones(1, dtype), known.indices, known.indptr), known.shape), format)


def diags_array(
    diagonals: Any,
    *,
    offsets: Any = 0,
    shape: tuple[int, int] | None = None,
    format: str | None = None,
    dtype: Any = None,
) -> Any:
    """Return a matrix with these diagonals, like `scipy.sparse.diags_array`.

    Args:
      diagonals: vectors, ``(length,)``, one for each offset, or one vector for a single offset; of any dtype that a
        matrix may have. A vector of length 1 is repeated where *shape* is given.
      offsets: the number of each diagonal: 0 for the main diagonal, positive for those above it, negative for those
        below.
      shape: rows and columns; None: the smallest square matrix that holds the diagonals.
      format: ``"csr"``, ``"csc"`` or ``"coo"``; None for ``"csr"``.
      dtype: of the weights; None for the one that holds those of all diagonals.

    Raises:
      ShapeError: if there are none, one does not fit, or two have the same offset.
      ArgumentError: if *offsets* are not integers, or not as many as *diagonals*.
      InputError: if a diagonal cannot be converted to an array.
      DtypeError: if the dtype is not supported.
    """
    import scipy.sparse

    check_plain("diags_array", "diagonals", diagonals)
    if not len(diagonals):
        raise ShapeError("diags_array: there are no diagonals; expected at least one.")
    chosen = [offsets] if np.ndim(offsets) == 0 else list(offsets)
    if np.ndim(offsets) == 0 and np.ndim(diagonals[0] if isinstance(diagonals, (list, tuple)) else diagonals) < 2:
        is_one = not isinstance(diagonals, (list, tuple)) or np.ndim(diagonals[0]) == 0
        diagonals = [diagonals] if is_one else diagonals
    vectors = [jnp.atleast_1d(as_array("diags_array", "diagonals", diagonal)) for diagonal in diagonals]
    for vector in vectors:
        check_dtype("diags_array", "a diagonal", vector.dtype)
    if len(vectors) != len(chosen):
        raise ArgumentError(f"diags_array: there are {len(vectors)} diagonals and {len(chosen)} offsets.")
    chosen = [_offset("diags_array", k) for k in chosen]
    numbers, before = [], 1
    for vector in vectors:
        numbers.append(np.arange(before, before + vector.size))
        before += vector.size
    try:
        known = scipy.sparse.diags_array(numbers, offsets=chosen, shape=shape, dtype=np.int64).tocsr()
    except ValueError as error:
        raise ShapeError(f"diags_array: {error}.") from None
    known.sort_indices()
    data = jnp.concatenate(vectors)[_entries(known)]
    return _finished("diags_array", CSR((data, known.indices, known.indptr), known.shape), format, dtype)


def save_npz(file: Any, matrix: SparseMatrix) -> None:
    """Write a matrix to a file that `load_npz` and `scipy.sparse.load_npz` read.

    Equal weights are written one for each entry, padding is left out, and half precision becomes float32. `pickle`
    keeps these.

    Args:
      file: a path, or a file that is open for writing.
      matrix: the matrix.

    Raises:
      InputError: if it is not a matrix of this package.
      StructureError: if it is traced.
    """
    import scipy.sparse

    _check_matrices("save_npz", [matrix])
    scipy.sparse.save_npz(file, matrix.to_scipy())


def load_npz(file: Any) -> CSR | CSC | COO:
    """Read a matrix from a file of `save_npz` or `scipy.sparse.save_npz`.

    Args:
      file: a path, or a file that is open for reading.

    Returns:
      The matrix in the format of the file; one in another format than rows, columns or coordinates becomes a `CSR`.
    """
    import scipy.sparse

    known = scipy.sparse.load_npz(file)
    kinds: dict[str, type[CSC | COO]] = {"csc": CSC, "coo": COO}
    return kinds.get(known.format, CSR).from_scipy(known)


def _triangle(function: str, A: SparseMatrix, k: int, format: str | None) -> Any:
    import scipy.sparse

    _check_matrices(function, [A])
    offset, triangle = _offset(function, k), getattr(scipy.sparse, function)
    return _finished(function, rearranged(function, lambda numbers: triangle(numbers, offset), [A]), format)


def _listed(caller: str, blocks: Any) -> list[Any]:
    if not isinstance(blocks, (list, tuple)):
        raise InputError(f"{caller}: got {type(blocks).__name__}; expected a list or a tuple of matrices, or of rows.")
    return list(blocks)


def _blocks(caller: str, grid: list[list[Any]], format: str | None, dtype: Any) -> Any:
    """Return the matrix of a grid of blocks, where None is a block of zeros."""
    import scipy.sparse

    present = [block for row in grid for block in row if block is not None]
    if not present:
        raise ShapeError(f"{caller}: there are no matrices; expected at least one.")
    for lines in (grid, itertools.zip_longest(*grid)):
        if any(all(block is None for block in line) for line in lines):
            raise ShapeError(f"{caller}: a row or a column has no matrices; expected at least one in each.")
    _check_matrices(caller, present)

    def assemble(*numbers: Any) -> Any:
        left = iter(numbers)
        try:
            return scipy.sparse.block_array([[None if block is None else next(left) for block in row] for row in grid])
        except ValueError as error:
            shapes = [[getattr(block, "shape", None) for block in row] for row in grid]
            raise ShapeError(f"{caller}: the blocks have the shapes {shapes}: {error}.") from None

    return _finished(caller, rearranged(caller, assemble, present), format, dtype)


def _finished(caller: str, matrix: Any, format: str | None, dtype: Any = None) -> Any:
    """Return a matrix in the format and of the dtype that the caller asked for."""
    if format is not None and format not in FORMATS:
        raise ArgumentError(f"{caller}: format is {format!r}; allowed: {FORMATS} or None.")
    return (matrix if dtype is None else matrix.astype(dtype)).asformat(format)


def _check_matrices(caller: str, matrices: Sequence[Any]) -> None:
    for matrix in matrices:
        if not isinstance(matrix, SparseMatrix):
            raise InputError(
                f"{caller}: got {type(matrix).__name__}; expected a matrix of xlakernel.sparse. Convert others with "
                "CSR.from_scipy or CSR.from_dense."
            )


def _entries(numbers: Any) -> np.ndarray:
    """Return the numbers of a sparse array, from 0 on; those of an empty one may be floats."""
    entries: np.ndarray = numbers.data.astype(np.int64) - 1
    return entries


def _with_ones(numbers: Any) -> Any:
    return type(numbers)((np.ones_like(numbers.data), numbers.indices, numbers.indptr), shape=numbers.shape)


def _offset(caller: str, k: Any) -> int:
    offset = as_integer(k)
    if offset is None:
        raise ArgumentError(f"{caller}: the diagonal is {k!r}; expected an integer.")
    return offset
