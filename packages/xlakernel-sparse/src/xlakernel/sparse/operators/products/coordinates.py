"""Products of a matrix in coordinates with vectors and matrices: `coomv`, `coomm`, and those with events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from xlakernel.core import XLACustomKernel
from xlakernel.core.errors import ShapeError

from .. import cases
from ..arguments import check_data, check_operand, check_room, check_shape, index_array
from ..backends import register
from ..operand import BINARY, DENSE, WEIGHTED
from .pair import ProductPair


class CoordinateProduct(ProductPair):
    """The products of a matrix in coordinates with one kind of operand.

    Their inputs are ``data, row, col, x``, their static keywords ``shape, homogeneous``. The transposed product is that
    of ``data, col, row, x``.
    """

    def _operator(self, suffix: str) -> XLACustomKernel:
        name = f"{self.operand.prefix}coo{suffix}"
        op = XLACustomKernel(name, f"The operator behind `xlakernel.sparse.{name}`.")
        register(op, "coo_product", without=("warp",), operand=self.operand)
        op.def_tags("sparse", "coo", self.operand.name)
        return op

    def _product(
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
        return self._multiply(data, (into, of), x, ordered[0], backend=backend, shape=ordered)


def check_coordinates(who: str, data: Any, row: Any, col: Any, shape: Any) -> Any:
    """Return the arrays of a matrix in coordinates, and its shape, as they must be.

    Raises:
      ShapeError, DtypeError: if their lengths, ranks or dtypes do not fit each other, or the shape.
    """
    shape = check_shape(who, shape)
    row, col = index_array(who, "row", row), index_array(who, "col", col)
    if row.shape != col.shape:
        raise ShapeError(f"{who}: row has {row.shape[0]} elements and col {col.shape[0]}; expected as many.")
    for array in (row, col):  # padding is in the row and the column behind the last, and the transpose swaps both
        check_room(who, "rows and columns", array.dtype, max(shape))
    return check_data(who, data, row.shape[0]), row, col, shape


COORDINATE_PRODUCTS = {operand: CoordinateProduct(operand) for operand in (DENSE, BINARY, WEIGHTED)}
for _pair in COORDINATE_PRODUCTS.values():
    cases.def_cases(_pair, _pair, cases.coordinates)
