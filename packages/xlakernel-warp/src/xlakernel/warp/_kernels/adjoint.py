"""Warp's adjoint of a kernel, as a kernel: for ``jax_kernel(enable_backward=True)``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from xlakernel.core.backend import Struct, VmapMethod, kernel_function
from xlakernel.core.backend.gpu import arrays_of
from xlakernel.core.errors import DifferentiationError

from .._internals import code
from .._platforms.base import Static
from .kernel import WarpKernel
from .launch import WarpLaunch


class AdjointKernel(WarpKernel):
    """Computes the cotangents of a kernel's inputs.

    Its inputs are those of the kernel, then the kernel's results, then the cotangents of those results that are of a
    floating-point dtype. Its results are the cotangents of the floating-point inputs, zeros to which Warp adds, then
    the kernel's results and their cotangents once more, in the same memory. Warp writes to both: it clears the
    cotangent of an element where the kernel stores it, adds to it where the kernel reads it back, and runs the
    functions that the kernel calls again, which may write to the results.
    """

    derivative_advice = ""

    def check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Do nothing: the kernel has run on the same arrays."""

    def launch(self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static) -> WarpLaunch:
        """Return the launch of a call.

        The arrays are numbered as core passes them: the inputs, the cotangents of inputs (the *fresh* outputs), then
        results and cotangents of results, which share the memory of the inputs that follow the kernel's own.
        """
        count, names = self.adjoint_of or 0, [parameter.name for parameter in self.parameters if parameter.is_array]
        fresh = len(outs) - (len(inputs) - count)
        results = len(inputs) + fresh
        numbers = dict(zip(names, [*range(count), *range(results, results + len(names) - count)], strict=True))
        of_inputs = iter(range(len(inputs), results))
        of_results = iter(range(results + len(names) - count, len(inputs) + len(outs)))
        adjoints = {
            name: next(of_inputs if numbers[name] < count else of_results)
            for name, struct in zip(names, inputs, strict=False)
            if is_floating(struct)
        }
        slots, kernel = self._slots(numbers, (*inputs, *outs), static)
        pairs = zip(self.parameters, slots, strict=True)
        return WarpLaunch(
            f"the adjoint of {self.name}",
            kernel,
            self.threads(inputs[:count]),
            self.block_dim,
            tuple(dataclasses.replace(slot, adjoint=adjoints.get(parameter.name)) for parameter, slot in pairs),
            arrays_of(inputs, outs),
            tuple((len(inputs) + i, bytes(out.dtype.itemsize)) for i, out in enumerate(outs[:fresh])),
            adjoint=True,
        )


def adjoint_vjp(kernel: WarpKernel, count: int, vmap_method: VmapMethod) -> Callable[..., list[Any]]:
    """Return a ``vjp`` function that runs Warp's adjoint of a kernel with *count* inputs."""
    scalars = [parameter.name for parameter in kernel.parameters if not parameter.is_array]

    # By position only: a kernel's scalar may have one of these names.
    def vjp(primals: Any, results: Any, cotangents: Any, /, **static: Any) -> list[Any]:
        _check_has_adjoint(kernel)
        of_results = [c for r, c in zip(results, cotangents, strict=True) if is_floating(r)]
        given = [*primals, *results, *of_results]
        fresh = [x for x in primals if is_floating(x)]
        outs = [Struct(x.shape, x.dtype) for x in (*fresh, *results, *of_results)]
        # Warp overwrites the results and their cotangents: XLA copies those that are used elsewhere.
        shared = {len(primals) + i: len(fresh) + i for i in range(len(results) + len(of_results))}
        adjoint = AdjointKernel(
            kernel.kernel,
            kernel.parameters,
            kernel.dims,
            kernel.block_dim,
            aliases=tuple(shared.items()),
            cpu_blocks=kernel.cpu_blocks,
            adjoint_of=count,
        )
        filled = [*scalars, *(f"array {i}" for i in range(len(given) + len(outs)))]
        run = kernel_function(
            adjoint,
            dict.fromkeys(filled, inspect.Parameter.empty),
            outs,
            vmap_method=vmap_method,
            input_output_aliases=shared,
            has_side_effect=False,
        )
        found = iter(run(*given, **static))
        return [next(found) if is_floating(x) else None for x in primals]

    return vjp


def _check_has_adjoint(kernel: WarpKernel) -> None:
    """Raise `DifferentiationError` if Warp makes no adjoint of a kernel."""
    if not code.option(kernel.kernel, "enable_backward"):
        raise DifferentiationError(
            f"{kernel.name}: Warp has no adjoint of it, as enable_backward is False for it, its module or in "
            "warp.config. Set warp.kernel(enable_backward=True), or warp.set_module_options({'enable_backward': True})."
        )


def is_floating(struct: Any) -> bool:
    """Return True if an array has cotangents of its own dtype."""
    return bool(jnp.issubdtype(struct.dtype, jnp.floating))
