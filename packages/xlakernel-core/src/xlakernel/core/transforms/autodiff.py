"""Derivatives of an operator, from rules that its author gives.

A rule is written for the operator itself. Under ``jax.vmap`` the call that is differentiated is a mapped one: the rule
is then mapped in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from .._compat import align_axes, match_type, result_aval
from ..dispatch import Dispatch, Static
from ..errors import XLAKernelError
from ..primitive import OperatorPrimitive
from ..specs import Mapped, counted, is_smooth
from . import multilinear
from .declaration import Derivative
from .derivative import Differentiable
from .multilinear import add_tangents, zero_tangent


def define_jvp(primitive: OperatorPrimitive, user_rule: Callable[..., Any]) -> None:
    """Differentiate the operator by ``user_rule(primals, tangents, **params)``."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], *, outs: Any, dispatch: Dispatch, static: Static) -> Any:
        if not dispatch.mapped:
            return user_rule(tuple(primals), tuple(tangents), outs=outs, dispatch=dispatch, **dict(static.items))
        level, inner = dispatch.mapped[-1], dispatch.unbatched()
        live = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
        smooth = [i for i, out in enumerate(outs) if is_smooth(out.dtype)]

        def one(primals: Sequence[Any], live_tangents: Sequence[Any]) -> Any:
            all_tangents = [zero_tangent(primal) for primal in primals]
            for i, tangent in zip(live, live_tangents, strict=True):
                all_tangents[i] = tangent
            results, tangents = rule(primals, all_tangents, outs=outs, dispatch=inner, static=static)
            return list(results), [ad.instantiate_zeros(tangents[i]) for i in smooth]

        mapped = jax.vmap(one, in_axes=(list(level.axes), [level.axes[i] for i in live]), axis_size=level.size)
        results, smooth_tangents = mapped(list(primals), [tangents[i] for i in live])
        all_tangents = [zero_tangent(result) for result in results]
        for i, tangent in zip(smooth, smooth_tangents, strict=True):
            all_tangents[i] = match_type(tangent, results[i])
        return results, all_tangents

    ad.primitive_jvps[primitive] = rule


def define_jvp_per_input(primitive: OperatorPrimitive, rules: Sequence[Callable[..., Any] | None]) -> None:
    """Differentiate the operator by one ``rule(tangent, *primals, **params)`` for each input, or None."""

    def user_rule(primals: Sequence[Any], tangents: Sequence[Any], /, **params: Any) -> Any:
        if len(rules) != len(primals):
            raise XLAKernelError(
                f"{primitive.name}: def_jvp_rule2 was given {counted(len(rules), 'rule')}, but the call has "
                f"{counted(len(primals), 'input')}; give one for each input, None for those without a derivative."
            )
        results = primitive.bind(*primals, **params)
        totals = [zero_tangent(result) for result in results]
        for rule, tangent in zip(rules, tangents, strict=True):
            if rule is None or isinstance(tangent, ad.Zero):
                continue
            parts = rule(tangent, *primals, **params)
            parts = parts if isinstance(parts, (tuple, list)) else [parts]
            if len(parts) != len(results):
                raise XLAKernelError(
                    f"{primitive.name}: a rule of def_jvp_rule2 returned {counted(len(parts), 'tangent')} for "
                    f"{counted(len(results), 'result')}."
                )
            totals = [add_tangents(total, part) for total, part in zip(totals, parts, strict=True)]
        return results, totals

    define_jvp(primitive, user_rule)


