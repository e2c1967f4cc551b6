"""Plastic projections (with weights that a rule changes): the functions of the rules, and the places of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xlakernel.numba.pickles import reduce

from .fields import EMPTY, Fields
from .rules import RuleFunctions, rule_functions


class Plastic(NamedTuple):
    """A plastic projection: its number among all projections, its rule's functions, and its neurons.

    *row* is the number of its receptor, and *room* the number of its weights. In a run, *parameters* has the fields of
    the rule's parameters, and *code* is the fingerprint of the rule's functions, with the values of their globals.
    """

    number: int
    on_pre: Any
    on_post: Any
    reference: tuple[Callable[..., Any], Callable[..., Any]] | None
    sources: tuple[int, int]
    targets: tuple[int, int]
    delay: int
    row: int
    room: int
    parameters: Fields = EMPTY
    code: str = ""

    @property
    def functions(self) -> RuleFunctions:
        """The functions of the rule in Numba."""
        return rule_functions(self.on_pre, self.on_post, self.parameters)

    def __reduce__(self) -> Any:
        """Pickle the functions with the present values of their globals."""
        return reduce(self)

    def __deepcopy__(self, memo: Any) -> Plastic:
        """Return the same object, as `copy.deepcopy` does for a function."""
        return self


class Places(NamedTuple):
    """The places at which the arrays of a projection begin, a row of the table that kernels get.

    *sources* and *targets* are numbers of neurons; *pre* and *post* are the places of the sources' and targets' traces.
    *room*, *delay* and *row* are those of `Plastic`.
    """

    first_source: Any
    sources: Any
    first_target: Any
    targets: Any
    starts: Any
    incoming: Any
    pre: Any
    post: Any
    weights: Any
    room: Any
    delay: Any
    row: Any


def places(plastic: Sequence[Plastic], blocks: int) -> list[Places]:
    """Return the `Places` of each projection."""
    found, starts, incoming, traces, weights = [], 0, 0, 0, 0
    for one in plastic:
        sources, targets = one.sources[1] - one.sources[0], one.targets[1] - one.targets[0]
        post = traces + sources
        found.append(
            Places(
                one.sources[0], sources, one.targets[0], targets, starts, incoming, traces, post, weights, one.room,
                one.delay, one.row,
            )
        )  # fmt: skip
        starts, incoming = starts + sources * blocks + 1, incoming + targets + 1
        traces, weights = post + targets, weights + one.room
    return found
