"""Derivatives of an operator by rules of its JAX primitive.

The author of an operator writes a rule for an unmapped call. If a call was mapped by ``jax.vmap``, its rule is mapped
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad

from .._compat import match_type, result_aval
from ..call.derivatives import multilinear
from ..call.derivatives.multilinear import add_tangents, zero_tangent
from ..call.levels import Level, map_levels, slice_shape
from ..errors import XLAKernelError
from ..structs import counted, is_smooth
from .dispatch import Dispatch, Static
from .primitive import OperatorPrimitive


def define_jvp(primitive: OperatorPrimitive, user_rule: Callable[..., Any]) -> None:
    """Differentiate the operator by ``user_rule(primals, tangents, **params)``."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], *, outs: Any, dispatch: Dispatch, static: Static) -> Any:
        params = {"outs": outs, "dispatch": dispatch.unmapped(), **dict(static.items)}
        if not dispatch.mapped:
            return user_rule(tuple(primals), tuple(tangents), **params)
        live = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
        smooth = [i for i, out in enumerate(outs) if is_smooth(out.dtype)]

        def one(*arguments: Any) -> list[Any]:
            primals, live_tangents = arguments[: len(tangents)], arguments[len(tangents) :]
            all_tangents = [zero_tangent(primal) for primal in primals]
            for i, tangent in zip(live, live_tangents, strict=True):
                all_tangents[i] = tangent
            results, found = user_rule(primals, tuple(all_tangents), **params)
            return [*results, *(ad.instantiate_zeros(found[i]) for i in smooth)]

        levels = [Level((*level.axes, *(level.axes[i] for i in live)), level.size) for level in dispatch.mapped]
        found = map_levels(one, levels)(*primals, *(tangents[i] for i in live))
        results = found[: len(outs)]
        all_tangents = [zero_tangent(result) for result in results]
        for i, tangent in zip(smooth, found[len(outs) :], strict=True):
            all_tangents[i] = match_type(tangent, results[i])
        return results, all_tangents

    primitive.set_rule("jvp", rule)


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


def define_transpose(primitive: OperatorPrimitive, user_rule: Callable[..., Any]) -> None:
    """Transpose the operator, where it is linear, by ``user_rule(cotangents, *ins, **params)``."""

    def rule(cotangents: Sequence[Any], *ins: Any, outs: Any, dispatch: Dispatch, static: Static) -> Any:
        params = {"outs": outs, "dispatch": dispatch.unmapped(), **dict(static.items)}
        if not dispatch.mapped:
            return user_rule(cotangents, *ins, **params)
        linear = tuple(i for i, x in enumerate(ins) if ad.is_undefined_primal(x))
        types = {i: ins[i].aval for i in linear}
        avals = {i: result_aval(slice_shape(x.shape, i, dispatch.mapped), x.dtype, [x]) for i, x in types.items()}

        def one(known: Sequence[Any], given: Sequence[Any]) -> list[Any]:
            zeros = [ad.Zero(jax.core.ShapedArray(out.shape, out.dtype)) for out in outs]
            all_cotangents = [zero if x is None else x for zero, x in zip(zeros, given, strict=True)]
            all_ins = [ad.UndefinedPrimal(avals[i]) if i in avals else x for i, x in enumerate(known)]
            found = user_rule(all_cotangents, *all_ins, **params)
            zero = {i: ad.Zero(avals[i]) for i in linear if found[i] is None}
            return [ad.instantiate_zeros(zero.get(i, found[i])) for i in linear]

        known = [None if i in avals else x for i, x in enumerate(ins)]
        given = [None if isinstance(cotangent, ad.Zero) else cotangent for cotangent in cotangents]
        found = multilinear.transposed(multilinear.Group(linear, one), dispatch.mapped)(known, given)
        results: list[Any] = [None] * len(ins)
        for i, cotangent in zip(linear, found, strict=True):
            results[i] = match_type(cotangent, ins[i].aval)
        return results

    primitive.set_rule("transpose", rule)
