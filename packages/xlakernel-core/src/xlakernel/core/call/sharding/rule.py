"""Einsum-like rules that split a call over devices.

A rule such as ``"m k, k n -> m n"`` gives each dimension of the inputs and outputs a name, its factor. A factor of both
inputs and outputs is split over the mesh axes that split these arrays. A factor that the outputs lack is summed over,
as in einsum: each device computes a partial result, and JAX adds the partial results. This is right for a sum of
products, and wrong for a mean, a maximum, or a sum with a bias. A factor in brackets, ``"i [j] -> i [j]"``, is never
split: each device has the whole dimension. A factor that no input has must be in brackets.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from ...errors import ShardingRuleError
from ...structs import Struct, counted
from ..levels import Level

Factor = str | int  # a number is a batch dimension that jax.vmap added
Terms = tuple[tuple[Factor, ...], ...]
Axes = Mapping[Factor, tuple[str, ...]]  # factor → mesh axes that split it


@dataclasses.dataclass(frozen=True)
class ShardingRule:
    """A parsed rule.

    Attributes:
      inputs: the factors of each input's dimensions.
      outs: the factors of each output's dimensions.
      whole: the factors that are never split.
    """

    inputs: Terms
    outs: Terms
    whole: frozenset[Factor]

    @classmethod
    def parse(cls, text: str, owner: str) -> ShardingRule:
        """Parse *text*, the rule of the kernel *owner*; raise `ShardingRuleError` if it is not a rule."""
        sides = text.split("->") if isinstance(text, str) else []
        if len(sides) != 2:
            raise ShardingRuleError(f'{owner}: sharding_rule is {text!r}; expected "inputs -> outputs". {_EXAMPLE}')
        names = [[_names(term, text, owner) for term in side.split(",")] for side in sides]
        inputs, outs = (tuple(tuple(name.strip("[]") for name in term) for term in side) for side in names)
        bracketed = {name.strip("[]") for side in names for term in side for name in term if name.startswith("[")}
        for term in (*inputs, *outs):
            if len(set(term)) < len(term):
                raise ShardingRuleError(
                    f"{owner}: sharding_rule {text!r} has a factor twice in {' '.join(term)!r}; give each dimension of "
                    "an array a factor of its own."
                )
        in_inputs, in_some = ({name for term in terms for name in term} for terms in (inputs, outs))
        bare = {name for side in names for term in side for name in term if not name.startswith("[")}
        for name in sorted(bracketed & bare):
            raise ShardingRuleError(
                f"{owner}: sharding_rule {text!r} has {name!r} with brackets and without; a factor that is never split "
                f"is written [{name}] wherever it stands."
            )
        for name in sorted(in_some - in_inputs - bracketed):  # no input determines how it is split
            raise ShardingRuleError(
                f"{owner}: sharding_rule {text!r} has the factor {name!r} in an output and in no input, so each device "
                f"computes the whole dimension: write [{name}], or give an input that factor."
            )
        # If only some outputs have a factor, another output may be summed over the factor, or not depend on it. The
        # rule does not tell, so such a factor is not split.
        unclear = {name for name in in_some if not all(name in term for term in outs)}
        return cls(inputs, outs, frozenset(bracketed | unclear))

    def __str__(self) -> str:
        return " -> ".join(
            ", ".join(" ".join(f"[{f}]" if f in self.whole else str(f) for f in term) for term in side)
            for side in (self.inputs, self.outs)
        )

    def check(self, owner: str, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Raise `ShardingRuleError` if the rule does not fit a call of these types."""
        for kind, terms, structs in (("input", self.inputs, inputs), ("output", self.outs, outs)):
            if len(terms) != len(structs):
                raise ShardingRuleError(
                    f"{owner}: sharding_rule {str(self)!r} describes {counted(len(terms), kind)}; the call has "
                    f"{len(structs)}."
                )
            for i, (term, struct) in enumerate(zip(terms, structs, strict=True)):
                if len(term) != len(struct.shape):
                    # "ij" is one factor, where einsum reads two.
                    letters = " ".join("".join(map(str, term)))
                    hint = f" Factors are separated by spaces: {letters!r}." if len(term) == 1 else ""
                    raise ShardingRuleError(
                        f"{owner}: sharding_rule {str(self)!r} gives {kind} {i} {counted(len(term), 'dimension')}; its "
                        f"shape is {struct.shape}.{hint if len(letters.split()) == len(struct.shape) else ''}"
                    )
        sizes: dict[Factor, Any] = {}
        for terms, structs in ((self.inputs, inputs), (self.outs, outs)):
            for factor, extent in extents_of(terms, structs):
                if sizes.setdefault(factor, extent) != extent:
                    raise ShardingRuleError(
                        f"{owner}: factor {factor!r} of sharding_rule {str(self)!r} is {sizes[factor]} in one place "
                        f"and {extent} in another; give dimensions of different sizes different factors."
                    )
        for i, (missing, out) in enumerate(zip(self.summed, outs, strict=True)):
            if missing and not jax.dtypes.issubdtype(out.dtype, np.number):
                raise ShardingRuleError(
                    f"{owner}: sharding_rule {str(self)!r} sums output {i} over {sorted(map(str, missing))}, but it is "
                    f"{out.dtype}; write a factor that the kernel needs whole in brackets."
                )

    @property
    def summed(self) -> tuple[frozenset[Factor], ...]:
        """For each output, the factors that it is summed over."""
        split = {factor for term in self.inputs for factor in term} - self.whole
        return tuple(frozenset(split - set(term)) for term in self.outs)

    def batched(self, batch: Sequence[Any], inputs: Sequence[Any]) -> ShardingRule:
        """Return the rule of the same call with leading dimensions of the sizes *batch*.

        All slices share an input that has an extent of 1 in such a dimension.
        """
        levels = len(batch)
        terms = tuple(
            tuple(i if x.shape[i] == batch[i] else levels + i for i in range(levels)) + term
            for x, term in zip(inputs, self.inputs, strict=True)
        )
        shared = {levels + i for i in range(levels)}
        unmapped = set(range(levels)) - {factor for term in terms for factor in term}  # levels that no input has
        outs = tuple((*range(levels), *term) for term in self.outs)
        return ShardingRule(terms, outs, self.whole | shared | unmapped)

    def with_scalars(self, count: int) -> ShardingRule:
        """Return the rule of the same call with *count* scalars after its inputs."""
        return ShardingRule((*self.inputs, *[()] * count), self.outs, self.whole)

    def under(self, levels: Sequence[Level]) -> ShardingRule:
        """Return the rule of the same call under these levels of ``jax.vmap``, innermost first."""
        inputs, outs = self.inputs, self.outs
        for number, level in enumerate(levels):
            inputs = tuple(
                term if axis is None else (*term[:axis], number, *term[axis:])
                for term, axis in zip(inputs, level.axes, strict=True)
            )
            outs = tuple((number, *term) for term in outs)
        return ShardingRule(inputs, outs, self.whole)

    def axes(self, inputs: Sequence[Any], outs: Sequence[Any] = ()) -> Axes:
        """Choose the mesh axes that split each factor, by the `PartitionSpec` of each output, then of each input."""
        chosen: dict[Factor, tuple[str, ...]] = {}
        used: set[str] = set()
        for terms, specs in ((self.outs, outs), (self.inputs, inputs)):
            for term, spec in zip(terms, specs, strict=False):
                for factor, entry in zip(term, spec, strict=False):
                    names = entry if isinstance(entry, tuple) else (entry,)
                    free = not used.intersection(names)  # a mesh axis splits only one factor
                    if entry not in (None, ()) and factor not in chosen and factor not in self.whole and free:
                        chosen[factor] = names
                        used.update(names)
        return chosen

    def result_specs(self, inputs: Sequence[Any]) -> list[PartitionSpec]:
        """Return the shardings of the results over mesh axes of explicit type, given the inputs' types."""
        return self.specs(self.outs, self.axes([x.sharding.spec for x in inputs]))

    def specs(self, terms: Terms, axes: Axes) -> list[PartitionSpec]:
        """Return the shardings of arrays of these factors."""
        return [PartitionSpec(*(axes.get(factor) for factor in term)) for term in terms]


_EXAMPLE = 'A matrix product is "m k, k n -> m n"; a factor in brackets, as in "i [j] -> i [j]", is never split.'


def _names(term: str, text: str, owner: str) -> list[str]:
    names = term.split()
    for name in names:
        if not re.fullmatch(r"[A-Za-z_]\w*|\[[A-Za-z_]\w*\]", name):
            raise ShardingRuleError(
                f"{owner}: sharding_rule {text!r} has {name!r} where a factor should be, a name or a name in brackets. "
                f"{_EXAMPLE}"
            )
    return names


def extents_of(terms: Terms, arrays: Sequence[Any]) -> Iterator[tuple[Factor, Any]]:
    """Yield each factor with the extent of its dimension."""
    for term, array in zip(terms, arrays, strict=True):
        yield from zip(term, array.shape, strict=True)
