"""Warp's adjoint of a kernel, as a kernel: for ``jax_kernel(enable_backward=True)``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from xlakernel.core.backend import Struct
from xlakernel.core.backend.gpu import arrays_of
from xlakernel.core.errors import DifferentiationError

from . import _inside
from ._kernel import WarpKernel
from ._launch import WarpLaunch
from ._parameters import concrete
from ._platform import Static


@dataclasses.dataclass(frozen=True, eq=False)
class AdjointKernel(WarpKernel):
    """Computes the cotangents of a kernel's inputs.

    Its inputs are those of the kernel, then the kernel's results, then the cotangents of those results that are of a
    floating-point dtype. Its results are the cotangents of such inputs, which begin as zeros that Warp adds to; then
    the kernel's results and their cotangents once more, in the same memory. Warp writes both: it clears the cotangent
    of an element at each store, adds to it where the kernel reads what it wrote, and runs the functions that the kernel
    calls once more, with what they write.

    Attributes:
      count: arrays that the kernel takes as inputs.
    """

    count: int = 0

    derivative_advice = ""

    def check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Nothing is to be checked: the kernel has run on the same arrays."""

    def launch(self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static) -> WarpLaunch:
        """Return what a call does."""
        arrays = [parameter for parameter in self.parameters if parameter.is_array]
        fresh = len(outs) - (len(inputs) - self.count)
        back = len(inputs) + fresh  # where the kernel's results are among this one's
        numbers = {p.name: i if i < self.count else back + i - self.count for i, p in enumerate(arrays)}
        results = iter(range(len(inputs), back))
        cotangents = iter(range(back + len(arrays) - self.count, len(inputs) + len(outs)))
        adjoints = {
            parameter.name: (next(results if number < self.count else cotangents) if is_floating(struct) else None)
            for number, (parameter, struct) in enumerate(zip(arrays, inputs, strict=False))
        }
        structs = {p.name: struct for p, struct in zip(arrays, inputs, strict=False)}
        given = [(p, structs[p.name] if p.is_array else static[p.name]) for p in self.parameters]
        slots = []
        for parameter, argument in given:
            slot = self._slot(parameter, argument, numbers.get(parameter.name, -1))
            slots.append(dataclasses.replace(slot, adjoint=adjoints.get(parameter.name)))
        zeros = tuple((len(inputs) + i, bytes(out.dtype.itemsize)) for i, out in enumerate(outs[:fresh]))
        return WarpLaunch(
            f"the adjoint of {self.name}",
            concrete(self.kernel, given),
            self.threads(inputs[: self.count]),
            self.block_dim,
            tuple(slots),
            arrays_of(inputs, outs),
            zeros,
            adjoint=True,
        )


def check_has_adjoint(name: str, kernel: Any) -> None:
    """Raise `DifferentiationError` if Warp was told to make no adjoint of a kernel."""
    if not _inside.option(kernel, "enable_backward"):
        raise DifferentiationError(
            f"{name}: Warp has no adjoint of it, as enable_backward is False for it, its module or in warp.config. "
            "Take warp.kernel(enable_backward=True), or warp.set_module_options({'enable_backward': True})."
        )


def is_floating(struct: Struct) -> bool:
    """Whether an array has cotangents of its own dtype."""
    return bool(jnp.issubdtype(struct.dtype, jnp.floating))
