"""Derivatives of the products, which are each other's transposes.

A product is linear in the weights, and in the operand if that is dense. Its transposes are the product with the
transposed matrix, and the outer product sampled at the entries.

As a function of the *weights*, a product with events and all its derivatives leave inactive events out: these add
exactly 0, to the result, to its tangent and to the cotangents of the weights, also where a weight, a tangent or a
cotangent is infinite or not a number. What an active event adds is the plain product of IEEE arithmetic. Terms are
left out one by one, by the product with events and by its transpose, the outer product sampled with `events=`.

As a function of the *events*, a product is differentiated as if they were dense: the derivative has a value for
inactive events too, and none is left out of it. That lets gradients pass through spikes with a surrogate gradient
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
from xlakernel.core.backend import AUTO, Group, with_tangents
from xlakernel.core.errors import DifferentiationError

from .compact import compact_product
from .conversion import sort_entries
from .operand import BINARY, DENSE, OPERANDS, WEIGHTED, Operand
from .products.compressed import PRODUCTS
from .products.coordinates import COORDINATE_PRODUCTS
from .products.prepared import PREPARED_PRODUCTS
from .sampled import sampled_product

_Struct = jax.ShapeDtypeStruct

_WEIGHTS_TWICE = (
    "a derivative is asked for in all leaves of a prepared matrix, which holds its weights twice. Take it in A.data, "
    "and put that in with with_data: jax.grad(lambda w: loss(A.with_data(w)))(A.data)."
)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero)


@jax.jit
def _active_product(cotangent: jax.Array, values: jax.Array, active: jax.Array) -> Any:
    """Return the products of two arrays: 0 where *active* is False, but in the derivative by *values*."""
    return _product_where_active(cotangent, values, active)[0]


_product_where_active = with_tangents(
    "product where active",
    lambda cotangent, values, active: [jnp.where(active, cotangent * values, 0)],
    lambda primals, _, tangents: [primals[0] * tangents[1]],
    Group((0,), lambda arguments, cotangents: [_active_product(*cotangents, *arguments[1:])]),
)


def _define_product(
    op: XLACustomKernel,
    operand: Operand,
    plain: XLACustomKernel,
    dense: XLACustomKernel,
    binary: XLACustomKernel,
    flip: Callable[..., tuple[Sequence[Any], dict[str, Any]]],
    sample: Callable[..., Any],
) -> None:
    """Give *op*, with the inputs ``data, *structure, x``, its rules.

    Args:
      op: the operator.
      operand: its kind of operand.
      plain: the same product of a matrix without a mirror; what is behind the first two arrays of *structure* is that.
      dense: the product with dense operands of this rank.
      binary: that with binary events.
      flip: ``flip(structure, static)`` returns those of the transposed matrix.
      sample: ``sample(structure, cotangent, values, events=, **params)`` returns the cotangent of each entry's weight;
        *events* tells that zeros of *values* are inactive.
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
            reached = of_ones
            if operand is not BINARY:  # what is active may add up to 0
                active = x if operand is WEIGHTED else jnp.ones(x.shape, bool)
                (reached,) = binary.primitive.bind(one, *structure, active, outs=outs, dispatch=dispatch, **static)
            if operand is DENSE:  # which has a derivative in each row that has entries, and in no other
                cotangent = jnp.where(reached != 0, cotangent, 0)
            found[0] = _of_equal_weight(cotangent, of_ones, reached, data)
        else:
            values = operand.values(x, out.dtype)
            entries = sample(structure, cotangent, values, events=operand is not DENSE, dispatch=dispatch, **static)
            found[0] = entries.astype(data.aval.dtype)
        return found

    op.def_jvp_rule(jvp)
    op.def_transpose_rule(transpose)


def _of_equal_weight(cotangent: Any, of_ones: Any, reached: Any, data: Any) -> Any:
    """Return the cotangent of the one weight, which a product with a matrix of ones is multiplied by.

    Results that no active element has *reached*, which is 0 there, are left out: those of rows without entries, or
    without active events.
    """
    terms = _active_product(cotangent, of_ones, reached != 0)
    return jnp.sum(terms, dtype=of_ones.dtype).reshape(1).astype(data.aval.dtype)


# Compressed rows.


