"""Lines of a matrix as dense vectors: rows by their numbers, `csr_slice_rows`, and diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import DtypeError, ShapeError

from .arguments import as_array, check_compressed
from .backends import register
from .dtypes import accumulator, as_weights
from .places import coordinates_of_rows
from .units import joined, split

_Struct = jax.ShapeDtypeStruct

#: Inputs ``data, indices, indptr, rows``; static keywords ``shape, homogeneous``. Result: ``(rows.size, columns)``.
sliced_rows = XLACustomKernel("csr_slice_rows", "The operator behind `xlakernel.sparse.csr_slice_rows`.")
#: Inputs ``indices, indptr, rows, dense``; static keyword ``shape``. Result: the cotangent of the weights, ``(nnz,)``.
gathered_rows = XLACustomKernel("csr_gather_rows", "The transpose of `csr_slice_rows` for the weights.")
#: Inputs ``data, indices, indptr``; static keywords ``offset, homogeneous``. Result: the elements of a diagonal.
matrix_diagonal = XLACustomKernel("csr_diagonal", "A diagonal of a matrix in compressed rows.")
for _op, _generator in ((sliced_rows, "slice_rows"), (gathered_rows, "gather_rows"), (matrix_diagonal, "diagonal")):
    register(_op, _generator, plain=("warp",))
    _op.def_tags("sparse", "csr", "lines")


def csr_slice_rows(
    data: Any, indices: Any, indptr: Any, rows: Any, *, shape: Any, backend: str | None = None
) -> jax.Array:
    """Return rows of a matrix in compressed rows as a dense matrix; only their entries are read.

    Args:
      data: weights, ``(nnz,)``, or ``(1,)`` if all are equal; integers, real or complex numbers.
      indices: columns of the entries, ``(nnz,)``, int32 or int64; see `csrmv`.
      indptr: the first entry of each row, ``(rows + 1,)``, int32 or int64.
      rows: the numbers of the rows, ``(k,)``, integers, in any order, with or without repetitions; a number out of
        range gives zeros.
      shape: the matrix's shape, (rows, columns).
      backend: the backend; None: that of the `use_backend` context, or else the default.

    Returns:
      The rows, ``(k, columns)``, of the dtype of *data*.

    Raises:
      InputError: if an argument is not an array.
      ShapeError: if lengths or ranks do not fit.
      DtypeError: if a dtype is not supported.

    Example:
      >>> import jax.numpy as jnp
      >>> from xlakernel.sparse import csr_slice_rows
      >>> indptr, indices, data = jnp.array([0, 1, 3]), jnp.array([2, 0, 1]), jnp.array([1.0, 2.0, 3.0])
      >>> print(csr_slice_rows(data, indices, indptr, jnp.array([1]), shape=(2, 3)))
      [[2. 3. 0.]]
    """
    caller = "csr_slice_rows"
    data, unit = split(data)
    data, indices, indptr, shape = check_compressed(caller, data, indices, indptr, shape)
    rows = as_array(caller, "rows", rows)
    if rows.ndim != 1:
        raise ShapeError(f"{caller}: rows has the shape {rows.shape}; expected one dimension.")
    if rows.dtype.kind not in "iu":
        raise DtypeError(f"{caller}: rows is of dtype {rows.dtype}; expected integers.")
    rows = rows.astype(jnp.int32) if rows.dtype.itemsize < 4 else rows
    dtype = accumulator(data.dtype)
    dense: jax.Array
    (dense,) = sliced_rows(
        as_weights(data, dtype),
        indices,
        indptr,
        rows,
        outs=[_Struct((rows.shape[0], shape[1]), dtype)],
        backend=backend,
        shape=shape,
        homogeneous=data.shape == (1,),
    )
    rows_of: jax.Array = joined(dense.astype(data.dtype), unit)
    return rows_of


def diagonal_of(
    data: jax.Array, indices: jax.Array, indptr: jax.Array, offset: int, shape: tuple[int, int]
) -> jax.Array:
    """Return the elements with ``column - row == offset`` of a checked matrix in compressed rows."""
    rows, columns = shape
    length = max(min(rows - max(-offset, 0), columns - max(offset, 0)), 0)
    dtype = accumulator(data.dtype)
    elements: jax.Array
    (elements,) = matrix_diagonal(
        as_weights(data, dtype),
        indices,
        indptr,
        outs=[_Struct((length,), dtype)],
        offset=offset,
        homogeneous=data.shape == (1,),
    )
    return elements.astype(data.dtype)


@sliced_rows.def_batching_rule
def _fold_rows(ins: Sequence[Any], axes: Sequence[int | None], *, outs: Any, dispatch: Any, **static: Any) -> Any:
    """Slice the rows of all elements of a batch at once, if only their numbers are batched."""
    *matrix, rows = ins
    if axes[-1] is None or any(axis is not None for axis in axes[:-1]):
        size = next(x.shape[axis] for x, axis in zip(ins, axes, strict=True) if axis is not None)
        return sliced_rows.primitive.bind(*ins, outs=outs, dispatch=dispatch.batched(axes, size), **static), [0]
    (out,) = outs
    rows = jnp.moveaxis(rows, axes[-1], 0)
    folded = _Struct((rows.size, out.shape[1]), out.dtype)
    (dense,) = sliced_rows.primitive.bind(*matrix, rows.reshape(-1), outs=[folded], dispatch=dispatch, **static)
    return [dense.reshape(rows.shape[0], *out.shape)], [0]


def _linear_in_weights(op: XLACustomKernel) -> None:
    """Define the derivative of an operator that is linear in its first input and has no other derivatives."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        return tuple(op.primitive.bind(data, *primals[1:], **params) for data in (primals[0], tangents[0]))

    op.def_jvp_rule(jvp)


