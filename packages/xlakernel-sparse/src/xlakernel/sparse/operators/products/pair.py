"""What products of all formats have in common: one operator for vectors, and one for the columns of matrices."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import jit_when_eager

from ..dtypes import accumulator, as_weights
from ..operand import BINARY, Operand
from .batching import fold_columns


class ProductPair(abc.ABC):
    """The products with one kind of operand, as two operators: by a vector, and by the columns of a matrix.

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
        static = ("shape", "transpose", "backend", "ranks")
        self._compiled = jit_when_eager(self._product, static_argnums=0, static_argnames=static)

    def __call__(self, who: str, *arrays: Any, **keywords: Any) -> jax.Array:
        """Check the arguments for the function *who*, and multiply; `_product` has the arguments."""
        # The numbers of other arrays are checked: JAX would wrap those that have no room in its dtypes.
        multiply = self._compiled if all(isinstance(array, jax.Array) for array in arrays) else self._product
        product: jax.Array = multiply(who, *arrays, **keywords)
        return product

    @abc.abstractmethod
    def _product(self, who: str, *arrays: Any, **keywords: Any) -> jax.Array:
        """Check the arguments for the function *who*, and multiply."""

    @abc.abstractmethod
    def _operator(self, suffix: str) -> XLACustomKernel:
        """Make the operator for vectors, ``"mv"``, or for matrices, ``"mm"``."""

    def of_rank(self, rank: int) -> XLACustomKernel:
        """Return the operator for operands of this rank."""
        return self.vector if rank == 1 else self.columns

    def _multiply(
        self,
        data: jax.Array,
        structure: Sequence[jax.Array],
        x: jax.Array,
        rows: int,
        *,
        backend: str | None,
        weights: Sequence[jax.Array] = (),
        **static: Any,
    ) -> jax.Array:
        """Return the product, which has so many *rows*; *weights* are *data* in other orders, behind *structure*."""
        result = self.operand.result_dtype(data, x)
        dtype = accumulator(result)
        y: jax.Array
        (y,) = self.of_rank(x.ndim)(
            as_weights(data, dtype),
            *structure,
            *(as_weights(again, dtype) for again in weights),
            x if self.operand is BINARY else x.astype(dtype),
            outs=[jax.ShapeDtypeStruct((rows, *x.shape[1:]), dtype)],
            backend=backend,
            homogeneous=data.shape == (1,),
            **static,
        )
        return y.astype(result)