def _flip_compressed(structure: Sequence[Any], static: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    return structure, {**static, "transpose": not static["transpose"]}


def _sample_compressed(
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
    pair, side = ((values, cotangent), "u") if transpose else ((cotangent, values), "v")
    static = {"dispatch": dispatch, "shape": shape, "events": side if events else ""}
    outs = [_Struct(structure[0].shape, cotangent.dtype)]
    return sampled_product.primitive.bind(*structure, *pair, outs=outs, **static)[0]


@sampled_product.def_jvp_rule
def _sampled_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, events: str, **params: Any) -> Any:
    *structure, u, v = primals
    *_, of_u, of_v = tangents
    (entries,) = sampled_product.primitive.bind(*primals, events=events, **params)
    parts = []
    # A tangent of events has no inactive elements.
    if not _is_zero(of_u):
        parts += sampled_product.primitive.bind(*structure, of_u, v, events="v" * (events == "v"), **params)
    if not _is_zero(of_v):
        parts += sampled_product.primitive.bind(*structure, u, of_v, events="u" * (events == "u"), **params)
    return [entries], [sum(parts[1:], parts[0]) if parts else ad.Zero(jax.typeof(entries).to_tangent_aval())]


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
    if _is_zero(cotangent):
        return found
    position, other, side, backwards = (2, v, "v", False) if ad.is_undefined_primal(u) else (3, u, "u", True)
    outs = [_Struct((shape[1 if backwards else 0], *other.shape[1:]), cotangent.dtype)]
    product = PRODUCTS[WEIGHTED if events == side else DENSE].of_rank(other.ndim)
    # A backend that has no kernel for this product is no choice for it.
    had = tuple(pair for pair in dispatch.backends if pair[1] in (AUTO, *product.available_backends(pair[0])))
    dispatch = dataclasses.replace(dispatch, backends=had)
    static = {"dispatch": dispatch, "shape": shape, "transpose": backwards, "homogeneous": False}
    (found[position],) = product.primitive.bind(cotangent, indices, indptr, other, outs=outs, **static)
    return found


# Coordinates.


def _flip_coordinates(structure: Sequence[Any], static: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    return structure[::-1], {**static, "shape": static["shape"][::-1]}


def _sample_coordinates(
    structure: Sequence[Any], cotangent: Any, values: Any, *, events: bool, dispatch: Any, **_: Any
) -> Any:
    into, of = structure
    if 0 in (cotangent.shape[0], values.shape[0]):  # all is padding, and JAX gathers nothing from nothing
        return jnp.zeros(into.shape, cotangent.dtype)
    if cotangent.ndim == 1:
        cotangent = jnp.asarray(cotangent)  # of NumPy with jax_disable_jit
        pair = cotangent.at[into].get(mode="fill", fill_value=0), values.at[of].get(mode="fill", fill_value=0)
        return _active_product(*pair, pair[1] != 0) if events else pair[0] * pair[1]
    # Gathered from matrices, an array of all entries and columns would be allocated; sorted by rows, none is.
    shape = (cotangent.shape[0], values.shape[0])
    of, indptr, permutation = sort_entries(into, of, shape, dispatch=dispatch)
    static = {"dispatch": dispatch, "shape": shape, "transpose": False}
    found = _sample_compressed((of, indptr), cotangent, values, events=events, **static)
    return jnp.zeros_like(found).at[permutation].set(found, unique_indices=True)


for _products, _plain, _flip, _sample in (
    (PRODUCTS, PRODUCTS, _flip_compressed, _sample_compressed),
    (PREPARED_PRODUCTS, PRODUCTS, _flip_compressed, _sample_compressed),
    (COORDINATE_PRODUCTS, COORDINATE_PRODUCTS, _flip_coordinates, _sample_coordinates),
):
    for _operand in OPERANDS.values():
        for _rank in (1, 2):
            _op, _same, _dense, _binary = (
                products[kind].of_rank(_rank)
                for products, kind in (
                    (_products, _operand),
                    (_plain, _operand),
                    (_products, DENSE),
                    (_products, BINARY),
                )
            )
            _define_product(_op, _operand, _same, _dense, _binary, _flip, _sample)


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
        found = _of_equal_weight(cotangent, of_ones, of_ones, data)
    else:
        static = {"dispatch": params["dispatch"], "shape": shape, "transpose": True}
        found = _sample_compressed((indices, indptr), cotangent, times, events=True, **static).astype(data.aval.dtype)
    return [found, None, None, None, None]
