"""The parameters of an operator's calls: the choice of a backend, and the static keywords."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..call.derivatives.declaration import Derivative
from ..call.levels import Level
from ..call.results import is_none
from ..call.sharding.rule import ShardingRule
from ..config import Settings
from ..errors import StaticArgumentError
from ..interrupts import is_raised_by_handler


@dataclasses.dataclass(frozen=True, eq=False)
class Definition:
    """The kernels and rules of an operator when a call was traced. Equal to itself alone.

    Attributes:
      operator: the operator's primitive. The rules of an operator may pass the choices of its calls to other operators.
      generators: (platform, backend) → kernel generator.
      sharding: the rule that splits a call, or a function of the static keywords that returns it.
      rules: ``"jvp"``, ``"transpose"`` and ``"batch"`` → the rule of the JAX primitive that the author has set.
      derivative: the derivative that the author has declared; None if there is none, or if a rule replaces it.
      has_side_effect: whether the kernel runs even if its results are not used.
    """

    operator: Any
    generators: Mapping[tuple[str, str], Callable[..., Any]]
    sharding: Callable[..., str] | str | None
    rules: Mapping[str, Callable[..., Any]]
    derivative: Derivative | None
    has_side_effect: bool

    def is_part_of(self, other: Definition) -> bool:
        """Return True if *other* has the same kernels and rules, and maybe further kernels."""
        if not all(other.generators.get(place) is generator for place, generator in self.generators.items()):
            return False
        mine, others = ((one.sharding, one.rules, one.derivative, one.has_side_effect) for one in (self, other))
        return mine == others

    def sharding_rule(self, static: Static) -> ShardingRule | None:
        """Return the sharding rule of calls with these static keywords; None if there is none."""
        text = self.sharding(**dict(static.items)) if callable(self.sharding) else self.sharding
        return None if text is None else ShardingRule.parse(text, self.operator.name)


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """The choices of a call: the parameter ``dispatch`` of an operator's primitive.

    Attributes:
      backends: (platform, backend) pairs that were requested when the call was traced. For another platform, the
        lowering chooses the backend that was registered first. The lowering also replaces ``"auto"`` by a backend
        (`measure.auto`).
      settings: the settings when the call was traced, which apply to the operators that the kernel calls.
      definition: the operator's definition when the call was traced. A program that is kept and lowered later, such as
        a jaxpr, has the kernels that fit the derivatives that it was traced with.
      mapped: the levels of ``jax.vmap`` around the kernel, innermost first.
    """

    backends: tuple[tuple[str, str], ...]
    settings: Settings
    definition: Definition = dataclasses.field(repr=False)
    mapped: tuple[Level, ...] = ()

    def batched(self, axes: Sequence[int | None], size: Any) -> Dispatch:
        """Return the same choices under one more ``jax.vmap``."""
        return dataclasses.replace(self, mapped=(*self.mapped, Level(tuple(axes), size)))

    def unmapped(self) -> Dispatch:
        """Return the same choices without any ``jax.vmap``."""
        return dataclasses.replace(self, mapped=())

    @property
    def batch(self) -> tuple[Any, ...]:
        """The sizes of the leading dimensions that the results have, outermost first."""
        return tuple(level.size for level in reversed(self.mapped))


@dataclasses.dataclass(frozen=True)
class Static:
    """The static keywords of a call: the parameter ``static`` of an operator's primitive.

    JAX compares parameters by ``==``, for which 1, 1.0 and True are equal, and so are 0.0 and -0.0. The *kinds* of such
    values differ.
    """

    items: tuple[tuple[str, Any], ...]
    kinds: Hashable

    @classmethod
    def of(cls, operator: str, keywords: Mapping[str, Any]) -> Static:
        """Check the keywords of a call of *operator*.

        Raises:
          StaticArgumentError: if a keyword is traced or cannot be hashed.
        """
        for name, value in keywords.items():
            _check_static(operator, name, value)
        items = tuple(sorted(keywords.items()))
        return cls(items, tuple(kinds(value) for _, value in items))


def _check_static(operator: str, name: str, value: Any) -> None:
    if name == "dispatch":
        raise StaticArgumentError(f"{operator}: the keyword 'dispatch' is reserved for the primitive; rename it.")
    if _is_plain(value):
        return
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        raise StaticArgumentError(
            f"{operator}: the static keyword {name!r} is traced ({value}), but kernels are generated from its "
            f"value. Name it in jax.jit(..., static_argnames={name!r}), or pass it as an input array."
        )
    try:
        hash(value)
    except TypeError as error:
        raise StaticArgumentError(
            f"{operator}: the static keyword {name!r} is {value!r} of the unhashable type {type(value).__name__}; "
            "pass a tuple instead of a list, and an array as an input."
        ) from error


_PLAIN = frozenset({bool, int, str, type(None)})


def _is_plain(value: Any) -> bool:
    """Return True for a bool, int, str, None, or a tuple of these: such a value is hashable and not traced."""
    return type(value) in _PLAIN or (type(value) is tuple and _PLAIN.issuperset(map(type, value)))


def kinds(value: Any) -> Any:
    """Return a hashable description that tells equal values of different types or signs apart."""
    if type(value) in _PLAIN:
        return type(value)
    if isinstance(value, (tuple, frozenset)):
        return type(value), tuple(map(kinds, value))
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), repr(value)
    if dataclasses.is_dataclass(value):
        return type(value), tuple(kinds(getattr(value, field.name)) for field in dataclasses.fields(value))
    return type(value)


def key_of(backend: Any, outs: Any, static: Mapping[str, Any]) -> Hashable | None:
    """Return the cache key of a call with unchecked arguments; None if an argument is invalid or unhashable."""
    try:
        leaves, tree = jax.tree.flatten(outs, is_leaf=is_none)
        types = [(leaf.shape, leaf.dtype) for leaf in leaves]
        key = (backend, tree, *types, *[(name, kinds(value), value) for name, value in static.items()])
        hash(key)
    except (AttributeError, TypeError, ValueError) as error:
        if is_raised_by_handler(error):
            raise
        return None
    return key
