"""Products of matrices whose rows are drawn in each product, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel

from .arguments import check_operand
from .backends import register
from .connections import Rule
from .derivatives import is_zero, of_equal_weight, sum_of
from .dtypes import accumulator
from .operand import BINARY, DENSE, WEIGHTED, Operand
from .products.compressed import ProductPair


def kernel_params(params: jax.Array, rule: Rule) -> jax.Array:
    """Return the parameters as kernels take them, in the dtype of sums.

    They are the weight of all entries, ``(1,)``, or two numbers, ``(2,)``: a weight is the first, plus the second times
    a number from a fixed distribution.
    """
    if rule.distribution != "uniform":
        return params
    low, high = params
    return jnp.stack([low, high - low])


class ProceduralPair(ProductPair):
    """The products with one kind of operand, as two operators: by a vector, and by the columns of a matrix.

    The inputs of both operators are ``params, key, x``, their static keywords ``shape, transpose, rule``. *params* are
    those of `kernel_params`. *key* has two words.
    """

    _static = ("shape", "transpose", "backend", "rule")

    def _operator(self, suffix: str) -> XLACustomKernel:
        op = XLACustomKernel(
            f"{self.operand.prefix}procedural_{suffix}", "A product of an `xlakernel.sparse.ProceduralMatrix`."
        )
        register(op, "procedural_product", without=("warp",), operand=self.operand)
        op.def_tags("sparse", "procedural", self.operand.name)
        return op

    def _product(  # type: ignore[override]  # of other arrays
        self,
        caller: str,
        params: Any,
        key: Any,
        x: Any,
        *,
        shape: Any,
        transpose: bool,
        rule: Rule,
        backend: str | None = None,
    ) -> jax.Array:
        """Check the operand of *caller*, and multiply."""
        results, length = shape[::-1] if transpose else shape
        x = check_operand(caller, self.operand, x, (1, 2), length, shape)
        result = self.operand.result_dtype(params, x)
        dtype = accumulator(result)
        y: jax.Array
        (y,) = self.of_rank(x.ndim)(
            kernel_params(params.astype(dtype), rule),
            key,
            x if self.operand is BINARY else x.astype(dtype),
            outs=[jax.ShapeDtypeStruct((results, *x.shape[1:]), dtype)],
            backend=backend,
            shape=shape,
            transpose=transpose,
            rule=rule,
        )
        return y.astype(result)


PROCEDURAL = {operand: ProceduralPair(operand) for operand in (DENSE, BINARY, WEIGHTED)}


def _define_derivatives(operand: Operand, rank: int) -> None:
    """Define the rules of an operator; `derivatives` describes how inactive events are differentiated."""
    op, dense, binary = (PROCEDURAL[kind].of_rank(rank) for kind in (operand, DENSE, BINARY))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **static: Any) -> Any:
        params, key, x = primals
        of_params, _, of_x = tangents
        (y,) = op.primitive.bind(*primals, **static)
        parts = []
        if not is_zero(of_params):
            parts += op.primitive.bind(of_params, key, x, **static)
        if not is_zero(of_x) and jnp.issubdtype(y.dtype, jnp.inexact):
            parts += dense.primitive.bind(params, key, of_x.astype(y.dtype), **static)
        return [y], [sum_of(parts, y)]

    def transpose(cotangents: Sequence[Any], params: Any, key: Any, x: Any, *, outs: Any, **static: Any) -> Any:
        (cotangent,) = cotangents
        if is_zero(cotangent):
            return [None, None, None]
        if ad.is_undefined_primal(x):
            outs = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype)]
            static["transpose"] = not static["transpose"]
            return [None, None, *dense.primitive.bind(params, key, cotangent, outs=outs, **static)]
        return [of_params(cotangent, params, key, x, outs=outs, **static), None, None]

    def of_params(cotangent: Any, params: Any, key: Any, x: Any, *, rule: Rule, **static: Any) -> jax.Array:
        """Return the cotangent of the parameters: the product is the sum of each times the product for it alone."""
        ones, active = rule._replace(distribution="homogeneous"), x
        if operand is not BINARY:  # active values can cancel: count them
            active = x != 0 if operand is WEIGHTED else jnp.ones(x.shape, bool)
        (reached,) = binary.primitive.bind(jnp.ones(1, cotangent.dtype), key, active, rule=ones, **static)
        if operand is DENSE:  # as in the products of stored matrices
            cotangent = jnp.where(reached != 0, cotangent, 0)
        found = []
        for unit in jnp.eye(params.aval.shape[0], dtype=cotangent.dtype):
            (alone,) = op.primitive.bind(unit, key, x, rule=rule, **static)
            found.append(of_equal_weight(cotangent, alone, reached, params))
        return jnp.concatenate(found)

    op.def_jvp_rule(jvp)
    op.def_transpose_rule(transpose)


for _operand in PROCEDURAL:
    for _rank in (1, 2):
        _define_derivatives(_operand, _rank)
