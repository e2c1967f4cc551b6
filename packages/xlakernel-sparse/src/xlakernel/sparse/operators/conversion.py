"""Conversion of compressed rows to compressed columns: `csr_transpose` and `csr_to_csc`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel

from .arguments import check_compressed, check_room, check_shape, check_structure, fits
from .backends import register
from .entries import in_order
from .units import joined, split

_Struct = jax.ShapeDtypeStruct

#: Inputs: ``indices, indptr``. Results: both of the transpose, and the permutation. Static keyword: ``shape``.
structure_transpose = XLACustomKernel("csr_transpose", "The operator behind `xlakernel.sparse.csr_transpose`.")
#: The same with ``data`` as the first input and result, and without the permutation.
matrix_transpose = XLACustomKernel("csr_to_csc", "The operator behind `xlakernel.sparse.csr_to_csc`.")
for _op, _generator in ((structure_transpose, "transpose"), (matrix_transpose, "transpose_with_data")):
    register(_op, _generator, without=("warp",))
    _op.def_tags("sparse", "csr", "conversion")


def csr_transpose(
    indices: Any, indptr: Any, *, shape: Any, backend: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Convert the structure of a matrix from compressed rows to compressed columns.

    Args:
      indices: columns of the entries, ``(nnz,)``, int32 or int64, in any order within a row.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      Three arrays of the entries in the order of the columns: ``indices``, their rows, ``(nnz,)``, ascending within
      each column; ``indptr``, the first entry of each column, ``(columns + 1,)``; and ``permutation``, ``(nnz,)``, the
      position of each entry in the order of the rows. Padding follows the entries.

    Raises:
      ShapeError: if *indptr* does not fit *shape*.
      DtypeError: if an array is not of integers.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_transpose
      >>> indices, indptr, permutation = csr_transpose(jnp.array([2, 0, 1]), jnp.array([0, 1, 3]), shape=(2, 3))
      >>> print(indices, indptr, permutation)
      [1 1 0] [0 1 2 3] [1 2 0]
    """
    caller = "csr_transpose"
    shape = check_shape(caller, shape)
    indices, indptr = check_structure(caller, indices, indptr, shape)
    outs = _structs(indices, indptr, shape)
    return tuple(structure_transpose(indices, indptr, outs=outs, backend=backend, shape=shape))  # type: ignore[return-value]


def csr_to_csc(
    data: Any, indices: Any, indptr: Any, *, shape: Any, backend: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Convert a matrix from compressed rows to compressed columns.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; any dtype.
      indices: columns of the entries, ``(nnz,)``, int32 or int64, in any order within a row.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      ``data, indices, indptr`` of the same matrix in compressed columns; rows ascend within each column.

    Raises:
      ShapeError: if lengths do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_to_csc
      >>> data, indices, indptr = csr_to_csc(
      ...     jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 1]), jnp.array([0, 1, 3]), shape=(2, 3)
      ... )
      >>> print(data, indices, indptr)
      [2. 3. 1.] [1 1 0] [0 1 2 3]
    """
    data, unit = split(data)
    data, indices, indptr, shape = check_compressed("csr_to_csc", data, indices, indptr, shape)
    if data.shape != indices.shape:  # one weight for all entries need not be moved
        return joined(data, unit), *csr_transpose(indices, indptr, shape=shape, backend=backend)[:2]
    structs = _structs(indices, indptr, shape)[:2]
    outs = [_Struct(data.shape, data.dtype), *structs]
    data, indices, indptr = matrix_transpose(data, indices, indptr, outs=outs, backend=backend, shape=shape)
    return joined(data, unit), indices, indptr


def _structs(indices: Any, indptr: Any, shape: tuple[int, int]) -> list[Any]:
    return [
        _Struct(indices.shape, indices.dtype),
        _Struct((shape[1] + 1,), indptr.dtype),
        _Struct(indices.shape, indptr.dtype),
    ]


def compress(
    data: jax.Array, line: jax.Array, place: jax.Array, shape: tuple[int, int], *, in_range: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Convert entries in coordinates to compressed lines (rows or columns); entries of a line keep their order.

    Args:
      data: the weights, ``(nnz,)``, or ``(1,)``.
      line: the line of each entry, ``(nnz,)``; out of range for padding.
      place: the place of each entry within its line, ``(nnz,)``; out of range for padding.
      shape: the number of lines, and of places in a line.
      in_range: True if *line* is known to be at least 0, and at most the number of lines, the line of padding.

    Returns:
      The weights, ``indices`` and ``indptr``, with padding after the entries.
    """
    lines, places = shape
    entries = line.shape[0]
    if not in_range:
        line = _brought_into_range(line, lines)  # kernels count without bounds checks
    # The transposition of a matrix with one row, whose columns are the lines, sorts the entries by line. An additional
    # column after the lines contains the padding.
    check_room("the sorting of entries", "numbers of entries", "int64", entries)
    one_row = jnp.array([0, entries], line.dtype if fits(entries, line.dtype) else jnp.int64)
    _, indptr, permutation = csr_transpose(line, one_row, shape=(1, lines + 1))
    indices, indptr = _sorted_structure(place, indptr, permutation, places)
    return data if data.shape == (1,) else in_order(data, permutation), indices, indptr


@jax.jit
def _brought_into_range(line: jax.Array, lines: int) -> jax.Array:
    """Return the lines of the entries, with those out of range replaced by *lines*, the line of padding."""
    return jnp.where((line >= 0) & (line < lines), line, lines)


@functools.partial(jax.jit, static_argnums=3)
def _sorted_structure(
    place: jax.Array, indptr: jax.Array, permutation: jax.Array, places: int
) -> tuple[jax.Array, jax.Array]:
    """Return the index arrays of a compressed matrix; *indptr* is given with a last line, the line of padding."""
    place = place[permutation]
    return jnp.where(place < places, place, 0), indptr[:-1]


@matrix_transpose.def_jvp_rule
def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, outs: Any, shape: Any, **params: Any) -> Any:
    data, indices, indptr = primals
    results = matrix_transpose.primitive.bind(*primals, outs=outs, shape=shape, **params)
    structs = _structs(indices, indptr, shape)
    *_, permutation = structure_transpose.primitive.bind(indices, indptr, outs=structs, shape=shape, **params)
    is_entry = jnp.arange(data.shape[0]) < indptr[-1]
    moved = jnp.where(is_entry, tangents[0][permutation], 0)
    return results, [moved, *(ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results[1:])]
