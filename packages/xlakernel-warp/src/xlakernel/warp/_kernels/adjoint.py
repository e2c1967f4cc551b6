"""Warp's adjoint of a kernel (its reverse-mode derivative) as a kernel, for ``jax_kernel(enable_backward=True)``."""

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
    """The adjoint of a kernel, which computes the cotangents of the kernel's inputs.

    The adjoint's inputs are the kernel's inputs, the kernel's results, and the cotangents of the floating-point
    results. Its outputs are the cotangents of the floating-point inputs, zeros that Warp adds to, and then the kernel's
    results and their cotangents once more, in the same memory, because Warp may write to both. Where the kernel stores
    an element, Warp clears the element's cotangent; where the kernel reads it back, Warp adds to the cotangent. Warp
    also runs the functions that the kernel calls once more, and these may write to the results.
    """

    derivative_advice = ""

    def check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Do nothing: the kernel's own call has checked the arrays."""

    def launch(self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static) -> WarpLaunch:
        """Return the launch of a call.

        xlakernel.core passes the arrays in this order: the adjoint's inputs; the cotangents of the kernel's inputs (the
        *fresh* outputs); the results and their cotangents. These last two groups are also inputs, in the same memory.
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

    # The first three parameters are positional-only, because a scalar of the kernel may have the same name.
    def vjp(primals: Any, results: Any, cotangents: Any, /, **static: Any) -> list[Any]:
        _check_has_adjoint(kernel)
        of_results = [c for r, c in zip(results, cotangents, strict=True) if is_floating(r)]
        given = [*primals, *results, *of_results]
        fresh = [x for x in primals if is_floating(x)]
        outs = [Struct(x.shape, x.dtype) for x in (*fresh, *results, *of_results)]
        # Warp overwrites the results and their cotangents, so XLA copies the ones that are used elsewhere.
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
            f"{kernel.name}: Warp has no adjoint of the kernel: enable_backward is False for it, its module or in "
            "warp.config. Set warp.kernel(enable_backward=True), or warp.set_module_options({'enable_backward': True})."
        )


def is_floating(struct: Any) -> bool:
    """Return True if an array has cotangents of its own dtype."""
    return bool(jnp.issubdtype(struct.dtype, jnp.floating))
