"""A launch plan: the work of a call on the GPU, as data.

A plan is a list of steps, in the order of the stream: kernels, fills and copies. A pointer is an array of the call and
an offset in it, so that the plan can be replayed on any arrays of the same shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..structs import Struct

Dimensions = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Array:
    """An input or output of a call, without batch dimensions.

    Attributes:
      source: ``"input"`` or ``"output"``.
      index: the array's number among the inputs, or among the outputs.
      dtype: NumPy name of the element's dtype.
      shape: its extents.
    """

    source: Literal["input", "output"]
    index: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Its rank."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of its data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.source} {self.index} ({self.dtype}[{','.join(map(str, self.shape))}])"


def arrays_of(inputs: Sequence[Struct], outs: Sequence[Struct]) -> tuple[Array, ...]:
    """Return the arrays of a call: its inputs, then its outputs."""

    def array(source: Any, index: int, struct: Struct) -> Array:
        return Array(source, index, struct.dtype.name, tuple(map(int, struct.shape)))

    sources: tuple[tuple[str, Sequence[Struct]], ...] = (("input", inputs), ("output", outs))
    return tuple(array(source, i, struct) for source, structs in sources for i, struct in enumerate(structs))


@dataclasses.dataclass(frozen=True)
class Pointer:
    """A place in the memory of a call.

    Attributes:
      array: the number of an array of the plan, or of a scratch block (temporary memory); these follow the arrays.
      offset: bytes from the beginning of the array; negative or beyond the end for a reversed view, for example.
    """

    array: int
    offset: int = 0


#: A place in memory: in an array of the call, or at a fixed address.
Address = Pointer | int


@dataclasses.dataclass(frozen=True)
class Launch:
    """The launch of a kernel.

    Attributes:
      kernel: the kernel's name, for messages.
      handle: the driver's handle, a ``CUkernel`` or a ``CUfunction``.
      grid: blocks along x, y and z.
      block: threads of a block along x, y and z.
      shared_mem: bytes of dynamic shared memory of a block.
      parameters: the bytes of all parameters.
      offsets: the offset of each parameter in *parameters*.
      pointers: offsets in *parameters*, and the 8-byte pointers to store there.
      attributes: ``CUlaunchAttribute`` structs, one after the other: a cooperative launch, clusters, a priority.
    """

    kernel: str
    handle: int
    grid: Dimensions
    block: Dimensions
    shared_mem: int = 0
    parameters: bytes = b""
    offsets: tuple[int, ...] = ()
    pointers: tuple[tuple[int, Pointer], ...] = ()
    attributes: bytes = b""


@dataclasses.dataclass(frozen=True)
class Fill:
    """Setting memory to a value: *height* rows of *width* elements, *pitch* bytes apart.

    Attributes:
      destination: the first element.
      value: the bits of an element.
      itemsize: bytes of an element: 1, 2 or 4.
      width: elements of a row.
      height: number of rows.
      pitch: bytes from one row to the next; 0 for a single row.
    """

    destination: Address
    value: int
    itemsize: int
    width: int
    height: int = 1
    pitch: int = 0


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy within the device: *depth* slices of *height* rows of *width* bytes.

    Attributes:
      source: the first byte.
      destination: the first byte of the copy.
      width: bytes of a row.
      height: rows of a slice.
      depth: slices.
      source_pitch: bytes from one row of the source to the next.
      source_height: rows from one slice of the source to the next.
      destination_pitch: bytes from one row of the destination to the next.
      destination_height: rows from one slice of the destination to the next.
    """

    source: Address
    destination: Address
    width: int
    height: int = 1
    depth: int = 1
    source_pitch: int = 0
    source_height: int = 0
    destination_pitch: int = 0
    destination_height: int = 0


Step = Launch | Fill | Copy


def pointers_of(step: Step) -> list[Pointer]:
    """Return all pointers of a step into the memory of a call."""
    if isinstance(step, Launch):
        return [pointer for _, pointer in step.pointers]
    places = [step.destination] if isinstance(step, Fill) else [step.source, step.destination]
    return [place for place in places if isinstance(place, Pointer)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work of one call.

    Attributes:
      arrays: the inputs of the call, then its outputs.
      steps: in the order of the stream.
      scratch: bytes of each block of temporary memory that the call needs.
      device: the ordinal of the only CUDA device that the plan can run on; None: any device.
    """

    arrays: tuple[Array, ...]
    steps: tuple[Step, ...]
    scratch: tuple[int, ...] = ()
    device: int | None = None
