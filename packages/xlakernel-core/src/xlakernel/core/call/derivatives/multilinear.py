"""Functions with the derivatives that their authors declare, as a JAX primitive.

JAX cannot transpose a kernel. This primitive has a function and its transposes as parameters: JAX evaluates the
function, and reverse mode runs a transpose. `jax.custom_derivatives.linear_call` does the same, but has no batching
rule. The rule for tangents is a parameter as well. A `jax.custom_jvp` around the primitive would not do: JAX drops its
rule in the partial evaluation of a loop, and would then differentiate the kernel itself, which is an error. Under
``jax.vmap``, the primitive records the mapped axes of its arguments; the function, the transpose or the tangents are
mapped when they run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..._compat import (
    NativeCallEffect,
    align_axes,
    explicit_specs,
    jit_primitive,
    match_type,
    require_devices,
    result_aval,
    vary_alike,
)
from ...errors import DifferentiationError
from ...structs import Struct, is_smooth
from ..levels import Level, map_levels
from ..sharding.partition import may_split


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Arguments in which a function is jointly linear, for fixed values of the other arguments.

    Attributes:
      positions: the positions of the arguments.
      transpose: ``transpose(arguments, cotangents) -> cotangents of the group``. The group's own arguments are None,
        and so are the cotangents of integers. The function checks its own results.
    """

    positions: tuple[int, ...]
    transpose: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class TangentsByJAX:
    """JAX's derivative of a function, as the ``tangents`` of a `Multilinear` function.

    Attributes:
      run: the function; it takes its arguments one by one and returns a list of arrays.
    """

    run: Callable[..., list[Any]]

    def __call__(self, arguments: Sequence[Any], _: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the results of inexact dtype."""
        return tangents_of(self.run, arguments, tangents)


def tangents_of(run: Callable[..., list[Any]], arguments: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Differentiate *run* by JAX with respect to the arguments that have a tangent."""
    live = [i for i, tangent in enumerate(tangents) if tangent is not None]
    of_live = smooth_results(run, arguments, live)
    found: list[Any] = jax.jvp(of_live, [arguments[i] for i in live], [tangents[i] for i in live])[1]
    return found


def smooth_results(
    run: Callable[..., list[Any]], arguments: Sequence[Any], chosen: Sequence[int]
) -> Callable[..., list[Any]]:
    """Return a function of the *chosen* arguments of *run* that returns the results that can have tangents."""

    def of_chosen(*values: Any) -> list[Any]:
        moved = list(arguments)
        for i, value in zip(chosen, values, strict=True):
            moved[i] = value
        return [x for x in run(*moved) if is_smooth(x.dtype)]

    return of_chosen


@dataclasses.dataclass(frozen=True, eq=False)
class Multilinear:
    """A function of arrays that is linear in each of its groups, if it has any.

    Attributes:
      name: the name for messages.
      evaluate: the function; it takes its arguments one by one and returns a list of arrays.
      outs: the structs of its results.
      groups: the groups; no argument is in two of them.
      tangents: a function ``tangents(arguments, results, argument_tangents)`` for the arguments outside of the groups.
        It returns the tangents of the results of inexact dtype. In *argument_tangents*, a tangent is None if it is zero
        or its argument belongs to a group. If *tangents* is None, there is no derivative with respect to arguments
        outside of the groups.
      has_side_effect: True: the function is evaluated even if its results are not used, and is never evaluated to
        compute tangents.
      sharded_like: a function that is traced in place of *evaluate*, to find the sharding of the results over explicit
        mesh axes. None: *evaluate* itself is traced.
      spelled: how the author declares a derivative, as in `Derivative`; for messages.
      scalars: the names of the last arguments, which are scalars; for messages.
    """

    name: str
    evaluate: Callable[..., list[Any]]
    outs: tuple[Struct, ...]
    groups: tuple[Group, ...]
    tangents: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]] | None
    has_side_effect: bool = False
    sharded_like: Callable[..., list[Any]] | None = None
    spelled: str = "{}="
    scalars: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


multilinear_p = Primitive("xlakernel_multilinear")
#: The same primitive for a function whose calls XLA may split over devices, by their sharding rules.
split_multilinear_p = Primitive("xlakernel_multilinear_split")
require_devices(split_multilinear_p)


def apply(function: Multilinear, arguments: Sequence[Any]) -> list[Any]:
    """Call *function*."""
    return _bind(function, arguments, ())


