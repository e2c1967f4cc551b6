"""Products of a matrix in compressed rows with vectors and matrices: `csrmv`, `csrmm`, and those with events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from xlakernel.core import XLACustomKernel

from .arguments import check_compressed, check_operand
from .backends import register
from .batching import fold_columns
from .dtypes import accumulator, as_weights
from .operand import BINARY, DENSE, WEIGHTED, Operand


class CompressedProduct:
    """The products with one kind of operand, as two operators: by a vector, and by the columns of a matrix.

    Their inputs are ``data, indices, indptr, x``, their static keywords ``shape, transpose, homogeneous``.

    Attributes:
      operand: the kind of operand.
      vector: the operator for vectors.
      columns: the operator for matrices.
    """

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self.vector, self.columns = self._operator("mv"), self._operator("mm")
        self.vector.def_batching_rule(fold_columns(self.vector, self.columns))
        self.columns.def_batching_rule(fold_columns(self.columns, self.columns))

    def _operator(self, suffix: str) -> XLACustomKernel:
        name = f"{self.operand.prefix}csr{suffix}"
        op = XLACustomKernel(name, f"The operator behind `xlakernel.sparse.{name}`.")
        register(op, "product", without=() if suffix == "mv" else ("warp",), operand=self.operand)
        op.def_tags("sparse", "csr", self.operand.name)
        return op

    def of_rank(self, rank: int) -> XLACustomKernel:
        """Return the operator for operands of this rank."""
        return self.vector if rank == 1 else self.columns

    def __call__(
        self,
        who: str,
        data: Any,
        indices: Any,
        indptr: Any,
        x: Any,
        *,
        shape: Any,
        transpose: bool,
        backend: str | None,
        ranks: Sequence[int] = (1, 2),
        orders: Sequence[Any] = (),
        weights: Sequence[Any] = (),
    ) -> jax.Array:
        """Check the arguments for the function *who*, and multiply; *orders* and *weights* are of `PreparedProduct`."""
        data, indices, indptr, shape = check_compressed(who, data, indices, indptr, shape)
        rows, length = (shape[1], shape[0]) if transpose else shape
        x = check_operand(who, self.operand, x, ranks, length, shape)
        result = self.operand.result_dtype(data, x)
        dtype = accumulator(result)
        y: jax.Array
        (y,) = self.of_rank(x.ndim)(
            as_weights(data, dtype),
            indices,
            indptr,
            *orders,
            *(as_weights(again, dtype) for again in weights),
            x if self.operand is BINARY else x.astype(dtype),
            outs=[jax.ShapeDtypeStruct((rows, *x.shape[1:]), dtype)],
            backend=backend,
            shape=shape,
            transpose=bool(transpose),
            homogeneous=data.shape == (1,),
        )
        return y.astype(result)


PRODUCTS = {operand: CompressedProduct(operand) for operand in (DENSE, BINARY, WEIGHTED)}
