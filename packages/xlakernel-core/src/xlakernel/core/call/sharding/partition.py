"""Calls that XLA splits over devices by their sharding rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, get_abstract_mesh

from ..._compat import replicated, spec_of, without_explicit_axes
from ...config import is_exporting
from ...structs import Struct
from .rule import Axes, ShardingRule, extents_of


def may_split() -> bool:
    """Return True if XLA can split calls by rules: False inside `jax.shard_map`, in an export and without Shardy."""
    is_manual = AxisType.Manual in get_abstract_mesh().axis_types
    return not (is_manual or is_exporting()) and bool(jax.config.jax_use_shardy_partitioner)  # type: ignore[attr-defined]


def partitioned(
    rule: ShardingRule, run: Callable[..., list[Any]], outs: Sequence[Struct]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that computes a call, and that XLA splits by *rule*.

    ``run(part, *inputs)`` computes one device's part of the call, with the results *part*; *outs* are all results. Rule
    and results include batch dimensions.
    """

    def whole(*inputs: Any) -> tuple[Any, ...]:
        return tuple(run(list(outs), *inputs))

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        given = [[array.sharding for array in arrays] for arrays in (arguments, results)]
        if mesh.empty:  # the arrays are split, and belong to no mesh
            return mesh, whole, *(tuple(map(replicated, shardings)) for shardings in (given[1], given[0]))
        axes = _divisible(rule, mesh, rule.axes(*([spec_of(x, mesh) for x in found] for found in given)), arguments)
        sums = [tuple(name for factor in missing for name in axes.get(factor, ())) for missing in rule.summed]

        def part(*inputs: Any) -> tuple[Any, ...]:
            sizes = dict(extents_of(rule.inputs, inputs))
            local = [
                Struct(tuple(sizes.get(f, n) for f, n in zip(term, out.shape, strict=True)), out.dtype)
                for term, out in zip(rule.outs, outs, strict=True)
            ]
            with without_explicit_axes(mesh):
                found = run(local, *inputs)
                return tuple(jax.lax.psum(x, names) if names else x for x, names in zip(found, sums, strict=True))

        out_shardings, in_shardings = (
            tuple(NamedSharding(mesh, spec) for spec in rule.specs(terms, axes)) for terms in (rule.outs, rule.inputs)
        )
        return mesh, part, out_shardings, in_shardings

    call = custom_partitioning(whole)
    letters = {f: f"f{i}" for i, f in enumerate(dict.fromkeys(f for t in (*rule.inputs, *rule.outs) for f in t))}
    inputs, results = (
        ", ".join(" ".join(letters[f] for f in term) for term in terms) for terms in (rule.inputs, rule.outs)
    )
    summed = frozenset().union(*rule.summed)
    keywords = {
        "reduction_factors": tuple(letters[f] for f in letters if f in summed),
        "need_replication_factors": tuple(letters[f] for f in letters if f in rule.whole),
    }
    # `spec_of` decodes shardings: JAX's decoder fails if a sharding splits a mesh axis in two, as after a reshape.
    text = f"{inputs} -> {results}"
    call.def_partition(partition=partition, sharding_rule=text, decode_shardings=False, **keywords)
    return call


def _divisible(rule: ShardingRule, mesh: Any, axes: Axes, inputs: Sequence[Any]) -> Axes:
    """Return *axes* without factors of a size that the mesh does not divide: all parts of a call have one shape."""
    sizes = dict(extents_of(rule.inputs, inputs))
    counts = {factor: int(np.prod([mesh.shape[name] for name in names])) for factor, names in axes.items()}
    return {factor: names for factor, names in axes.items() if sizes[factor] % counts[factor] == 0}
