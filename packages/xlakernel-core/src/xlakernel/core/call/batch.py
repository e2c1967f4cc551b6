"""Batches that a function computes as a whole, in place of the kernel for each slice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ..identity.same import Same
from ..structs import Struct
from .results import flat_results
from .scalars import Entry, plain_numbers


@dataclasses.dataclass(frozen=True)
class BatchFunction:
    """The function given as a kernel's ``vmap_method``, for one call.

    Attributes:
      kernel: the kernel's name, for messages.
      function: ``function(*inputs, **scalars) -> results``, for inputs and results with one leading dimension more.
      scalars: the call's scalars; those without known values are operands behind the inputs.
      tree: the structure of the results.
      order: the number of the kernel's output for each leaf of *tree*.
    """

    kernel: str
    function: Same
    scalars: tuple[Entry, ...]
    tree: Any
    order: tuple[int, ...]

    def run(
        self, batch: Sequence[Any], outs: Sequence[Struct], inputs: Sequence[Any], scalars: Sequence[Any]
    ) -> list[Any]:
        """Compute a batch; the function gets its levels merged into one.

        *batch* has the sizes of its dimensions, outermost first. All inputs and results have these dimensions; they are
        1 for an input that the slices share, and for the operands of the scalars, which are sorted by name.
        """
        size, levels = math.prod(batch), len(batch)
        merged = []
        for x in inputs:
            every = jnp.broadcast_to(x, (*batch, *x.shape[levels:]))
            merged.append(every if levels == 1 else every.reshape((size, *x.shape[levels:])))
        given = zip(self.scalars, scalars, strict=False)  # static ones are no operands
        operands = {name: x.reshape(()) for (name, _, data), x in given if data is None}
        found = self.function(*merged, **plain_numbers(self.scalars), **operands)
        structs = [Struct((size, *outs[i].shape), outs[i].dtype) for i in self.order]
        leaves = flat_results(self.kernel, "vmap_method", found, structs, self.tree)
        results = [leaves[self.order.index(i)] for i in range(len(outs))]
        if levels == 1:
            return results
        return [x.reshape((*batch, *out.shape)) for x, out in zip(results, outs, strict=True)]
