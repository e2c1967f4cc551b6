"""The arguments of a kernel, and how a handler makes them from buffers and attributes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.np import arrayobj

from .machine.frame import I64, Buffer, i64


@dataclasses.dataclass(frozen=True)
class Argument:
    """Where one parameter of a kernel comes from.

    Attributes:
      source: an input or output buffer, or an attribute of the call.
      index: which one; attributes are counted in the order of their names, as XLA passes them.
      dtype: NumPy name of the element's dtype.
      ndim: rank of the array without batch dimensions.
      type: the Numba type that the kernel was compiled for: an array, or the element itself when passed by value; None
        where it is no kernel of Numba's.
      scalar: NumPy name of the dtype of an element that is passed by value, which *dtype* may only hold the bytes of;
        empty: it is an array.
      size: elements of an attribute.
    """

    source: Literal["input", "output", "attribute"]
    index: int
    dtype: str
    ndim: int
    type: Any = None
    scalar: str = ""
    size: int = 0

    @property
    def is_buffer(self) -> bool:
        """Whether it arrives in a buffer."""
        return self.source != "attribute"

    @property
    def content(self) -> str:
        """The dtype and rank of an array, or the dtype of a scalar, and what its buffer has if that is another."""
        if not self.scalar:
            return f"{self.dtype}[{self.ndim}d]"
        return self.scalar if self.scalar == self.dtype else f"{self.scalar} in {self.dtype}"


class Slices:
    """A buffer with batch dimensions, seen as one C-contiguous array per slice."""

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
        """Go to the first slice."""
        builder.store(i64(0), self.offset)
        builder.store(self.nbytes, self.stride)

    def advance(self, builder: ir.IRBuilder, axis: Any, coordinate: Any) -> None:
        """Move to *coordinate* along a batch axis; an extent of 1 is shared by all slices."""
        own = builder.load(builder.gep(self.buffer.dims, [axis]))
        stride = builder.load(self.stride)
        shared = builder.icmp_signed("==", own, i64(1))
        step = builder.select(shared, i64(0), builder.mul(coordinate, stride))
        builder.store(builder.add(builder.load(self.offset), step), self.offset)
        builder.store(builder.mul(stride, own), self.stride)

    def data(self, builder: ir.IRBuilder) -> Any:
        """Return the address of the current slice."""
        return builder.gep(self.buffer.data, [builder.load(self.offset)])

    def value(self, context: Any, builder: ir.IRBuilder) -> Any:
        """Return the current slice as the argument of a Numba function."""
        data = self.data(builder)
        kind = self.argument.type
        if not isinstance(kind, types.Array):
            return load_element(context, builder, kind, data)
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


def load_element(context: Any, builder: ir.IRBuilder, kind: types.Type, pointer: Any) -> Any:
    """Load an element of type *kind*, as the kernel takes it by value."""
    stored = builder.load(builder.bitcast(pointer, context.get_data_type(kind).as_pointer()))
    return context.data_model_manager[kind].from_data(builder, stored)
