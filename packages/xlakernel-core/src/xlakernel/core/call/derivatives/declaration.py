"""Derivatives declared by the author of a kernel or an operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import KernelTypeError
from ...structs import counted

#: The ways to declare a derivative, for messages.
WAYS = (
    "reference= (a plain JAX function that computes the same), jvp= (tangents of the results), vjp= (cotangents of the "
    "inputs), or transpose= (for inputs that it is linear in)"
)

Transpose = Mapping[int | tuple[int, ...], Callable[..., Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Derivative:
    """The declared derivative of a kernel or an operator; `declare` makes it.

    Attributes:
      owner: the kernel's or operator's name.
      reference: ``reference(*inputs, **static) -> results``, in plain JAX.
      jvp: ``jvp(primals, tangents, **static) -> tangents of the results``.
      vjp: ``vjp(primals, results, cotangents, **static) -> cotangents of the inputs``.
      transposes: pairs ``(positions, function)``. The kernel is jointly linear in the inputs at the *positions*, and
        ``function(inputs, cotangents, **static)`` returns their cotangents.
      spelled: how the author declares a derivative, for messages: ``"{}="`` for a kernel, ``"def_{}"`` for an operator.
    """

    owner: str
    reference: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vjp: Callable[..., Any] | None
    transposes: tuple[tuple[tuple[int, ...], Callable[..., Any]], ...]
    spelled: str = "{}="

    def check_arity(self, inputs: int) -> None:
        """Raise `KernelTypeError` if a transpose is declared for a position beyond this number of *inputs*."""
        named = max((i for group, _ in self.transposes for i in group), default=-1)
        if named >= inputs:
            raise KernelTypeError(
                f"{self.owner}: {self.spelled.format('transpose')} names the input {named}, but the call has "
                f"{counted(inputs, 'input')}, counted from 0 without results and scalars."
            )


def declare(
    owner: str,
    *,
    reference: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    transpose: Transpose | None = None,
    spelled: str = "{}=",
) -> Derivative | None:
    """Check the declarations of an author; return None if there are none.

    Raises:
      KernelTypeError: if a declaration is not a function, or declarations contradict each other.
    """
    functions = {"reference": reference, "jvp": jvp, "vjp": vjp}
    for keyword, function in functions.items():
        if function is not None and not callable(function):
            raise KernelTypeError(
                f"{owner}: {keyword} is {function!r} of type {type(function).__name__}; expected a function."
            )
    if transpose is None:
        if all(function is None for function in functions.values()):
            return None
        return Derivative(owner, reference, jvp, vjp, (), spelled)
    if jvp is not None or vjp is not None:
        words = {way: spelled.format(way) for way in ("transpose", "jvp", "vjp", "reference")}
        raise KernelTypeError(
            "{owner}: {transpose} already defines the derivative that {jvp} and {vjp} would, for the inputs that the "
            "kernel is linear in. Give either the one or the others; {reference} may cover other inputs beside a "
            "transpose.".format(owner=owner, **words)
        )
    return Derivative(owner, reference, None, None, _check_transposes(owner, transpose), spelled)


def _check_transposes(owner: str, transpose: Any) -> tuple[tuple[tuple[int, ...], Callable[..., Any]], ...]:
    pairs = list(transpose.items()) if isinstance(transpose, Mapping) else []
    groups = [group for key, _ in pairs if (group := group_of(key)) is not None]
    positions = [i for group in groups for i in group]
    if (
        not pairs
        or len(groups) < len(pairs)
        or len(set(positions)) < len(positions)
        or not all(callable(function) for _, function in pairs)
    ):
        raise KernelTypeError(
            f"{owner}: transpose is {transpose!r}; expected {{input: function, ...}}. An input is a position, counted "
            "from 0, or a tuple of positions if the kernel is jointly linear in several inputs; each occurs once."
        )
    return tuple((group, function) for group, (_, function) in zip(groups, pairs, strict=True))


def group_of(inputs: Any) -> tuple[int, ...] | None:
    """Return the positions of an input, or of a tuple of several inputs; None if *inputs* is neither."""
    group = inputs if isinstance(inputs, tuple) else (inputs,)
    if not group or not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) and i >= 0 for i in group):
        return None
    return tuple(map(int, group)) if len(set(group)) == len(group) else None
