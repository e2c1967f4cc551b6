"""Derivatives of the products.

A product is linear in the weights, and in the operand if the operand is dense. The transpose with respect to the
operand is the product with the transposed matrix. The transpose with respect to the weights is `sampled_product`, the
outer product at the entries.

Differentiation with respect to the *weights*: inactive events are omitted from a product with events and from all its
derivatives. These events add exactly 0 to the result, to its tangent and to the cotangents of the weights, even where
a weight, a tangent or a cotangent is infinite or NaN. Terms of active events follow IEEE arithmetic, so NaN and
infinities propagate. Both the product with events and its transpose, `sampled_product` with *events*, omit the terms of
inactive events individually.

Differentiation with respect to the *events*: a product is differentiated as if the events were a dense operand.
Inactive events also have derivatives, and none of their terms are omitted. Gradients can therefore pass through spikes
with a surrogate gradient (Neftci et al. 2019, doi:10.1109/MSP.2019.2931595).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core.backend import AUTO, Group, with_tangents
from xlakernel.core.errors import DifferentiationError

from .compact import compact_product
from .operand import BINARY, DENSE, WEIGHTED, Operand
from .products.compressed import PRODUCTS, ProductPair
from .products.prepared import PREPARED_PRODUCTS
from .sampled import sampled_product

_Struct = jax.ShapeDtypeStruct

_WEIGHTS_TWICE = (
    "the derivative with respect to all leaves of a prepared matrix is not defined: it stores its weights twice. "
    "Differentiate with respect to A.data, and insert it with with_data: "
    "jax.grad(lambda w: loss(A.with_data(w)))(A.data)."
)


def is_zero(tangent: Any) -> bool:
    """Return True for a symbolic zero."""
    return isinstance(tangent, ad.Zero)


def sum_of(parts: Sequence[Any], result: Any) -> Any:
    """Return the sum of *parts*, tangents of *result*; a symbolic zero if there are none."""
    return sum(parts[1:], parts[0]) if parts else ad.Zero(jax.typeof(result).to_tangent_aval())


@jax.jit
def active_product(cotangent: jax.Array, values: jax.Array, active: jax.Array) -> Any:
    """Return *cotangent* times *values*, 0 where *active* is False.

    The derivative with respect to *values* is not masked: it is *cotangent* everywhere.
    """
    return _product_where_active(cotangent, values, active)[0]


_product_where_active = with_tangents(
    "product where active",
    lambda cotangent, values, active: [jnp.where(active, cotangent * values, 0)],
    lambda primals, _, tangents: [primals[0] * tangents[1]],
    Group((0,), lambda arguments, cotangents: [active_product(*cotangents, *arguments[1:])]),
)


def _define_product(products: Mapping[Operand, ProductPair], operand: Operand, rank: int) -> None:
    """Define the rules of the operator of *products* for this operand and rank."""
    op, dense, binary = (products[kind].of_rank(rank) for kind in (operand, DENSE, BINARY))
    # A prepared matrix stores its weights in several orders of the entries. Their tangent has only the first order: use
    # the product of an unprepared matrix.
    plain = PRODUCTS[operand].of_rank(rank)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, outs: Any, **params: Any) -> Any:
        data, *structure, x = primals
        of_data, *of_structure, of_x = tangents
        if not all(map(is_zero, of_structure)):
            raise DifferentiationError(_WEIGHTS_TWICE)
        (y,) = op.primitive.bind(*primals, outs=outs, **params)
        parts = []
        if not is_zero(of_data):
            of_plain = {name: value for name, value in params.items() if name != "permuted"}
            parts += plain.primitive.bind(of_data, *structure[:2], x, outs=outs, **of_plain)
        # Real events may be multiplied by integer weights: the result then has no derivative.
        if not is_zero(of_x) and jnp.issubdtype(y.dtype, jnp.inexact):
            parts += dense.primitive.bind(data, *structure, of_x.astype(y.dtype), outs=outs, **params)
        return [y], [sum_of(parts, y)]

    def transpose(cotangents: Sequence[Any], data: Any, *others: Any, outs: Any, dispatch: Any, **static: Any) -> Any:
        *structure, x = others
        (cotangent,), (out,) = cotangents, outs
        found: list[Any] = [None] * (len(others) + 1)
        if is_zero(cotangent):
            return found
        if ad.is_undefined_primal(x):
            outs = [_Struct(x.aval.shape, x.aval.dtype)]
            static["transpose"] = not static["transpose"]
            # Events, too, are transposed as if they were dense.
            (found[-1],) = dense.primitive.bind(data, *structure, cotangent, outs=outs, dispatch=dispatch, **static)
        elif static["homogeneous"]:  # the product is the weight times the product of a matrix of ones
            one = jnp.ones(1, out.dtype)
            (of_ones,) = op.primitive.bind(one, *structure, x, outs=outs, dispatch=dispatch, **static)
            reached = of_ones
            if operand is not BINARY:
                # Active values can cancel, so that ``of_ones == 0`` does not mean that none is active: count them.
                active = x if operand is WEIGHTED else jnp.ones(x.shape, bool)
                (reached,) = binary.primitive.bind(one, *structure, active, outs=outs, dispatch=dispatch, **static)
            if operand is DENSE:
                # Mask the cotangent too: rows without entries have no derivative with respect to *x* either, but the
                # derivative of `active_product` with respect to *of_ones* is not masked.
                cotangent = jnp.where(reached != 0, cotangent, 0)
            found[0] = of_equal_weight(cotangent, of_ones, reached, data)
        else:
            values = operand.values(x, out.dtype)
            entries = _sample(structure, cotangent, values, events=operand is not DENSE, dispatch=dispatch, **static)
            found[0] = entries.astype(data.aval.dtype)
        return found

    op.def_jvp_rule(jvp)
    op.def_transpose_rule(transpose)


def of_equal_weight(cotangent: Any, of_ones: Any, reached: Any, data: Any) -> Any:
    """Return the cotangent of the single weight that all entries share; the product is this weight times *of_ones*.

    Elements of the result where *reached* is 0 are left out: their rows have no entries, or no active events, and
    contribute nothing.
    """
    terms = active_product(cotangent, of_ones, reached != 0)
    return jnp.sum(terms, dtype=of_ones.dtype).reshape(1).astype(data.aval.dtype)


def _sample(
    structure: Sequence[Any],
    cotangent: Any,
    values: Any,
    *,
    events: bool,
    dispatch: Any,
    shape: Any,
    transpose: bool,
    **_: Any,
) -> Any:
    """Return the cotangent of each entry's weight; if *events*, zeros of *values* are inactive."""
    pair, side = ((values, cotangent), "u") if transpose else ((cotangent, values), "v")
    static = {"dispatch": dispatch, "shape": shape, "events": side if events else ""}
    outs = [_Struct(structure[0].shape, cotangent.dtype)]
    return sampled_product.primitive.bind(*structure, *pair, outs=outs, **static)[0]