def with_tangents(
    name: str,
    run: Callable[..., list[Any]],
    tangents: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]],
    *groups: Group,
) -> Callable[..., list[Any]]:
    """Return a function that computes *run*, a plain JAX function, with the *tangents* and *groups* of a `Multilinear`.

    It replaces a `jax.custom_jvp`: JAX drops the rule of a `jax.custom_jvp` in the partial evaluation of a loop.
    """

    def call(*arguments: Any) -> list[Any]:
        outs = tuple(Struct(x.shape, x.dtype) for x in jax.eval_shape(run, *arguments))
        return apply(Multilinear(name, run, outs, groups, tangents), arguments)

    return call


def _bind(function: Multilinear, arguments: Sequence[Any], levels: tuple[Level, ...]) -> list[Any]:
    primitive = split_multilinear_p if may_split() else multilinear_p
    results: list[Any] = primitive.bind(*vary_alike(arguments), function=function, levels=levels)
    return results


def _run(*arguments: Any, function: Multilinear, levels: tuple[Level, ...]) -> list[Any]:
    return list(map_levels(function.evaluate, levels)(*arguments))


def _impl(*arguments: Any, **params: Any) -> list[Any]:
    with jax.disable_jit(False):  # jax.disable_jit is for functions of the user, not for this program
        results: list[Any] = jit_primitive(functools.partial(_run, **params), str(params["function"]))(*arguments)
        return results


def _abstract_eval(*arguments: Any, function: Multilinear, levels: tuple[Level, ...]) -> Any:
    batch = tuple(level.size for level in reversed(levels))
    found = explicit_specs(map_levels(function.sharded_like or function.evaluate, levels), arguments)
    specs: Sequence[Any] = [None] * len(function.outs) if found is None else found
    outs = [
        result_aval((*batch, *out.shape), out.dtype, arguments, spec)
        for out, spec in zip(function.outs, specs, strict=True)
    ]
    return outs, ({NativeCallEffect(str(function))} if function.has_side_effect else set())


def zero_tangent(primal: Any) -> ad.Zero:
    """Return the symbolic zero tangent of *primal*."""
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def add_tangents(one: Any, other: Any) -> Any:
    """Return the sum of two tangents, which may have different shardings: `ad.add_tangents` would raise an error.

    Under ``jax.vmap`` on an explicit mesh, results of a call without a sharding rule are not sharded along the batch.
    """
    if isinstance(one, ad.Zero) or isinstance(other, ad.Zero):
        return other if isinstance(one, ad.Zero) else one
    return one + other


def _batch(arguments: Sequence[Any], axes: Sequence[int | None], *, function: Multilinear, levels: Any) -> Any:
    size = next(x.shape[axis] for x, axis in zip(arguments, axes, strict=True) if axis is not None)
    results = _bind(function, arguments, (*levels, Level(tuple(axes), size)))
    return results, [0] * len(results)


def _jvp(arguments: Sequence[Any], tangents: Sequence[Any], *, function: Multilinear, levels: Any) -> Any:
    results = _bind(function, arguments, levels)
    if not any(is_smooth(out.dtype) for out in function.outs):
        return results, [zero_tangent(result) for result in results]
    live = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    parts, of_tangents = [], _linear(function)
    for group in function.groups:
        if set(group.positions) & set(live):
            moved = list(arguments)
            for i in group.positions:  # the tangent of an integer is a zero of its own dtype
                moved[i] = tangents[i] if i in live else jnp.zeros_like(arguments[i])
            parts.append(_bind(of_tangents, moved, levels))
    rest = [i for i in live if not any(i in group.positions for group in function.groups)]
    if rest:
        found = iter(_tangents(arguments, results, rest, [tangents[i] for i in rest], function, levels))
        parts.append([match_type(next(found), x) if is_smooth(x.dtype) else None for x in results])
    return results, [
        functools.reduce(add_tangents, (part[i] for part in parts)) if is_smooth(result.dtype) else zero_tangent(result)
        for i, result in enumerate(results)
    ]


def _linear(function: Multilinear) -> Multilinear:
    """Return *function* as the linear map of the tangents of a group.

    If *function* has a side effect, the map can be transposed, but its evaluation raises an error.
    """
    if not function.has_side_effect:
        return function

    def evaluate(*_: Any) -> list[Any]:
        raise DifferentiationError(
            f"{function}: forward mode (jax.jvp, jax.linearize, jax.hessian) evaluates a kernel that is declared as "
            f"linear, by {function.spelled.format('transpose')}, for its tangents, and would repeat the side effect "
            f"of has_side_effect=True. Declare {function.spelled.format('reference')} or "
            f"{function.spelled.format('jvp')} in place of it, or use reverse mode (jax.grad, jax.vjp)."
        )

    sharded_like = function.sharded_like or function.evaluate
    return dataclasses.replace(function, evaluate=evaluate, has_side_effect=False, sharded_like=sharded_like)


