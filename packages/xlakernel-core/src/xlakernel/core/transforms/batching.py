"""``jax.vmap`` of an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jax.interpreters import batching

from ..primitive import Dispatch, Static

if TYPE_CHECKING:
    from ..kernel import XLACustomKernel


def map_kernel(op: XLACustomKernel) -> None:
    """Batch *op* by mapping whichever kernel the call is lowered to."""
    batching.primitive_batchers[op.primitive] = _mapping_rule(op)


def _mapping_rule(op: XLACustomKernel) -> Callable[..., Any]:
    def rule(ins: Sequence[Any], axes: Sequence[int | None], *, dispatch: Dispatch, **params: Any) -> Any:
        size = next(x.shape[axis] for x, axis in zip(ins, axes, strict=True) if axis is not None)
        results = op.primitive.bind(*ins, dispatch=dispatch.batched(axes, size), **params)
        return results, [0] * len(results)

    return rule


def define(op: XLACustomKernel, user_rule: Callable[..., Any]) -> None:
    """Batch *op* by *user_rule*, which sees calls of the operator itself only."""
    mapped_rule = _mapping_rule(op)

    def rule(ins: Sequence[Any], axes: Sequence[int | None], *, static: Static, **params: Any) -> Any:
        # A call that was mapped before the rule was set has no axes that the rule could know of.
        if params["dispatch"].mapped:
            return mapped_rule(ins, axes, static=static, **params)
        return user_rule(ins, axes, **params, **dict(static.items))

    batching.primitive_batchers[op.primitive] = rule
