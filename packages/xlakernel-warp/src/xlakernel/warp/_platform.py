"""Kernels and functions of Warp's are described once, and run by something else on each platform."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlakernel.core.backend import Kernel, Struct, Target

from ._alone import guard
from ._parameters import Parameter

Static = Mapping[str, np.generic]


class OnBothPlatforms(Kernel):
    """What is described; `on` a platform it is an `OnPlatform`."""

    platforms = ("cpu", "cuda")
    parameters: tuple[Parameter, ...]

    @property
    def scalars(self) -> tuple[str, ...]:  # type: ignore[override]  # read-only here
        """The names of the parameters that are passed by value."""
        return tuple(parameter.name for parameter in self.parameters if not parameter.is_array)

    def number(self, name: str, value: Any) -> Any:
        """Return a scalar that a call gives as core takes it."""
        return next(p for p in self.parameters if p.name == name).number(value, self.name)

    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Not called: `on` a platform it is another one's."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class OnPlatform(Kernel):
    """What runs it on one platform.

    Attributes:
      described: what is run.
    """

    described: Any

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The name of what is run."""
        return str(self.described.name)

    def target(
        self,
        inputs: Sequence[Struct],
        outs: Sequence[Struct],
        static: Static,
        *,
        ordered: bool = False,
        debug: bool = False,
        levels: int = 0,
    ) -> Target:
        """Have Warp compile it, and register what runs it."""
        guard()
        return self.registered(inputs, outs, static, ordered=ordered, debug=debug)

    @abc.abstractmethod
    def registered(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Return its target; see `target`."""
