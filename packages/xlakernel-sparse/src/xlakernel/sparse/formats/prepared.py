"""The further orders of the entries that `prepare` adds to a matrix, and the products that read them.

The mirror holds the entries in the order of the other axis. Column blocks hold the entries of the matrix, and of the
mirror, in the order that GPUs read fastest. The weights in these orders are copies: derivatives are taken with respect
to the original weights, through the products of the matrix without further orders.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax

from ..operators.conversion import csr_transpose
from ..operators.dtypes import accumulator
from ..operators.entries import in_order
from ..operators.operand import Operand
from ..operators.products.blocks import make_blocks
from ..operators.products.prepared import PREPARED_PRODUCTS


class Order(NamedTuple):
    """The entries of a compressed matrix in another order.

    Attributes:
      indices: the place of each entry within its line, or within the line's part in a block, ``(nnz,)``.
      indptr: the first entry of each line, or of each line of each block.
      permutation: entry ``k`` is entry ``permutation[k]`` of the matrix, ``(nnz,)``.
      data: the weights, ``(nnz,)``; None where all are equal.
    """

    indices: jax.Array
    indptr: jax.Array
    permutation: jax.Array
    data: jax.Array | None = None

    def with_data(self, data: jax.Array) -> Order:
        """Return the same order of the matrix with these weights."""
        return self._replace(data=None if data.shape == (1,) else in_order(lax.stop_gradient(data), self.permutation))


class Prepared(NamedTuple):
    """The further orders of a prepared matrix.

    Attributes:
      mirror: the entries in the order of the other axis.
      blocks: two orders in column blocks, those of the matrix and of the mirror; None: there are no blocks.
    """

    mirror: Order
    blocks: tuple[Order, Order] | None

    def with_data(self, data: jax.Array) -> Prepared:
        """Return the same orders of the matrix with these weights."""
        blocks = self.blocks and tuple(order.with_data(data) for order in self.blocks)
        return Prepared(self.mirror.with_data(data), blocks)  # type: ignore[arg-type]  # two as before

    def multiply(
        self,
        operand: Operand,
        caller: str,
        *arrays: jax.Array,
        shape: tuple[int, int],
        transpose: bool,
        permuted: bool,
    ) -> jax.Array:
        """Multiply the matrix in compressed rows by an operand; *arrays* are ``data, indices, indptr, operand``.

        If *permuted* is true, the kernels are given the permutations of the orders instead of their weights.
        """
        orders = (self.mirror, *(self.blocks or ()))
        permuted &= self.mirror.data is not None
        weights = [order.permutation if permuted else order.data for order in orders]
        return PREPARED_PRODUCTS[operand](
            caller,
            *arrays,
            shape=shape,
            transpose=transpose,
            backend=None,
            orders=[array for order in orders for array in (order.indices, order.indptr)],
            weights=[given for given in weights if given is not None],
            permuted=permuted,
        )


def prepare(
    data: jax.Array, indices: jax.Array, indptr: jax.Array, shape: tuple[int, int], *, blocks: bool
) -> Prepared:
    """Prepare a matrix in compressed rows."""
    mirror = Order(*csr_transpose(indices, indptr, shape=shape))
    in_blocks = None
    if blocks:
        dtype = accumulator(data.dtype)
        own = Order(*make_blocks(indices, indptr, shape=shape, dtype=dtype))
        mirrored = Order(*make_blocks(mirror.indices, mirror.indptr, shape=shape[::-1], dtype=dtype))
        permutation = in_order(mirror.permutation, mirrored.permutation)
        in_blocks = own, mirrored._replace(permutation=permutation)
    return Prepared(mirror, in_blocks).with_data(data)
