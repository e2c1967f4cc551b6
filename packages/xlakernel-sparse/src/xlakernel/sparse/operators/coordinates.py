"""Products of a matrix in coordinates with vectors and matrices: `coomv`, `coomm`, and those with events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import ShapeError

from .arguments import check_data, check_operand, check_shape, index_array
from .backends import register
from .batching import fold_columns
from .dtypes import accumulator, as_weights
from .operand import BINARY, DENSE, WEIGHTED, Operand


class CoordinateProduct:
    """The products with one kind of operand, as two operators: by a vector, and by the columns of a matrix.

    Their inputs are ``data, row, col, x``, their static keywords ``shape, homogeneous``. The transposed product is that
    of ``data, col, row, x``.

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
        name = f"{self.operand.prefix}coo{suffix}"
        op = XLACustomKernel(name, f"The operator behind `xlakernel.sparse.{name}`.")
        register(op, "coo_product", without=("warp",), operand=self.operand)
        op.def_tags("sparse", "coo", self.operand.name)
        return op

    def of_rank(self, rank: int) -> XLACustomKernel:
        """Return the operator for operands of this rank."""
        return self.vector if rank == 1 else self.columns

    def __call__(
        self,
        who: str,
        data: Any,
        row: Any,
        col: Any,
        x: Any,
        *,
        shape: Any,
        transpose: bool,
        backend: str | None,
        ranks: Sequence[int] = (1, 2),
    ) -> jax.Array:
        """Check the arguments for the function *who*, and multiply."""
        data, row, col, shape = check_coordinates(who, data, row, col, shape)
        into, of, ordered = (col, row, shape[::-1]) if transpose else (row, col, shape)
        x = check_operand(who, self.operand, x, ranks, ordered[1], shape)
        result = self.operand.result_dtype(data, x)
        dtype = accumulator(result)
        y: jax.Array
        (y,) = self.of_rank(x.ndim)(
            as_weights(data, dtype),
            into,
            of,
            x if self.operand is BINARY else x.astype(dtype),
            outs=[jax.ShapeDtypeStruct((ordered[0], *x.shape[1:]), dtype)],
            backend=backend,
            shape=ordered,
            homogeneous=data.shape == (1,),
        )
        return y.astype(result)


def check_coordinates(who: str, data: Any, row: Any, col: Any, shape: Any) -> Any:
    """Return the arrays of a matrix in coordinates, and its shape, as they must be.

    Raises:
      ShapeError, DtypeError: if their lengths, ranks or dtypes do not fit each other.
    """
    shape = check_shape(who, shape)
    row, col = index_array(who, "row", row), index_array(who, "col", col)
    if row.shape != col.shape:
        raise ShapeError(f"{who}: row has {row.shape[0]} elements and col {col.shape[0]}; expected as many.")
    return check_data(who, data, row.shape[0]), row, col, shape


COORDINATE_PRODUCTS = {operand: CoordinateProduct(operand) for operand in (DENSE, BINARY, WEIGHTED)}
