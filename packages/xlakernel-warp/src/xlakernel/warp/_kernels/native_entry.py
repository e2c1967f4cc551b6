"""The call of a Warp kernel's native entry, its machine code on the CPU, by a handler of xlakernel.core."""

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

from .recording import Recorded


class NativeEntry(Callee):
    """Stores of outputs' initial values (fills), then the call of Warp's code with pointers to its argument structs.

    The bytes of the structs are an attribute of XLA's call. Each thread copies them to its stack, and stores the
    addresses of the arrays of its slice (of a batch) in the copy, at the offsets that `Layout.pointers` lists.

    Args:
      recorded: the recorded launch; None: nothing is called.
      fills: (number of an array, bytes of an element) for outputs with an initial value.
    """

    out_of_bounds = UNCHECKED_THREADS

    def __init__(self, recorded: Recorded | None, fills: Sequence[tuple[int, bytes]]) -> None:
        # Without a reference to this launch, Warp would unload the module when other kernels are defined in it.
        self.recorded = self.keep_alive = recorded
        self.fills = fills

    def prepare(self, builder: ir.IRBuilder, frame: Frame, arrays: Mapping[Argument, Slices]) -> Any:
        """Emit the copy of the structs, once for all slices of a thread."""
        listed = list(arrays.values())
        if self.recorded is None:
            return listed, None
        nbytes = self.recorded.layout.nbytes
        copy = builder.bitcast(cgutils.alloca_once(builder, ir.ArrayType(I64, nbytes // 8)), POINTER)
        cgutils.raw_memcpy(builder, copy, frame.attribute().data, i64(nbytes), 1)
        return listed, copy

    def call(self, builder: ir.IRBuilder, frame: Frame, prepared: Any) -> None:
        """Emit the fills, the stores of pointers into the structs, and the call."""
        arrays, structs = prepared
        for number, pattern in self.fills:
            _fill(builder, arrays[number], pattern)
        if self.recorded is None:
            return
        for offset, number in self.recorded.layout.pointers:
            place = builder.bitcast(builder.gep(structs, [i64(offset)]), POINTER.as_pointer())
            builder.store(arrays[number].data(builder), place)
        arguments = [builder.gep(structs, [i64(offset)]) for offset in self.recorded.layout.structs]
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(pointer_to(builder, self.recorded.entry, kind.as_pointer()), arguments)


def _fill(builder: ir.IRBuilder, array: Slices, pattern: bytes) -> None:
    """Emit a loop that stores *pattern* as each element of a slice, or a memset for zeros."""
    data = array.data(builder)
    if not any(pattern):
        cgutils.memset(builder, data, array.nbytes, ir.Constant(I8, 0))
        return
    kind = ir.IntType(8 * len(pattern))
    value = ir.Constant(kind, int.from_bytes(pattern, "little"))
    typed = builder.bitcast(data, kind.as_pointer())
    with cgutils.for_range(builder, builder.udiv(array.nbytes, i64(len(pattern))), intp=I64) as loop:
        builder.store(value, builder.gep(typed, [loop.index]), align=1)
