"""Machine code of a plan's steps: a step computes its addresses and calls one function of the CUDA driver.

``step`` is the address of a step as `encode` has written it. ``bases`` is an array of addresses; a place in memory is
an offset from one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from ...ffi import abi
from ...native.machine.frame import I32, I64, POINTER, field, i64, load, store
from .cuda_abi import CUDA_MEMCPY3D, CUlaunchConfig, layout
from .encode import CopyEntry, FillEntry, LaunchEntry, PlaceEntry, PointerEntry, StepEntry

#: ``perform(step, bases, stream)``: do a step; return the driver's ``CUresult``.
PERFORM = ir.FunctionType(I32, [POINTER, I64.as_pointer(), POINTER])

_STEP, _PLACE, _POINTER = layout(StepEntry), layout(PlaceEntry), layout(PointerEntry)
_LAUNCH, _FILL, _COPY = layout(LaunchEntry), layout(FillEntry), layout(CopyEntry)
_CONFIG, _MEMCPY = layout(CUlaunchConfig), layout(CUDA_MEMCPY3D)
_NULL = ir.Constant(POINTER, None)


def _launch(builder: ir.IRBuilder, step: Any, bases: Any, stream: Any) -> Any:
    """Launch a kernel: copy its parameters to the stack, and store the pointers of this call in the copy.

    The driver takes an array with the address of each parameter, and copies the parameters before it returns.
    """
    size = load(builder, step, _LAUNCH, "block_size", I64)
    block = builder.alloca(ir.IntType(8), size=size)
    block.align = 16
    cgutils.raw_memcpy(builder, block, load(builder, step, _LAUNCH, "block"), size, 1)
    pointers = load(builder, step, _LAUNCH, "pointers")
    with cgutils.for_range(builder, load(builder, step, _LAUNCH, "pointer_count", I64), intp=I64) as loop:
        entry = entry_at(builder, pointers, _POINTER, loop.index)
        place = builder.gep(block, [load(builder, entry, _POINTER, "at", I64)])
        address = _address(builder, bases, field(builder, entry, _POINTER, "place"))
        builder.store(address, builder.bitcast(place, I64.as_pointer()), align=1)
    count = load(builder, step, _LAUNCH, "offset_count", I64)
    parameters = builder.alloca(POINTER, size=count)
    offsets = load(builder, step, _LAUNCH, "offsets", I64.as_pointer())
    with cgutils.for_range(builder, count, intp=I64) as loop:
        offset = builder.load(builder.gep(offsets, [loop.index]))
        builder.store(builder.gep(block, [offset]), builder.gep(parameters, [loop.index]))
    config = _copy_struct(builder, field(builder, step, _LAUNCH, "config"), _CONFIG)
    store(builder, config, _CONFIG, "hStream", stream)
    handle = load(builder, step, _LAUNCH, "handle")
    return _call_driver(builder, step, config, handle, parameters, _NULL)


def _fill_row(builder: ir.IRBuilder, step: Any, bases: Any, stream: Any) -> Any:
    place = _address(builder, bases, field(builder, step, _FILL, "destination"))
    value, width = load(builder, step, _FILL, "value", I32), load(builder, step, _FILL, "width", I64)
    return _call_driver(builder, step, place, value, width, stream)


def _fill_rows(builder: ir.IRBuilder, step: Any, bases: Any, stream: Any) -> Any:
    place = _address(builder, bases, field(builder, step, _FILL, "destination"))
    pitch, width, height = (load(builder, step, _FILL, name, I64) for name in ("pitch", "width", "height"))
    return _call_driver(builder, step, place, pitch, load(builder, step, _FILL, "value", I32), width, height, stream)


def _copy_row(builder: ir.IRBuilder, step: Any, bases: Any, stream: Any) -> Any:
    source, destination = (_address(builder, bases, field(builder, step, _COPY, n)) for n in ("source", "destination"))
    width = load(builder, field(builder, step, _COPY, "parameters"), _MEMCPY, "WidthInBytes", I64)
    code = cgutils.alloca_once_value(builder, ir.Constant(I32, 0))
    # An input and its output (`aliases`) usually have the same memory, and need no copy.
    with builder.if_then(builder.icmp_unsigned("!=", source, destination)):
        builder.store(_call_driver(builder, step, destination, source, width, stream), code)
    return builder.load(code)


def _copy_rows(builder: ir.IRBuilder, step: Any, bases: Any, stream: Any) -> Any:
    parameters = _copy_struct(builder, field(builder, step, _COPY, "parameters"), _MEMCPY)
    for name, target in (("source", "srcDevice"), ("destination", "dstDevice")):
        store(builder, parameters, _MEMCPY, target, _address(builder, bases, field(builder, step, _COPY, name)))
    return _call_driver(builder, step, parameters, stream)


PERFORMERS: dict[str, Callable[..., Any]] = {
    "launch": _launch,
    "fill_row": _fill_row,
    "fill_rows": _fill_rows,
    "copy_row": _copy_row,
    "copy_rows": _copy_rows,
}


def _call_driver(builder: ir.IRBuilder, step: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(I32, [argument.type for argument in arguments]).as_pointer()
    return builder.call(load(builder, step, _STEP, "function", kind), arguments)


def _address(builder: ir.IRBuilder, bases: Any, place: Any) -> Any:
    """Return ``bases[place.base] + place.offset``."""
    base, offset = (load(builder, place, _PLACE, name, I64) for name in ("base", "offset"))
    return builder.add(builder.load(builder.gep(bases, [base])), offset)


def _copy_struct(builder: ir.IRBuilder, source: Any, struct: abi.Struct) -> Any:
    """Copy a struct to the stack; return the copy, which the caller may change."""
    assert struct.nbytes is not None
    with builder.goto_entry_block():
        copy = builder.bitcast(builder.alloca(ir.ArrayType(I64, -(-struct.nbytes // 8))), POINTER)
    cgutils.raw_memcpy(builder, copy, source, i64(struct.nbytes), 1)
    return copy


def entry_at(builder: ir.IRBuilder, array: Any, struct: abi.Struct, index: Any) -> Any:
    """Return the address of an element of an array of structs."""
    assert struct.nbytes is not None
    return builder.gep(array, [builder.mul(index, i64(struct.nbytes))])
