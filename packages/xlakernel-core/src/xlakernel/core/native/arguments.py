"""The arguments of a kernel, and their construction from the buffers of a call."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.np import arrayobj

from .machine import batch
from .machine.frame import I64, Buffer, i64


@dataclasses.dataclass(frozen=True)
class Argument:
    """The buffer of one parameter of a kernel.

    Attributes:
      source: an input or an output.
      index: the buffer's number among the inputs or among the outputs.
      dtype: NumPy name of the buffer's dtype.
      ndim: rank of the array without batch dimensions.
      type: the Numba type of the parameter, an array or a scalar that is passed by value; None if the kernel is not
        compiled by Numba.
      scalar: for a scalar, NumPy name of its dtype; the buffer of *dtype* has the scalar's bytes. Empty for an array.
    """

    source: Literal["input", "output"]
    index: int
    dtype: str
    ndim: int
    type: Any = None
    scalar: str = ""

    @property
    def content(self) -> str:
        """The dtype and rank of an array, or the dtype of a scalar with the buffer's dtype if the two differ."""
        if not self.scalar:
            return f"{self.dtype}[{self.ndim}d]"
        return self.scalar if self.scalar == self.dtype else f"{self.scalar} in {self.dtype}"


class Slices:
    """A buffer with batch dimensions, seen as one C-contiguous array for each slice of the batch."""

    def __init__(self, builder: ir.IRBuilder, argument: Argument, buffer: Buffer, batch_rank: Any) -> None:
        self.argument = argument
        self.buffer = buffer
        self.itemsize = np.dtype(_storage(argument.dtype)).itemsize
        self.shape = [
            builder.load(builder.gep(buffer.dims, [builder.add(batch_rank, i64(axis))]))
            for axis in range(argument.ndim)
        ]
        size: Any = i64(self.itemsize)
        self.strides: list[Any] = []
        for extent in reversed(self.shape):
            self.strides.insert(0, size)
            size = builder.mul(size, extent)
        self.nbytes = size
        self.offset = cgutils.alloca_once(builder, I64)
        self.stride = cgutils.alloca_once(builder, I64)

    def rewind(self, builder: ir.IRBuilder) -> None:
        """Move to the first slice. Then `advance` is called for each batch axis, from the last to the first."""
        builder.store(i64(0), self.offset)
        builder.store(self.nbytes, self.stride)

    def advance(self, builder: ir.IRBuilder, axis: Any, coordinate: Any) -> None:
        """Move to *coordinate* along a batch axis."""
        own = builder.load(builder.gep(self.buffer.dims, [axis]))
        batch.advance(builder, self.offset, self.stride, own, coordinate)

    def data(self, builder: ir.IRBuilder) -> Any:
        """Return the address of the current slice."""
        return builder.gep(self.buffer.data, [builder.load(self.offset)])

    def value(self, context: Any, builder: ir.IRBuilder) -> Any:
        """Return the current slice as the argument of a Numba function."""
        data = self.data(builder)
        kind = self.argument.type
        if not isinstance(kind, types.Array):
            stored = builder.load(builder.bitcast(data, context.get_data_type(kind).as_pointer()))
            return context.data_model_manager[kind].from_data(builder, stored)
        array = arrayobj.make_array(kind)(context, builder)
        arrayobj.populate_array(
            array,
            data=builder.bitcast(data, context.get_data_type(kind.dtype).as_pointer()),
            shape=self.shape,
            strides=self.strides,
            itemsize=i64(self.itemsize),
            meminfo=None,  # XLA owns the memory
        )
        return array._getvalue()


def _storage(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype
