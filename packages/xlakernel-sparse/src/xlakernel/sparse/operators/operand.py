"""What a matrix is multiplied by: dense values, spikes, or values of which most are zero."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core.backend import with_tangents

_ones_where_active = with_tangents(
    "ones where active",
    # A bool is compared with no number where JAX promotes strictly.
    lambda x: [x.astype(bool).astype(x.dtype)],
    lambda _, ones, tangents: list(tangents),
)


@jax.jit
def ones_where_active(x: jax.Array) -> Any:
    """Return 1 where *x* is not zero and 0 elsewhere, of its dtype; differentiated as *x* itself."""
    return _ones_where_active(x)[0]


@dataclasses.dataclass(frozen=True)
class Operand:
    """A kind of operand.

    Attributes:
      name: ``"dense"``, ``"binary"``: what is not zero counts as 1, or ``"weighted"``: zeros are skipped.
      prefix: what the names of its operators begin with.
      description: what a product computes with it, for documentation.
    """

    name: str
    prefix: str
    description: str

    def kernel_input(self, x: Any, dtype: Any) -> Any:
        """Return *x* as kernels take it: whether each element is active, or values of *dtype*."""
        if self.name != "binary":
            return x.astype(dtype)
        return x if x.dtype == bool else x != 0  # which XLA would compute for a bool too

    def values(self, x: Any, dtype: Any) -> Any:
        """Return the numbers that the matrix is multiplied by, as a differentiable function of *x*."""
        return (ones_where_active(x) if self.name == "binary" else x).astype(dtype)

    def result_dtype(self, data: Any, x: Any) -> Any:
        """Return the dtype of the product of *data* and *x*: events have none of their own."""
        return data.dtype if self.name == "binary" else jnp.result_type(data, x)


DENSE = Operand("dense", "", "all of its values count")
BINARY = Operand("binary", "binary_", "what is not zero counts as 1, NaN too; nothing is added for zeros")
WEIGHTED = Operand("weighted", "weighted_", "its values count; nothing is added for zeros")

OPERANDS = {operand.name: operand for operand in (DENSE, BINARY, WEIGHTED)}
