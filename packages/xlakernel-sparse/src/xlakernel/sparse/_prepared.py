"""What `prepare` adds to a matrix, and the products that read it.

The mirror holds the entries in the order of the other axis. The mirrored weights are a copy: derivatives go to the
weights themselves, through the products of the matrix without a mirror.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax import lax

from .operators.conversion import csr_transpose
from .operators.operand import Operand
from .operators.prepared import PREPARED_PRODUCTS

if TYPE_CHECKING:
    from ._compressed import Compressed


class Prepared(NamedTuple):
    """The mirror of a compressed matrix.

    Attributes:
      data: the weights in the mirror's order, ``(nnz,)``; None where all are equal.
      indices: the line of each entry of the mirror, ``(nnz,)``.
      indptr: where each line of the mirror begins, ``(places + 1,)``.
      permutation: entry ``k`` of the mirror is entry ``permutation[k]`` of the matrix, ``(nnz,)``.
    """

    data: jax.Array | None
    indices: jax.Array
    indptr: jax.Array
    permutation: jax.Array

    def with_data(self, data: jax.Array) -> Prepared:
        """Return the mirror of the matrix with these weights."""
        mirrored = None if data.shape == (1,) else lax.stop_gradient(data)[self.permutation]
        return self._replace(data=mirrored)


def prepare(data: jax.Array, indices: jax.Array, indptr: jax.Array, shape: tuple[int, int]) -> Prepared:
    """Make the mirror of a matrix in compressed rows."""
    return Prepared(None, *csr_transpose(indices, indptr, shape=shape)).with_data(data)


def multiply(matrix: Compressed, operand: Operand, x: Any, *, transpose: bool, who: str) -> jax.Array:
    """Multiply a prepared matrix, taken as one in compressed rows, by *x* of rank 1 or 2."""
    assert matrix.prepared is not None
    mirrored, indices, indptr, _ = matrix.prepared
    mirror = (indices, indptr) if mirrored is None else (indices, indptr, mirrored)
    product = PREPARED_PRODUCTS[operand]
    return product(
        *(who, matrix.data, *matrix.structure, x),
        shape=matrix.line_shape,
        transpose=transpose,
        backend=None,
        mirror=mirror,
    )