def define_derivative(primitive: OperatorPrimitive, derivative: Derivative) -> None:
    """Differentiate the operator as its author declares; see `derivative`."""

    def differentiable(outs: Any, params: Mapping[str, Any]) -> Differentiable:
        def run(*ins: Any) -> list[Any]:
            return primitive.bind(*ins, outs=outs, **params)

        static = {name: value for name, value in params.items() if name != "dispatch"}
        tree = jax.tree.structure(list(outs) if len(outs) != 1 else outs[0])
        return Differentiable(derivative, run, tuple(outs), tree, static, offered={"outs": list(outs)})

    def user_rule(primals: Sequence[Any], tangents: Sequence[Any], /, *, outs: Any, **params: Any) -> Any:
        results = primitive.bind(*primals, outs=outs, **params)
        call = differentiable(outs, params)
        known = [None if isinstance(tangent, ad.Zero) else tangent for tangent in tangents]
        found = iter(call.tangents(primals, results, known))
        return results, [match_type(next(found), x) if is_smooth(x.dtype) else zero_tangent(x) for x in results]

    def transpose_rule(cotangents: Sequence[Any], *ins: Any, outs: Any, **params: Any) -> Any:
        structs = [x.aval if ad.is_undefined_primal(x) else x for x in ins]
        return multilinear.transpose(cotangents, *ins, function=differentiable(outs, params).linear(structs))

    define_jvp(primitive, user_rule)
    if derivative.transposes:  # jax.linear_transpose asks the operator itself
        define_transpose(primitive, transpose_rule)


def define_transpose(primitive: OperatorPrimitive, user_rule: Callable[..., Any]) -> None:
    """Transpose the operator, where it is linear, by ``user_rule(cotangents, *ins, **params)``."""

    def rule(cotangents: Sequence[Any], *ins: Any, outs: Any, dispatch: Dispatch, static: Static) -> Any:
        if not dispatch.mapped:
            return user_rule(cotangents, *ins, outs=outs, dispatch=dispatch, **dict(static.items))
        level, inner = dispatch.mapped[-1], dispatch.unbatched()
        linear = [i for i, x in enumerate(ins) if ad.is_undefined_primal(x)]
        known = [i for i in range(len(ins)) if i not in linear]
        live = [i for i, cotangent in enumerate(cotangents) if not isinstance(cotangent, ad.Zero)]

        def one(live_cotangents: Sequence[Any], known_ins: Sequence[Any]) -> list[Any]:
            all_cotangents = [ad.Zero(jax.core.ShapedArray((*inner.batch, *o.shape), o.dtype)) for o in outs]
            for i, cotangent in zip(live, live_cotangents, strict=True):
                all_cotangents[i] = cotangent
            avals = {i: _slice_aval(ins[i].aval, level, i) for i in linear}
            all_ins: list[Any] = [ad.UndefinedPrimal(avals[i]) if i in avals else None for i in range(len(ins))]
            for i, x in zip(known, known_ins, strict=True):
                all_ins[i] = x
            found = rule(all_cotangents, *all_ins, outs=outs, dispatch=inner, static=static)
            return [
                jnp.zeros(avals[i].shape, avals[i].dtype) if found[i] is None else ad.instantiate_zeros(found[i])
                for i in linear
            ]

        mapped = jax.vmap(one, in_axes=(0, [level.axes[i] for i in known]), axis_size=level.size)
        given = [cotangents[i] for i in live], [ins[i] for i in known]
        aligned = align_axes([*given[0], *given[1]], [*[0] * len(live), *(level.axes[i] for i in known)])
        found = mapped(aligned[: len(live)], aligned[len(live) :])
        results: list[Any] = [None] * len(ins)
        for i, slices in zip(linear, found, strict=True):
            axis = level.axes[i]
            # What all slices share collects what each of them contributes.
            total = slices.sum(0) if axis is None else jnp.moveaxis(slices, 0, axis)
            results[i] = match_type(total, ins[i].aval)
        return results

    ad.primitive_transposes[primitive] = rule


def _slice_aval(aval: Any, level: Mapped, index: int) -> Any:
    axis = level.axes[index]
    shape = aval.shape if axis is None else (*aval.shape[:axis], *aval.shape[axis + 1 :])
    return result_aval(shape, aval.dtype, [aval])
