"""``jax.vmap`` of products: a batch of operands is more columns of one operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xlakernel.core import XLACustomKernel


def fold_columns(op: XLACustomKernel, columns: XLACustomKernel) -> Callable[..., Any]:
    """Return the batching rule of *op*, a product whose last input is the operand.

    Where only the operand has a batch, its slices become columns, and *columns* multiplies them all at once: the
    matrix is read once. Otherwise the kernel is mapped.
    """

    def rule(ins: Sequence[Any], axes: Sequence[int | None], *, outs: Any, dispatch: Any, **static: Any) -> Any:
        *matrix, x = ins
        axis = axes[-1]
        if axis is None or any(a is not None for a in axes[:-1]):
            size = next(x.shape[a] for x, a in zip(ins, axes, strict=True) if a is not None)
            return op.primitive.bind(*ins, outs=outs, dispatch=dispatch.batched(axes, size), **static), [0]
        (out,) = outs
        x = jnp.moveaxis(x, axis, -1)
        size = x.shape[-1]
        folded = jax.ShapeDtypeStruct((out.shape[0], math.prod(out.shape[1:]) * size), out.dtype)
        x = x.reshape(x.shape[0], folded.shape[1])
        (y,) = columns.primitive.bind(*matrix, x, outs=[folded], dispatch=dispatch, **static)
        return [y.reshape(*out.shape, size)], [len(out.shape)]

    return rule
