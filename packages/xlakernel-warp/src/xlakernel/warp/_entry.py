"""The native entry of a Warp kernel, called by a handler of core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from xlakernel.core.backend.native import (
    I8,
    I64,
    POINTER,
    UNCHECKED_THREADS,
    Argument,
    Callee,
    Frame,
    Slices,
    i64,
    pointer_to,
)

from ._recorded import Layout

_VOID = ir.VoidType()


class WarpEntry(Callee):
    """Code of Warp's that takes its structs by address.

    The structs come with each call, as bytes in its attribute. They are copied to the stack, where each thread sets the
    pointers of the slice that it is at.

    Args:
      entry: address of the code; None: there is nothing to call.
      layout: of the structs.
      fills: (number of an array, bytes of an element) for those that begin with a value.
      keep_alive: what owns the code.
    """

    out_of_bounds = UNCHECKED_THREADS

    def __init__(
        self,
        entry: int | None,
        layout: Layout | None,
        fills: Sequence[tuple[int, bytes]],
        *,
        keep_alive: Any = None,
    ) -> None:
        self.entry = entry
        self.layout = layout
        self.fills = fills
        self.keep_alive = keep_alive

    def prepare(self, builder: ir.IRBuilder, frame: Frame, arrays: Mapping[Argument, Slices]) -> Any:
        """Copy the structs."""
        listed = list(arrays.values())
        if self.entry is None or self.layout is None:
            return listed, None
        copy = builder.bitcast(cgutils.alloca_once(builder, ir.ArrayType(I64, self.layout.nbytes // 8)), POINTER)
        cgutils.raw_memcpy(builder, copy, frame.attribute().data, i64(self.layout.nbytes), 1)
        return listed, copy

    def call(self, builder: ir.IRBuilder, frame: Frame, prepared: Any) -> None:
        """Fill what begins with a value, set the pointers, and call the entry."""
        arrays, structs = prepared
        for number, pattern in self.fills:
            _fill(builder, arrays[number], pattern)
        if self.entry is None or self.layout is None:
            return
        for where, number in self.layout.pointers:
            place = builder.bitcast(builder.gep(structs, [i64(where)]), POINTER.as_pointer())
            builder.store(arrays[number].data(builder), place)
        arguments = [builder.gep(structs, [i64(start)]) for start in self.layout.structs]
        kind = ir.FunctionType(_VOID, [argument.type for argument in arguments])
        builder.call(pointer_to(builder, self.entry, kind.as_pointer()), arguments)


def _fill(builder: ir.IRBuilder, array: Slices, pattern: bytes) -> None:
    """Set every element of a slice."""
    data, zero = array.data(builder), ir.Constant(I8, 0)
    if not any(pattern):
        cgutils.memset(builder, data, array.nbytes, zero)
        return
    kind = ir.IntType(8 * len(pattern))
    value = ir.Constant(kind, int.from_bytes(pattern, "little"))
    typed = builder.bitcast(data, kind.as_pointer())
    with cgutils.for_range(builder, builder.udiv(array.nbytes, i64(len(pattern))), intp=I64) as loop:
        builder.store(value, builder.gep(typed, [loop.index]), align=1)
