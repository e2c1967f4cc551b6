"""``input_output_aliases``: outputs that reuse the memory of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import AliasError, ShardingRuleError
from ..structs import Struct, text_of
from .sharding.rule import ShardingRule


def checked_aliases(kernel: str, aliases: Mapping[int, int] | None) -> tuple[tuple[int, int], ...]:
    """Return ``input_output_aliases`` as sorted pairs; raise `AliasError` if they are not {input: output, ...}."""
    if aliases is None:
        return ()
    pairs = list(aliases.items()) if isinstance(aliases, Mapping) else [(aliases, None)]
    for pair in pairs:
        if not all(isinstance(index, (int, np.integer)) and index >= 0 for index in pair):
            raise AliasError(
                f"{kernel}: input_output_aliases is {aliases!r}; expected {{input: output, ...}}, indices from 0."
            )
    if len({output for _, output in pairs}) != len(pairs):
        raise AliasError(f"{kernel}: input_output_aliases {dict(pairs)} gives two inputs the memory of one output.")
    return tuple(sorted((int(i), int(o)) for i, o in pairs))


def check_alias_types(
    kernel: str, aliases: Sequence[tuple[int, int]], inputs: Sequence[Struct], outs: Sequence[Struct]
) -> None:
    """Raise `AliasError` unless each pair is an input and an output of one shape and dtype."""
    for i, o in aliases:
        for kind, index, known in (("input", i, inputs), ("output", o, outs)):
            if index >= len(known):
                raise AliasError(
                    f"{kernel}: input_output_aliases has {i}: {o}, but there is no {kind} {index}; "
                    f"the call has {len(known)} {kind}s, counted from 0."
                )
        if inputs[i].shape != outs[o].shape or inputs[i].dtype != outs[o].dtype:
            raise AliasError(
                f"{kernel}: input_output_aliases has {i}: {o}, but input {i} is {text_of(inputs[i])} and output {o} is "
                f"{text_of(outs[o])}; only arrays of one shape and dtype can share memory."
            )


def check_alias_sums(kernel: str, aliases: Sequence[tuple[int, int]], rule: ShardingRule) -> None:
    """Raise `ShardingRuleError` if an aliased output is summed over devices.

    Each device would start its partial sum from the input's values, and the total would contain these values
    repeatedly.
    """
    for i, o in aliases:
        if rule.summed[o]:
            raise ShardingRuleError(
                f"{kernel}: sharding_rule {str(rule)!r} sums output {o} over {sorted(map(str, rule.summed[o]))}, and "
                f"input_output_aliases lets it begin with input {i}, which would be added once for each device. Write "
                "the factor in brackets, or return the sum in an output of its own."
            )