for _products in (PRODUCTS, PREPARED_PRODUCTS):
    for _operand in PRODUCTS:
        for _rank in (1, 2):
            _define_product(_products, _operand, _rank)


@sampled_product.def_jvp_rule
def _sampled_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, events: str, **params: Any) -> Any:
    *structure, u, v = primals
    *_, of_u, of_v = tangents
    (entries,) = sampled_product.primitive.bind(*primals, events=events, **params)
    parts = []
    # Zeros in a tangent of events are not inactive.
    if not is_zero(of_u):
        parts += sampled_product.primitive.bind(*structure, of_u, v, events="v" * (events == "v"), **params)
    if not is_zero(of_v):
        parts += sampled_product.primitive.bind(*structure, u, of_v, events="u" * (events == "u"), **params)
    return [entries], [sum_of(parts, entries)]


@sampled_product.def_transpose_rule
def _sampled_transpose(
    cotangents: Sequence[Any],
    indices: Any,
    indptr: Any,
    u: Any,
    v: Any,
    *,
    outs: Any,
    dispatch: Any,
    shape: Any,
    events: str,
) -> Any:
    (cotangent,) = cotangents
    found: list[Any] = [None] * 4
    if is_zero(cotangent):
        return found
    position, other, side, backwards = (2, v, "v", False) if ad.is_undefined_primal(u) else (3, u, "u", True)
    outs = [_Struct((shape[1 if backwards else 0], *other.shape[1:]), cotangent.dtype)]
    product = PRODUCTS[WEIGHTED if events == side else DENSE].of_rank(other.ndim)
    # Drop chosen backends that have no kernel for this product.
    available = tuple(pair for pair in dispatch.backends if pair[1] in (AUTO, *product.available_backends(pair[0])))
    dispatch = dataclasses.replace(dispatch, backends=available)
    static = {"dispatch": dispatch, "shape": shape, "transpose": backwards, "homogeneous": False}
    (found[position],) = product.primitive.bind(cotangent, indices, indptr, other, outs=outs, **static)
    return found


@compact_product.def_jvp_rule
def _compact_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    return tuple(compact_product.primitive.bind(data, *primals[1:], **params) for data in (primals[0], tangents[0]))


@compact_product.def_transpose_rule
def _compact_transpose(
    cotangents: Sequence[Any],
    data: Any,
    indices: Any,
    indptr: Any,
    active: Any,
    count: Any,
    *,
    shape: Any,
    **params: Any,
) -> Any:
    (cotangent,) = cotangents
    if is_zero(cotangent):
        return [None] * 5
    # Count how often each row is active. Positions from *count* on get an index outside, which is dropped.
    counted = jnp.where(jnp.arange(active.shape[0]) < count, active, shape[0])
    times = jnp.zeros(shape[0], cotangent.dtype).at[counted].add(1, mode="drop")
    if params["homogeneous"]:
        one = jnp.ones(1, cotangent.dtype)
        (of_ones,) = compact_product.primitive.bind(one, indices, indptr, active, count, shape=shape, **params)
        found = of_equal_weight(cotangent, of_ones, of_ones, data)
    else:
        static = {"dispatch": params["dispatch"], "shape": shape, "transpose": True}
        found = _sample((indices, indptr), cotangent, times, events=True, **static).astype(data.aval.dtype)
    return [found, None, None, None, None]
