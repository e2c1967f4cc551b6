"""A Warp kernel and how it is launched."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import warp

from xlakernel.core.backend import OutputInit, Struct, or_zeros, patterns, resolve
from xlakernel.core.backend.gpu import arrays_of
from xlakernel.core.errors import LaunchError

from ._launch import Slot, WarpLaunch
from ._parameters import Parameter, concrete, name_of
from ._platform import Static

#: Threads along each dimension; a function of the inputs' structs that returns them; None: as the first array has.
Dims = tuple[int, ...] | Callable[..., Any] | None

MAX_DIMS = 4
MAX_EXTENT = 2**31 - 1  # of Warp's arrays
_MOST_ALONG, _MOST = 2**32 - 1, 2**63 - 1  # threads along a dimension and in all: beyond, Warp counts from 0 again


@dataclasses.dataclass(frozen=True, eq=False)
class WarpKernel:
    """A Warp kernel and how it is launched; equal to another one of the same kernel and launch.

    Attributes:
      kernel: what ``warp.kernel`` returned.
      parameters: its parameters.
      dims: threads along each dimension.
      block_dim: threads of a block; None: what Warp takes.
      output_init: what its outputs begin with.
      in_out: the parameters that are an input and an output.
      aliased: the outputs that share an input's memory.
      cpu_blocks: whether a block has several threads on the CPU too.
    """

    kernel: Any
    parameters: tuple[Parameter, ...]
    dims: Dims = None
    block_dim: int | None = None
    output_init: OutputInit = None
    in_out: tuple[str, ...] = ()
    aliased: frozenset[int] = frozenset()
    cpu_blocks: bool = False

    derivative_advice = " Warp has an adjoint of the kernel: jax_kernel(kernel, enable_backward=True) takes it."

    @property
    def name(self) -> str:
        """The kernel's name."""
        return name_of(self.kernel)

    @property
    def place(self) -> str:
        """File and line of its definition."""
        code = self.kernel.func.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells it apart from others of the same class."""
        dims = id(self.dims) if callable(self.dims) else self.dims
        blocks = self.block_dim, self.cpu_blocks
        return id(self.kernel), dims, self.output_init, self.in_out, self.aliased, blocks

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.identity == self.identity  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.identity)

    def __repr__(self) -> str:
        return f"Warp kernel {self.name}"

    def call_key(
        self, launch: WarpLaunch, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static
    ) -> tuple[Any, ...]:
        """Return what tells a call apart from other ones of the same kernel of Warp's."""
        structs = tuple((s.shape, s.dtype) for s in (*inputs, *outs))
        scalars = tuple((name, value.dtype, value.tobytes()) for name, value in sorted(static.items()))
        return type(self), self.identity, launch.dims, structs, scalars

    def check(self, inputs: Sequence[Struct], outs: Sequence[Struct]) -> None:
        """Raise what is wrong with a launch for these inputs and outputs of one slice, while it is traced."""
        for (parameter, _), struct, where in self._given(inputs, outs):
            parameter.check(struct, self.name, where)
        self.threads(inputs)
        patterns(self.name, self.output_init, outs)

    def threads(self, inputs: Sequence[Struct]) -> tuple[int, ...]:
        """Return the threads along each dimension.

        Raises:
          LaunchError: if nothing says how many there are, or they are more than Warp counts.
        """
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
        first = next((parameter for parameter in self.parameters if parameter.is_array), None)
        if first is None or not inputs:
            raise LaunchError(
                f"{self.name}: Failed to determine launch dimensions, which are those of the first input unless "
                "launch_dims= says otherwise; there is no input. Give launch_dims=, an integer or up to four."
            )
        return first.outer(inputs[0].shape) or (1,)

    def launch(self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static) -> WarpLaunch:
        """Return what a call does."""
        self.check(inputs, outs)
        dims = self.threads(inputs)
        begin = patterns(self.name, self.output_init, outs)
        if not math.prod(dims):
            begin = or_zeros(begin, outs, self.aliased)
        given = self._arguments(inputs, outs, static)
        slots = tuple(self._slot(*pair, number) for pair, number in given)
        fills = tuple((len(inputs) + i, pattern) for i, pattern in enumerate(begin) if pattern is not None)
        kernel = concrete(self.kernel, [pair for pair, _ in given])
        launch = WarpLaunch(self.name, kernel, dims, self.block_dim, slots, arrays_of(inputs, outs), fills)
        if any(extent > MAX_EXTENT for slot in slots for extent in slot.shape):
            _refuse(launch)
        return launch

    def _arguments(
        self, inputs: Sequence[Struct], outs: Sequence[Struct], static: Static
    ) -> list[tuple[tuple[Parameter, Any], int]]:
        """Return each parameter with the struct of its array and that array's number, or with its scalar and -1."""
        arrays = {parameter.name: (struct, number) for (parameter, number), struct, _ in self._given(inputs, outs)}
        return [
            ((parameter, arrays[parameter.name][0]), arrays[parameter.name][1])
            if parameter.is_array
            else ((parameter, static[parameter.name]), -1)
            for parameter in self.parameters
        ]

    def _slot(self, parameter: Parameter, given: Any, number: int) -> Slot:
        if not parameter.is_array:
            return Slot(parameter.type_for(given), value=parameter.value_of(given, self.name))
        shape = parameter.outer(given.shape) or (1,)  # Warp's arrays have a dimension at least
        return Slot(parameter.type_for(given), number, tuple(map(int, shape)))

    def _given(
        self, inputs: Sequence[Struct], outs: Sequence[Struct]
    ) -> Iterator[tuple[tuple[Parameter, int], Struct, str]]:
        """Yield the parameters that are arrays, with the array's number and struct, and what to call it."""
        arrays = [parameter for parameter in self.parameters if parameter.is_array]
        shared = len(inputs)  # what is an input and an output is the output, which begins with the input
        for index, (parameter, struct) in enumerate(zip(arrays, inputs, strict=False)):
            if parameter.name in self.in_out:
                yield (parameter, shared), struct, f"input {index}"
                shared += 1
            else:
                yield (parameter, index), struct, f"input {index}"
        fresh = outs[len(self.in_out) :]
        for index, (parameter, struct) in enumerate(zip(arrays[len(inputs) :], fresh, strict=False), len(self.in_out)):
            yield (parameter, len(inputs) + index), struct, f"output {index}"


def _refuse(launch: WarpLaunch) -> None:
    """Raise what is wrong with a launch that has an array too long for Warp.

    The launch is mostly as large, and what Warp says of that helps more.
    """
    shapes = [tuple(min(extent, MAX_EXTENT) for extent in slot.shape) for slot in launch.slots]
    slots = tuple(dataclasses.replace(slot, shape=shape) for slot, shape in zip(launch.slots, shapes, strict=True))
    if warp.is_cpu_available():
        dataclasses.replace(launch, slots=slots).recorded(range(1 << 44, (len(launch.arrays) + 1) << 44, 1 << 44))
    raise LaunchError(
        f"{launch.name}: an array has an extent beyond {MAX_EXTENT}, the largest that Warp's arrays have. Give the "
        "kernel one of more dimensions."
    )
