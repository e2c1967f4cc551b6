"""Functions that compute a whole batch, in place of a loop of the kernel over its slices."""

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
      function: ``function(*inputs, **scalars) -> results``, where inputs and results have one more leading dimension.
      scalars: the call's scalars. Scalars without known values are operands, and follow the inputs.
      tree: the structure of the results.
      order: for each leaf of *tree*, the position of the kernel's output.
    """

    kernel: str
    function: Same
    scalars: tuple[Entry, ...]
    tree: Any
    order: tuple[int, ...]

    def run(
        self, batch: Sequence[Any], outs: Sequence[Struct], inputs: Sequence[Any], scalars: Sequence[Any]
    ) -> list[Any]:
        """Call the function on a batch whose levels are merged into one dimension.

        Args:
          batch: the sizes of the levels, outermost first.
          outs: the results of one slice.
          inputs: the inputs. The leading dimensions of an input have the sizes of the levels, or 1 where slices share
            the input.
          scalars: the operands of scalars, sorted by name, with leading dimensions of 1.
        """
        size, levels = math.prod(batch), len(batch)
        merged = []
        for x in inputs:
            every = jnp.broadcast_to(x, (*batch, *x.shape[levels:]))
            merged.append(every if levels == 1 else every.reshape((size, *x.shape[levels:])))
        given = zip(self.scalars, scalars, strict=False)  # there are no operands if the scalars are static
        operands = {name: x.reshape(()) for (name, _, data), x in given if data is None}
        found = self.function(*merged, **plain_numbers(self.scalars), **operands)
        structs = [Struct((size, *outs[i].shape), outs[i].dtype) for i in self.order]
        leaves = flat_results(self.kernel, "vmap_method", found, structs, self.tree)
        results = [leaves[self.order.index(i)] for i in range(len(outs))]
        if levels == 1:
            return results
        return [x.reshape((*batch, *out.shape)) for x, out in zip(results, outs, strict=True)]
