"""Products of a matrix in compressed rows with vectors and matrices: `csrmv`, `csrmm`, and those with events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from xlakernel.core import XLACustomKernel

from ..arguments import check_compressed, check_operand
from ..backends import register
from ..cases import compressed, def_cases
from ..operand import BINARY, DENSE, WEIGHTED
from .pair import ProductPair


class CompressedProduct(ProductPair):
    """The products of a matrix in compressed rows with one kind of operand.

    Their inputs are ``data, indices, indptr, x``, their static keywords ``shape, transpose, homogeneous``.
    """

    def _operator(self, suffix: str) -> XLACustomKernel:
        name = f"{self.operand.prefix}csr{suffix}"
        op = XLACustomKernel(name, f"The operator behind `xlakernel.sparse.{name}`.")
        register(op, "product", without=() if suffix == "mv" else ("warp",), operand=self.operand)
        op.def_tags("sparse", "csr", self.operand.name)
        return op

    def _product(
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
        return self._multiply(
            data,
            (indices, indptr, *orders),
            x,
            rows,
            backend=backend,
            weights=weights,
            shape=shape,
            transpose=bool(transpose),
        )


PRODUCTS = {operand: CompressedProduct(operand) for operand in (DENSE, BINARY, WEIGHTED)}
for _pair in PRODUCTS.values():
    def_cases(_pair, _pair, compressed)
