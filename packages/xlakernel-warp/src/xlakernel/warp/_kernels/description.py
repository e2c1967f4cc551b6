"""A Warp kernel and its launch, for arrays of any shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import warp

from xlakernel.core.backend import OutputInit, Struct, or_zeros, patterns, resolve
from xlakernel.core.backend.gpu import arrays_of
from xlakernel.core.errors import LaunchError

from .._parameters import Parameter, concrete, name_of, number_arrays
from .._platforms.base import OnBothPlatforms, Static
from .geometry import MAX_DIMS
from .launch import Slot, WarpLaunch

#: Threads along each dimension, or a function of the inputs' structs that returns them. None: the first array's shape.
LaunchDims = tuple[int, ...] | Callable[..., Any] | None

_MAX_EXTENT = 2**31 - 1  # of Warp's arrays
# The most threads along a dimension, and in total: beyond that, Warp's thread index wraps around to 0.
_MOST_ALONG, _MOST = 2**32 - 1, 2**63 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class KernelDescription(OnBothPlatforms):
    """A Warp kernel and its launch. Two descriptions of the same kernel and launch are equal.

    Attributes:
      kernel: the result of ``warp.kernel``.
      parameters: its parameters.
      dims: threads along each dimension.
      block_dim: threads of a block; None: Warp's default.
      output_init: the initial values of its outputs.
      in_out: the parameters that are both an input and an output.
      aliases: pairs of the number of an input, and the number of the output that shares its memory.
      cpu_blocks: whether a block has several threads on the CPU too.
      adjoint_of: if the kernel's adjoint is launched, the number of the kernel's inputs; see `AdjointKernel`.
      platform: the platform that a program is lowered for; empty before lowering.
    """

    kernel: Any
    parameters: tuple[Parameter, ...]
    dims: LaunchDims = None
    block_dim: int | None = None
    output_init: OutputInit = None
    in_out: tuple[str, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    cpu_blocks: bool = False
    adjoint_of: int | None = None
    platform: str = ""

    derivative_advice = " Warp has an adjoint of the kernel: jax_kernel(kernel, enable_backward=True) takes it."

    @property
    def name(self) -> str:  # type: ignore[override]  # read-only here
        """The kernel's name."""
        return name_of(self.kernel)

    @property
    def place(self) -> str:
        """File and line of the kernel's definition."""
        code = self.kernel.func.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """A key that is equal for two descriptions of the same kernel and launch, and keeps neither alive."""
        dims = id(self.dims) if callable(self.dims) else self.dims
        blocks = self.block_dim, self.cpu_blocks
        return type(self), id(self.kernel), self.adjoint_of, dims, self.output_init, self.in_out, self.aliases, blocks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelDescription) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        return f"Warp kernel {self.name}"

    def check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Check a launch on inputs and outputs of one slice of a batch, while JAX traces the call.

        Raises:
          ExportError, DtypeError, InputError: if an array does not fit its parameter; see `Parameter.check`.
          LaunchError: if `threads` raises it, or an *output_init* is not valid for its output.
        """
        fresh = outs[len(self.in_out) :]
        places = [f"input {i}" for i in range(len(inputs))]
        places += [f"output {i}" for i in range(len(self.in_out), len(outs))]
        for parameter, struct, place in zip(self._arrays, (*inputs, *fresh), places, strict=False):
            parameter.check(struct, self.name, place)
        self.threads(inputs)
        patterns(self.name, self.output_init, outs)

    @property
    def _arrays(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.is_array)

    def threads(self, inputs: Sequence[Struct]) -> tuple[int, ...]:
        """Return the threads along each dimension; raise `LaunchError` if they are too many or not determined."""
        dims = self._dims(inputs)
        if max(dims) > _MOST_ALONG or math.prod(dims) > _MOST:
            raise LaunchError(
                f"{self.name}: the launch has {dims} threads; Warp counts up to {_MOST_ALONG} along a dimension, and "
                f"{_MOST} in all. Give fewer launch_dims=, with a loop in the kernel."
            )
        return dims

    def _dims(self, inputs: Sequence[Struct]) -> tuple[int, ...]:
        if callable(self.dims):
            return resolve(self.name, "launch_dims", self.dims, inputs, most=MAX_DIMS)
        if self.dims is not None:
            return self.dims
        if not self._arrays or not inputs:
            raise LaunchError(
                f"{self.name}: Failed to determine launch dimensions: by default they are those of the first input, "
                "and there is no input. Give launch_dims=, an integer or up to four."
            )
        return self._arrays[0].outer(inputs[0].shape)

    def launch(self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static) -> WarpLaunch:
        """Return the launch of a call."""
        dims = self.threads(inputs)
        begin = patterns(self.name, self.output_init, outs)
        if not math.prod(dims):
            begin = or_zeros(begin, outs, {output for _, output in self.aliases})
        fills = tuple((len(inputs) + i, pattern) for i, pattern in enumerate(begin) if pattern is not None)
        numbers = number_arrays(self.parameters, self.in_out, len(inputs))
        slots, kernel = self._slots(numbers, (*inputs, *outs), static)
        launch = WarpLaunch(self.name, kernel, dims, self.block_dim, slots, arrays_of(inputs, outs), fills)
        if any(extent > _MAX_EXTENT for slot in slots for extent in slot.shape):
            _refuse(launch)
        return launch

    def _slots(
        self, numbers: Mapping[str, int], structs: Sequence[Struct], static: Static
    ) -> tuple[tuple[Slot, ...], Any]:
        """Return the parameters' slots, and the kernel for their types; *numbers* are places of arrays in *structs*."""
        given: list[tuple[Parameter, Any]] = [
            (p, structs[numbers[p.name]] if p.is_array else static[p.name]) for p in self.parameters
        ]
        slots = []
        for parameter, argument in given:
            dtype = parameter.type_for(argument)
            if not parameter.is_array:
                slots.append(Slot(dtype, value=parameter.value_of(argument, self.name)))
                continue
            slots.append(Slot(dtype, numbers[parameter.name], parameter.outer(argument.shape)))
        return tuple(slots), concrete(self.kernel, given)


def _refuse(launch: WarpLaunch) -> None:
    """Raise the error for a launch with an array too long for Warp.

    Usually the launch has too many threads, too. Recording the launch then raises Warp's own error first.
    """
    shapes = [tuple(min(extent, _MAX_EXTENT) for extent in slot.shape) for slot in launch.slots]
    slots = tuple(dataclasses.replace(slot, shape=shape) for slot, shape in zip(launch.slots, shapes, strict=True))
    if warp.is_cpu_available():
        dataclasses.replace(launch, slots=slots).recorded(range(1 << 44, (len(launch.arrays) + 1) << 44, 1 << 44))
    raise LaunchError(
        f"{launch.name}: an array has an extent beyond {_MAX_EXTENT}, the limit of Warp's arrays. Give the "
        "kernel an array of more dimensions."
    )
