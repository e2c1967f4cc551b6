"""The kinds of operands of products: dense values, spikes, and graded events."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core.backend import with_tangents

_ones_where_active = with_tangents(
    "ones where active",
    # Not ``x != 0``: with strict promotion, JAX refuses to compare a bool with a number.
    lambda x: [x.astype(bool).astype(x.dtype)],
    lambda _, ones, tangents: list(tangents),
)


@jax.jit
def ones_where_active(x: jax.Array) -> Any:
    """Return 1 where *x* is not zero and 0 elsewhere, in the dtype of *x*; the derivative is that of *x* itself."""
    return _ones_where_active(x)[0]


@dataclasses.dataclass(frozen=True)
class Operand:
    """A kind of operand.

    Attributes:
      name: ``"dense"``; ``"binary"``: elements that are not zero count as 1; or ``"weighted"``: zeros are skipped.
      prefix: the beginning of the names of the operators for this kind.
    """

    name: str
    prefix: str

    def kernel_input(self, x: Any, dtype: Any) -> Any:
        """Return *x* as kernels take it: binary events as bools, True if active; other operands in *dtype*."""
        if self.name != "binary":
            return x.astype(dtype)
        return x if x.dtype == bool else x != 0  # XLA would not remove the comparison of a bool

    def values(self, x: Any, dtype: Any) -> Any:
        """Return the numbers that the matrix is multiplied by, as a differentiable function of *x*."""
        return (ones_where_active(x) if self.name == "binary" else x).astype(dtype)

    def result_dtype(self, data: Any, x: Any) -> Any:
        """Return the dtype of the product of *data* and *x*; binary events adopt the dtype of *data*."""
        return data.dtype if self.name == "binary" else jnp.result_type(data, x)


DENSE = Operand("dense", "")
BINARY = Operand("binary", "binary_")
WEIGHTED = Operand("weighted", "weighted_")
