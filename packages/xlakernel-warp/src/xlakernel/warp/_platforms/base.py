"""The base class of kernels and functions that run on the CPU and on GPUs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlakernel.core.backend import Kernel, Struct, Target

from .._internals.threads import guard
from .._parameters import Parameter

#: Static scalars by name.
Static = Mapping[str, np.generic]


class OnBothPlatforms(Kernel):
    """A kernel, or a function that launches kernels. Subclasses are dataclasses with the fields below.

    Attributes:
      parameters: its parameters.
      platform: the platform that a program is lowered for; empty before lowering.
    """

    platforms = ("cpu", "cuda")
    parameters: tuple[Parameter, ...]
    platform: str

    @property
    def scalars(self) -> tuple[str, ...]:  # type: ignore[override]  # read-only here
        """The names of the parameters that are passed by value."""
        return tuple(parameter.name for parameter in self.parameters if not parameter.is_array)

    def number(self, name: str, value: Any) -> Any:
        """Return a scalar of a call as xlakernel.core takes it."""
        return next(p for p in self.parameters if p.name == name).number(value, self.name)

    def on(self, platform: str) -> Kernel:
        """Return the kernel for one platform."""
        return dataclasses.replace(self, platform=platform)  # type: ignore[type-var]

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
        """Have Warp compile the kernel or function, and register the handler that runs it."""
        guard()
        return self.register(inputs, outs, static, ordered=ordered, debug=debug)

    @abc.abstractmethod
    def register(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static, *, ordered: bool, debug: bool
    ) -> Target:
        """Register the handler for the field *platform*; see `target`."""
