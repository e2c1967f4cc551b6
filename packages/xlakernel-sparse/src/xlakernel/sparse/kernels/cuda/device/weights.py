"""Reads and writes of weights that a kernel changes: numbers of half precision are float32 in registers.

`memory.load` reads inputs through a cache that later writes of the kernel do not reach.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.cuda.extending import intrinsic

from .code import asm, integer, is_half, loaded_type, pointer_to, widened


@intrinsic
def read(_: Any, array: Any, index: Any) -> Any:
    """Return ``array[index]`` of an output."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type = signature.args
        dtype = array_type.dtype
        place = _place(context, builder, array_type, args[0], index_type, args[1])
        return (
            widened(builder, dtype, builder.load(place))
            if is_half(dtype)
            else context.unpack_value(builder, dtype, place)
        )

    return loaded_type(array.dtype)(array, index), codegen


@intrinsic
def write(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Set ``array[index]`` of an output to *value*, rounded to the nearest number of the array's dtype."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, index_type, value_type = signature.args
        dtype = array_type.dtype
        place = _place(context, builder, array_type, args[0], index_type, args[1])
        number = context.cast(builder, args[2], value_type, loaded_type(dtype))
        if is_half(dtype):
            builder.store(_narrowed(builder, dtype, number), place)
        else:
            context.pack_value(builder, dtype, number, place)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


def _place(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """Return the address of an element as a pointer to numbers, or to 16 bits if they are of half precision."""
    pointer = pointer_to(context, builder, array_type, array, index_type, index)
    element = integer(16) if is_half(array_type.dtype) else context.get_data_type(array_type.dtype)
    return builder.bitcast(pointer, element.as_pointer(pointer.type.addrspace))


def _narrowed(builder: Any, dtype: Any, number: Any) -> Any:
    """Return the 16 bits of the float16 or bfloat16 that is nearest to a float32."""
    if str(dtype) == "float16":
        return asm(builder, integer(16), "cvt.rn.f16.f32 $0, $1;", "=h,f", [number])
    # GPUs before compute capability 8.0 have no instruction for bfloat16. Ties go to the even number, whose last bit is
    # 0. The upper bits of a NaN are kept, and one is set, so that it does not become infinite.
    word = builder.bitcast(number, integer(32))
    last = builder.and_(builder.lshr(word, word.type(16)), word.type(1))
    rounded = builder.add(word, builder.add(last, word.type(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", number, number)
    chosen = builder.select(is_nan, builder.or_(word, word.type(0x400000)), rounded)
    return builder.trunc(builder.lshr(chosen, word.type(16)), integer(16))
