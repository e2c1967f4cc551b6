"""What matrices are multiplied and added by, entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xlakernel.core.errors import InputError, ShapeError, StructureError

from .operators.arguments import as_array

if TYPE_CHECKING:
    from ._matrix import SparseMatrix

_UNION = (
    " Matrices of different structures are added outside of jit, by SciPy: CSR.from_scipy(A.to_scipy() + B.to_scipy())."
)


def _is_sparse(value: Any) -> bool:
    return hasattr(value, "coordinates")  # its class, the base of all formats, is made of this module


def known_weights(matrix: SparseMatrix) -> jax.Array:
    """Return the weights, of padding 0.

    Padding's own may be anything, and no result shows them; but times a cotangent of 0, NaN is NaN, which reaches the
    derivative in what all weights are multiplied by.
    """
    if matrix.homogeneous or not jnp.issubdtype(matrix.dtype, jnp.inexact):
        return matrix.data
    return jnp.where(matrix._is_entry(), matrix.data, 0)


def factor_of(matrix: SparseMatrix, sign: str, other: Any) -> Any:
    """Return what *other*, a number or a dense array, has at the entries.

    Raises:
      InputError: if it is a sparse matrix.
      ShapeError: if it does not broadcast to the matrix's shape.
    """
    who = f"{type(matrix).__name__} {sign} x"
    if _is_sparse(other):
        raise InputError(
            f"{who}: both are sparse. For matrices of one structure write "
            f"A.with_data(A.data {sign} B.data); for a matrix product write A @ x."
        )
    other = as_array(who, "x", other)
    if other.size == 1 and other.ndim <= 2:
        return other.reshape(1) if other.ndim else other
    try:
        fits = np.broadcast_shapes(other.shape, matrix.shape) == matrix.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{who}: x has the shape {other.shape}, which does not broadcast to {matrix.shape}.")
    if not other.size:  # of an empty array JAX gathers nothing, not even padding
        return jnp.ones(matrix.nnz, other.dtype)
    row, column = matrix.coordinates()
    other = other.reshape((1,) * (2 - other.ndim) + other.shape)
    row = row if other.shape[0] > 1 else jnp.zeros_like(row)
    column = column if other.shape[1] > 1 else jnp.zeros_like(column)
    return other.at[row, column].get(mode="fill", fill_value=1)


def with_same_structure(matrix: SparseMatrix, sign: str, other: Any) -> Any:
    """Return *other*, a matrix of the same structure.

    Raises:
      InputError: if it is no sparse matrix.
      StructureError: if it has another structure, or that cannot be seen.
    """
    who = f"{type(matrix).__name__} {sign} x"
    if not _is_sparse(other):
        raise InputError(
            f"{who}: x is {type(other).__name__}; expected a sparse matrix. To add to each entry write "
            "A.with_data(A.data + x); for a dense result A.todense() + x."
        )
    if type(other) is not type(matrix) or other.shape != matrix.shape or other.nnz != matrix.nnz:
        raise StructureError(f"{who}: A is {matrix!r} and x is {other!r}; expected two of one structure.{_UNION}")
    for mine, others in zip(matrix.structure, other.structure, strict=True):
        if mine is others:
            continue
        if isinstance(mine, jax.core.Tracer) or isinstance(others, jax.core.Tracer):
            raise StructureError(
                f"{who}: whether both have one structure cannot be seen while tracing. If they have, write "
                f"A.with_data(A.data {sign} B.data)."
            )
        if not np.array_equal(mine, others):
            raise StructureError(f"{who}: the entries of both are at other places.{_UNION}")
    return other
