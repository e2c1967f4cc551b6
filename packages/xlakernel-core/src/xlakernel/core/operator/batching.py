"""A rule for ``jax.vmap`` that an operator's author gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.interpreters import batching

from .dispatch import Static
from .primitive import OperatorPrimitive


def define(primitive: OperatorPrimitive, user_rule: Callable[..., Any]) -> None:
    """Batch the operator by *user_rule*, which sees calls of the operator itself only."""

    def rule(ins: Sequence[Any], axes: Sequence[int | None], *, static: Static, **params: Any) -> Any:
        # A call that was mapped before the rule was set has no axes that the rule could know of.
        if params["dispatch"].mapped:
            return primitive.batch(ins, axes, static=static, **params)
        return user_rule(ins, axes, **params, **dict(static.items))

    batching.primitive_batchers[primitive] = rule
