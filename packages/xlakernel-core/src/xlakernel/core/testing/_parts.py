"""Sharding rules on one device: each split that a rule allows, computed part by part and put together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from ..call import multilinear
from ..call.primitive import CallPrimitive
from ..call.sharding import Factor, ShardingRule
from ..specs import Struct
from ._compare import compare
from ._report import NotTried
from ._subject import Subject

_CALLED_ONCE = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint")


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call with a sharding rule, and its inputs.

    Attributes:
      owner: the kernel's or operator's name.
      rule: its rule.
      inputs: its inputs.
      outs: its results.
      run: ``run(outs, *inputs)``, the kernel on other inputs.
    """

    owner: str
    rule: ShardingRule
    inputs: Sequence[Any]
    outs: Sequence[Struct]
    run: Callable[..., Sequence[Any]]


def check_parts(subject: Subject, how: str) -> str:
    """Compute each call that has a rule in parts, along each factor that the rule lets be split.

    Args:
      subject: the kernel.
      how: how to have several devices, for the message.

    Returns:
      What was tried.
    """
    closed = jax.make_jaxpr(subject.function)(*subject.arrays())
    calls, hidden = [], False
    for call in _calls(closed.jaxpr, closed.consts, subject.arrays()):
        hidden |= call is None
        calls += [] if call is None else [call]
    tried: list[str] = []
    for call in calls:
        sizes = _sizes(call)
        for factor in sorted(sizes.keys() - call.rule.whole, key=str):
            if sizes[factor] > 1:
                _check_factor(subject, call, factor, sizes[factor])
                tried.append(f"{factor!r} of {call.owner}")
    if tried:
        remark = ", but none of those inside loops and branches" if hidden else ""
        return f"in parts, one after the other on one device, along {', '.join(dict.fromkeys(tried))}{remark}"
    if hidden:
        raise NotTried("all calls with a sharding rule are inside loops or branches", how)
    raise NotTried("no call has a sharding rule with a factor to split" if calls else "no call has a sharding rule")


def _check_factor(subject: Subject, call: _Call, factor: Factor, size: int) -> None:
    count = next(n for n in range(2, size + 1) if size % n == 0)
    outs = [_part_of(out, term, factor, count) for out, term in zip(call.outs, call.rule.outs, strict=True)]
    parts = []
    for number in range(count):
        given = [
            jnp.split(x, count, term.index(factor))[number] if factor in term else x
            for x, term in zip(call.inputs, call.rule.inputs, strict=True)
        ]
        parts.append(call.run(outs, *given))
    together = [
        jnp.concatenate(found, term.index(factor)) if factor in term else sum(found[1:], start=found[0])
        for term, found in zip(call.rule.outs, zip(*parts, strict=True), strict=True)
    ]
    whole = call.run(call.outs, *call.inputs)
    what = f"{call.owner} in {count} parts along the factor {factor!r} of its sharding_rule {str(call.rule)!r}: "
    compare(together, whole, subject.tolerance, what=what)


def _part_of(out: Struct, term: Sequence[Factor], factor: Factor, count: int) -> Struct:
    shape = [n // count if f == factor else n for n, f in zip(out.shape, term, strict=True)]
    return Struct(tuple(shape), out.dtype)


def _sizes(call: _Call) -> Mapping[Factor, int]:
    terms = zip(call.inputs, call.rule.inputs, strict=True)
    return {factor: extent for x, term in terms for factor, extent in zip(term, x.shape, strict=True)}


# Finding the calls: the program is computed equation by equation, which gives each call the inputs that it has there.


def _calls(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> Generator[_Call | None, None, list[Any]]:
    """Yield each call that has a rule, and None for those in loops and branches; return the results of *jaxpr*."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        inputs = [value(atom) for atom in eqn.invars]
        if (rule := _rule_of(eqn)) is not None:
            outs = [Struct(atom.aval.shape, atom.aval.dtype) for atom in eqn.outvars]
            yield _Call(str(eqn.params.get("call", eqn.primitive)), rule, inputs, outs, functools.partial(_run, eqn))
        if (inner := _inlined(eqn)) is not None:
            results = yield from _calls(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs)
        else:
            if any(map(_has_rule, _parts_of(eqn))):
                yield None
            found = eqn.primitive.get_bind_params(eqn.params)
            functions, params = found if isinstance(found, tuple) else ((), found)  # a tuple before jax 0.10
            results = eqn.primitive.bind(*functions, *inputs, **params)
        known.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _rule_of(eqn: Any) -> ShardingRule | None:
    if not isinstance(eqn.primitive, CallPrimitive):
        return None
    return eqn.primitive.call_of(**eqn.params).rule([atom.aval for atom in eqn.invars])


def _run(eqn: Any, outs: Sequence[Struct], *inputs: Any) -> Sequence[Any]:
    """Compute a call on other inputs, with results like *outs*, which have the batch dimensions."""
    return eqn.primitive.call_of(**eqn.params).part(outs).bind(inputs)  # type: ignore[no-any-return]


def _inlined(eqn: Any) -> Any:
    """Return what an equation calls once, as a jaxpr; None if it is no such call."""
    if eqn.primitive in (multilinear.multilinear_p, multilinear.split_multilinear_p):
        evaluate = multilinear.map_levels(eqn.params["function"].evaluate, eqn.params["levels"])
        return jax.make_jaxpr(evaluate)(*(atom.aval for atom in eqn.invars))
    return next(iter(_parts_of(eqn)), None) if eqn.primitive.name in _CALLED_ONCE else None


def _parts_of(eqn: Any) -> list[Any]:
    values = [leaf for value in eqn.params.values() for leaf in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if hasattr(getattr(value, "jaxpr", value), "eqns")]


def _has_rule(jaxpr: Any) -> bool:
    return any(
        _rule_of(eqn) is not None or any(map(_has_rule, filter(None, [*_parts_of(eqn), _inlined(eqn)])))
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )
