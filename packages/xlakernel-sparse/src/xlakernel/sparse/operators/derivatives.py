"""Derivatives of the products, which are each other's transposes.

A product is linear in the weights, and in the operand if that is dense. Its transposes are the product with the
transposed matrix, and the outer product sampled at the entries. As a function of an event array a product is
differentiated as if that array were dense, which is what lets gradients pass through spikes with a surrogate gradient
(Neftci et al. 2019, doi:10.1109/MSP.2019.2931595).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from xlakernel.core import XLACustomKernel
from xlakernel.core.config import AUTO
from xlakernel.core.errors import DifferentiationError

from .compact import compact_product
from .conversion import sort_entries
from .coordinates import COORDINATE_PRODUCTS
from .operand import DENSE, OPERANDS, Operand
from .prepared import PREPARED_PRODUCTS
from .product import PRODUCTS
from .sampled import sampled_product

_Struct = jax.ShapeDtypeStruct

_WEIGHTS_TWICE = (
    "a derivative is asked for in all leaves of a prepared matrix, which holds its weights twice. Take it in A.data, "
    "and put that in with with_data: jax.grad(lambda w: loss(A.with_data(w)))(A.data)."
)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero)


def _define_product(
    op: XLACustomKernel,
    operand: Operand,
    plain: XLACustomKernel,
    dense: XLACustomKernel,
    flip: Callable[..., tuple[Sequence[Any], dict[str, Any]]],
    sample: Callable[..., Any],
) -> None:
    """Give *op*, with the inputs ``data, *structure, x``, its rules.

    Args:
      op: the operator.
      operand: its kind of operand.
      plain: the same product of a matrix without a mirror; what is behind the first two arrays of *structure* is that.
      dense: the product with dense operands of this rank.
      flip: ``flip(structure, static)`` returns those of the transposed matrix.
      sample: ``sample(structure, cotangent, values, **params)`` returns the cotangent of each entry's weight.
    """

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, outs: Any, **params: Any) -> Any:
        data, *structure, x = primals
        of_data, *of_structure, of_x = tangents
        if not all(map(_is_zero, of_structure)):
            raise DifferentiationError(_WEIGHTS_TWICE)
        (y,) = op.primitive.bind(*primals, outs=outs, **params)
        parts = []
        if not _is_zero(of_data):
            parts += plain.primitive.bind(of_data, *structure[:2], x, outs=outs, **params)
        # Events of real numbers may meet weights of integers, and their sum has no derivative.
        if not _is_zero(of_x) and jnp.issubdtype(y.dtype, jnp.inexact):
            parts += dense.primitive.bind(data, *structure, of_x.astype(y.dtype), outs=outs, **params)
        return [y], [sum(parts[1:], parts[0]) if parts else ad.Zero(jax.typeof(y).to_tangent_aval())]

    def transpose(cotangents: Sequence[Any], data: Any, *others: Any, outs: Any, dispatch: Any, **static: Any) -> Any:
        *structure, x = others
        (cotangent,), (out,) = cotangents, outs
        found: list[Any] = [None] * (len(others) + 1)
        if _is_zero(cotangent):
            return found
        if ad.is_undefined_primal(x):
            flipped, keywords = flip(structure, static)
            like = _Struct(x.aval.shape, x.aval.dtype)
            # Also where events are transposed by hand, as if they were dense.
            (found[-1],) = dense.primitive.bind(data, *flipped, cotangent, outs=[like], dispatch=dispatch, **keywords)
        elif static["homogeneous"]:  # the product is the one weight times that of a matrix of ones
            one = jnp.ones(1, out.dtype)
            (of_ones,) = op.primitive.bind(one, *structure, x, outs=outs, dispatch=dispatch, **static)
            found[0] = jnp.sum(cotangent * of_ones, dtype=out.dtype).reshape(1).astype(data.aval.dtype)
        else:
            values = operand.values(x, out.dtype)
            entries = sample(structure, cotangent, values, dispatch=dispatch, **static)
            found[0] = entries.astype(data.aval.dtype)
        return found

    op.def_jvp_rule(jvp)
    op.def_transpose_rule(transpose)


# Compressed rows.


def _flip_compressed(structure: Sequence[Any], static: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    return structure, {**static, "transpose": not static["transpose"]}


def _sample_compressed(
    structure: Sequence[Any], cotangent: Any, values: Any, *, dispatch: Any, shape: Any, transpose: bool, **_: Any
) -> Any:
    pair = (values, cotangent) if transpose else (cotangent, values)
    outs = [_Struct(structure[0].shape, cotangent.dtype)]
    return sampled_product.primitive.bind(*structure, *pair, outs=outs, dispatch=dispatch, shape=shape)[0]


@sampled_product.def_jvp_rule
def _sampled_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    *structure, u, v = primals
    *_, of_u, of_v = tangents
    (entries,) = sampled_product.primitive.bind(*primals, **params)
    parts = []
    if not _is_zero(of_u):
        parts += sampled_product.primitive.bind(*structure, of_u, v, **params)
    if not _is_zero(of_v):
        parts += sampled_product.primitive.bind(*structure, u, of_v, **params)
    return [entries], [sum(parts[1:], parts[0]) if parts else ad.Zero(jax.typeof(entries).to_tangent_aval())]


@sampled_product.def_transpose_rule
def _sampled_transpose(
    cotangents: Sequence[Any], indices: Any, indptr: Any, u: Any, v: Any, *, outs: Any, dispatch: Any, shape: Any
) -> Any:
    (cotangent,) = cotangents
    found: list[Any] = [None] * 4
    if _is_zero(cotangent):
        return found
    position, other, backwards = (2, v, False) if ad.is_undefined_primal(u) else (3, u, True)
    outs = [_Struct((shape[1 if backwards else 0], *other.shape[1:]), cotangent.dtype)]
    product = PRODUCTS[DENSE].of_rank(other.ndim)
    # A backend that has no kernel for this product is no choice for it.
    had = tuple(pair for pair in dispatch.backends if pair[1] in (AUTO, *product.available_backends(pair[0])))
    dispatch = dataclasses.replace(dispatch, backends=had)
    static = {"dispatch": dispatch, "shape": shape, "transpose": backwards, "homogeneous": False}
    (found[position],) = product.primitive.bind(cotangent, indices, indptr, other, outs=outs, **static)
    return found


# Coordinates.


def _flip_coordinates(structure: Sequence[Any], static: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    return structure[::-1], {**static, "shape": static["shape"][::-1]}


def _sample_coordinates(structure: Sequence[Any], cotangent: Any, values: Any, *, dispatch: Any, **_: Any) -> Any:
    into, of = structure
    if 0 in (cotangent.shape[0], values.shape[0]):  # all is padding, and JAX gathers nothing from nothing
        return jnp.zeros(into.shape, cotangent.dtype)
    if cotangent.ndim == 1:
        return cotangent.at[into].get(mode="fill", fill_value=0) * values.at[of].get(mode="fill", fill_value=0)
    # Gathered from matrices, an array of all entries and columns would be allocated; sorted by rows, none is.
    shape = (cotangent.shape[0], values.shape[0])
    of, indptr, permutation = sort_entries(into, of, shape, dispatch=dispatch)
    static = {"dispatch": dispatch, "shape": shape, "transpose": False}
    found = _sample_compressed((of, indptr), cotangent, values, **static)
    return jnp.zeros_like(found).at[permutation].set(found, unique_indices=True)


for _products, _plain, _flip, _sample in (
    (PRODUCTS, PRODUCTS, _flip_compressed, _sample_compressed),
    (PREPARED_PRODUCTS, PRODUCTS, _flip_compressed, _sample_compressed),
    (COORDINATE_PRODUCTS, COORDINATE_PRODUCTS, _flip_coordinates, _sample_coordinates),
):
    for _operand in OPERANDS.values():
        for _rank in (1, 2):
            _op, _same, _dense = (
                products[kind].of_rank(_rank)
                for products, kind in ((_products, _operand), (_plain, _operand), (_products, DENSE))
            )
            _define_product(_op, _operand, _same, _dense, _flip, _sample)


# Numbers of active rows.


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
    if _is_zero(cotangent):
        return [None] * 5
    counted = jnp.where(jnp.arange(active.shape[0]) < count, active, shape[0])
    times = jnp.zeros(shape[0], cotangent.dtype).at[counted].add(1, mode="drop")
    if params["homogeneous"]:
        one = jnp.ones(1, cotangent.dtype)
        (of_ones,) = compact_product.primitive.bind(one, indices, indptr, active, count, shape=shape, **params)
        found = jnp.sum(cotangent * of_ones, dtype=cotangent.dtype).reshape(1)
    else:
        static = {"dispatch": params["dispatch"], "shape": shape, "transpose": True}
        found = _sample_compressed((indices, indptr), cotangent, times, **static)
    return [found.astype(data.aval.dtype), None, None, None, None]