_linear_in_weights(sliced_rows)
_linear_in_weights(matrix_diagonal)


@gathered_rows.def_jvp_rule
def _gathered_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    return tuple(gathered_rows.primitive.bind(*primals[:3], dense, **params) for dense in (primals[3], tangents[3]))


def _of_weights(entries: jax.Array, data: Any, homogeneous: bool) -> jax.Array:
    """Return the cotangent of the weights, given that of each entry's weight."""
    found = jnp.sum(entries).reshape(1) if homogeneous else entries
    return found.astype(data.aval.dtype)


@sliced_rows.def_transpose_rule
def _sliced_transpose(
    cotangents: Sequence[Any],
    data: Any,
    indices: Any,
    indptr: Any,
    rows: Any,
    *,
    outs: Any,
    dispatch: Any,
    shape: Any,
    homogeneous: bool,
) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None] * 4
    outs = [_Struct(indices.shape, cotangent.dtype)]
    (entries,) = gathered_rows.primitive.bind(
        indices, indptr, rows, cotangent, outs=outs, dispatch=dispatch, shape=shape
    )
    return [_of_weights(entries, data, homogeneous), None, None, None]


@gathered_rows.def_transpose_rule
def _gathered_transpose(
    cotangents: Sequence[Any],
    indices: Any,
    indptr: Any,
    rows: Any,
    dense: Any,
    *,
    outs: Any,
    dispatch: Any,
    shape: Any,
) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None] * 4
    outs = [_Struct(dense.aval.shape, cotangent.dtype)]
    static = {"dispatch": dispatch, "shape": shape, "homogeneous": False}
    return [None, None, None, *sliced_rows.primitive.bind(cotangent, indices, indptr, rows, outs=outs, **static)]


@matrix_diagonal.def_transpose_rule
def _diagonal_transpose(
    cotangents: Sequence[Any],
    data: Any,
    indices: Any,
    indptr: Any,
    *,
    outs: Any,
    dispatch: Any,
    offset: int,
    homogeneous: bool,
) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero) or not cotangent.shape[0]:
        return [None] * 3
    rows = indptr.shape[0] - 1
    row, column = coordinates_of_rows(indices, indptr, (rows, rows + abs(offset)))
    place = jnp.where(column - row == offset, row - max(0, -offset), cotangent.shape[0])
    place = jnp.where(row < rows, place, cotangent.shape[0])
    entries = cotangent.at[place].get(mode="fill", fill_value=0)
    return [_of_weights(entries, data, homogeneous), None, None]
