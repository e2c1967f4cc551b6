"""Products of a matrix in compressed rows with vectors and matrices: `csrmv`, `csrmm`, and the products with events."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from xlakernel.core import XLACustomKernel
from xlakernel.core.backend import jit_when_eager

from ..arguments import check_compressed, check_operand
from ..backends import register
from ..cases import COLUMNS, product_cases
from ..dtypes import accumulator, as_weights
from ..operand import BINARY, DENSE, WEIGHTED, Operand
from ..units import joined, split


class ProductPair:
    """The products with one kind of operand, as two operators: by a vector, and by the columns of a matrix.

    The inputs of both operators are ``data, indices, indptr, x``, their static keywords ``shape, transpose,
    homogeneous``.

    Attributes:
      operand: the kind of operand.
      vector: the operator for vectors.
      columns: the operator for matrices.
    """

    _static: ClassVar[tuple[str, ...]] = ("shape", "transpose", "backend", "ranks", "permuted")

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self.vector, self.columns = self._operator("mv"), self._operator("mm")
        for op in (self.vector, self.columns):
            op.def_batching_rule(_fold_columns(op, self.columns))
        self._compiled = jit_when_eager(self._product, static_argnums=0, static_argnames=self._static)

    def __call__(self, caller: str, *arrays: Any, **keywords: Any) -> jax.Array:
        """Check the arguments of the function *caller*, and multiply; `_product` lists the arguments."""
        data, *structure, x = arrays
        product: jax.Array
        if not hasattr(data, "unit") and not hasattr(x, "unit"):
            product = self._compiled(caller, *arrays, **keywords)
            return product
        (data, of_data), (x, of_x) = split(data), split(x)
        product = joined(self._compiled(caller, data, *structure, x, **keywords), of_data, of_x)
        return product

    def of_rank(self, rank: int) -> XLACustomKernel:
        """Return the operator for operands of this rank."""
        return self.vector if rank == 1 else self.columns

    def _operator(self, suffix: str) -> XLACustomKernel:
        """Make the operator for vectors, ``"mv"``, or for matrices, ``"mm"``."""
        name = f"{self.operand.prefix}csr{suffix}"
        op = XLACustomKernel(name, f"The operator behind `xlakernel.sparse.{name}`.")
        register(op, "product", without=() if suffix == "mv" else ("warp",), operand=self.operand)
        op.def_tags("sparse", "csr", self.operand.name)
        return op

    def _product(
        self,
        caller: str,
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
        permuted: bool = False,
    ) -> jax.Array:
        """Check the arguments of the function *caller*, and multiply.

        *orders*, *weights* and *permuted* are the additional arguments of `PreparedProduct`.
        """
        data, indices, indptr, shape = check_compressed(caller, data, indices, indptr, shape)
        rows, length = (shape[1], shape[0]) if transpose else shape
        x = check_operand(caller, self.operand, x, ranks, length, shape)
        result = self.operand.result_dtype(data, x)
        dtype = accumulator(result)
        y: jax.Array
        (y,) = self.of_rank(x.ndim)(
            as_weights(data, dtype),
            indices,
            indptr,
            *orders,
            *(weights if permuted else [as_weights(copied, dtype) for copied in weights]),
            x if self.operand is BINARY else x.astype(dtype),
            outs=[jax.ShapeDtypeStruct((rows, *x.shape[1:]), dtype)],
            backend=backend,
            homogeneous=data.shape == (1,),
            shape=shape,
            transpose=bool(transpose),
            **({"permuted": True} if permuted else {}),
        )
        return y.astype(result)


def _fold_columns(op: XLACustomKernel, columns: XLACustomKernel) -> Callable[..., Any]:
    """Return the batching rule of *op*, a product whose last input is the operand.

    If only the operand is batched, the operands of the batch become the columns of one matrix, and the operator
    *columns* multiplies all of them at once: the sparse matrix is read once. Otherwise the kernel is mapped.
    """

    def rule(ins: Sequence[Any], axes: Sequence[int | None], *, outs: Any, dispatch: Any, **static: Any) -> Any:
        *matrix, x = ins
        axis = axes[-1]
        if axis is None or any(a is not None for a in axes[:-1]):
            size = next(x.shape[a] for x, a in zip(ins, axes, strict=True) if a is not None)
            return op.primitive.bind(*ins, outs=outs, dispatch=dispatch.batched(axes, size), **static), [0]
        (out,) = outs
        x = jnp.moveaxis(x, axis, -1)
        size = x.shape[-1]
        folded = jax.ShapeDtypeStruct((out.shape[0], math.prod(out.shape[1:]) * size), out.dtype)
        x = x.reshape(x.shape[0], folded.shape[1])
        (y,) = columns.primitive.bind(*matrix, x, outs=[folded], dispatch=dispatch, **static)
        return [y.reshape(*out.shape, size)], [len(out.shape)]

    return rule


PRODUCTS = {operand: ProductPair(operand) for operand in (DENSE, BINARY, WEIGHTED)}
for _pair in PRODUCTS.values():
    for _op, _columns in ((_pair.vector, ()), (_pair.columns, (COLUMNS,))):
        _op.def_call(functools.partial(_pair, _op.name, backend=None))
        _op.def_benchmark_data(functools.partial(product_cases, _pair.operand, _columns))