def _tangents(
    arguments: Sequence[Any],
    results: Sequence[Any],
    live: Sequence[int],
    tangents: Sequence[Any],
    function: Multilinear,
    levels: Sequence[Level],
) -> list[Any]:
    """Return the tangents of the results of inexact dtype, given the *tangents* of the *live* arguments."""
    if function.tangents is None:
        by_transpose, by_reference = map(function.spelled.format, ("transpose", "reference"))
        scalar = live[0] - len(arguments) + len(function.scalars)
        which = f"input {live[0]}" if scalar < 0 else f"the scalar {function.scalars[scalar]!r}"
        raise DifferentiationError(
            f"{function}: no derivative with respect to {which}; {by_transpose} covers only "
            f"{[group.positions for group in function.groups]}. Add an input to {by_transpose} if the kernel is "
            f"linear in it, give a plain JAX version with {by_reference}, or keep it out of the derivative "
            "with jax.lax.stop_gradient."
        )
    of, first, last = function.tangents, len(arguments), len(arguments) + len(results)
    if isinstance(of, TangentsByJAX):
        # JAX differentiates the mapped function. A map of the derivative would fail for the tangents of a
        # `jax.custom_vjp`, which JAX leaves open in reverse mode.
        values = vary_alike([*arguments, *tangents])
        moved = dict(zip(live, values[first:], strict=True))
        return tangents_of(map_levels(of.run, levels), values[:first], [moved.get(i) for i in range(first)])

    def run(*values: Any) -> list[Any]:
        moved = dict(zip(live, values[last:], strict=True))
        return of(values[:first], values[first:last], [moved.get(i) for i in range(first)])

    over = [Level((*x.axes, *[0] * len(results), *(x.axes[i] for i in live)), x.size) for x in levels]
    return list(map_levels(run, over)(*vary_alike([*arguments, *results, *tangents])))


def transpose(
    cotangents: Sequence[Any], *arguments: Any, function: Multilinear, levels: tuple[Level, ...] = ()
) -> list[Any]:
    """Return the cotangents of those *arguments* that are `ad.UndefinedPrimal`, None for the others."""
    wanted = [i for i, x in enumerate(arguments) if ad.is_undefined_primal(x)]
    group = next((group for group in function.groups if set(wanted) <= set(group.positions)), None)
    if group is None:
        raise DifferentiationError(
            f"{function}: not linear in the inputs {wanted} together; declared are "
            f"{[group.positions for group in function.groups]}, each with the other inputs held fixed. Declare a "
            f"transpose for them with {function.spelled.format('transpose')}."
        )
    results: list[Any] = [None] * len(arguments)
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return results
    known = [None if i in group.positions else x for i, x in enumerate(arguments)]
    given = [
        ad.instantiate_zeros(cotangent) if is_smooth(out.dtype) else None
        for out, cotangent in zip(function.outs, cotangents, strict=True)
    ]
    for i, cotangent in zip(group.positions, transposed(group, levels)(known, given), strict=True):
        if i in wanted and cotangent is not None:
            results[i] = match_type(cotangent, arguments[i].aval)
    return results


def transposed(group: Group, levels: Sequence[Level]) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """Return the group's transpose under the levels of ``jax.vmap``."""
    if not levels:
        return lambda known, cotangents: list(group.transpose(known, cotangents))
    inner, level = transposed(group, levels[:-1]), levels[-1]

    def run(known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        axes = [None if x is None else axis for x, axis in zip(known, level.axes, strict=True)]
        aligned = align_axes([*known, *cotangents], [*axes, *[0] * len(cotangents)])
        known, cotangents = aligned[: len(known)], aligned[len(known) :]
        found = jax.vmap(inner, in_axes=(axes, 0), axis_size=level.size)(known, cotangents)
        # The cotangent of an argument that all slices share is the sum over the slices.
        axes = [level.axes[i] for i in group.positions]
        return [x if x is None else _unmap(x, axis) for x, axis in zip(found, axes, strict=True)]

    return run


def _unmap(slices: Any, axis: int | None) -> Any:
    return slices.sum(0) if axis is None else jnp.moveaxis(slices, 0, axis)


for _primitive in (multilinear_p, split_multilinear_p):
    _primitive.multiple_results = True
    _primitive.def_impl(_impl)
    _primitive.def_effectful_abstract_eval(_abstract_eval)
    batching.primitive_batchers[_primitive] = _batch
    ad.primitive_jvps[_primitive] = _jvp
    ad.primitive_transposes[_primitive] = transpose
    mlir.register_lowering(_primitive, mlir.lower_fun(_run, multiple_results=True))
