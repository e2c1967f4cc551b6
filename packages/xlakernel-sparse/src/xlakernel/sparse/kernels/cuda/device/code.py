"""Parts of the LLVM code that accesses to global memory consist of."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

_GLOBAL = 1  # the address space, in NVVM


def integer(bits: int) -> Any:
    """Return LLVM's integer type; as a global variable, it would change a kernel's content hash in every process."""
    return ir.IntType(bits)


def is_half(dtype: Any) -> bool:
    """Return True for Numba's types of float16 and bfloat16."""
    return str(dtype) in ("float16", "__nv_bfloat16")


def loaded_type(dtype: Any) -> Any:
    """Return the type of a loaded element: half precision is widened to float32."""
    return types.float32 if is_half(dtype) else dtype


def pointer_to(
    context: Any, builder: Any, array_type: Any, array: Any, index_type: Any = None, index: Any = None
) -> Any:
    """Return the address of an element, or of the array without *index*, as a pointer to bytes of global memory."""
    data = context.make_array(array_type)(context, builder, value=array).data
    if index is not None:
        wide = types.int64 if index_type.signed else types.uint64
        data = builder.gep(data, [context.cast(builder, index, index_type, wide)])
    return builder.addrspacecast(builder.bitcast(data, integer(8).as_pointer()), integer(8).as_pointer(_GLOBAL))


def asm(builder: Any, result: Any, text: str, constraints: str, args: Any, *, effect: bool = False) -> Any:
    """Emit a line of PTX; with an *effect*, LLVM keeps it even if its result is not used."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=effect), args)


def widened(builder: Any, dtype: Any, bits: Any) -> Any:
    """Return a float from the 16 bits of a float16 or a bfloat16."""
    if str(dtype) == "float16":
        return asm(builder, ir.FloatType(), "cvt.f32.f16 $0, $1;", "=f,h", [bits])
    return builder.bitcast(builder.shl(builder.zext(bits, integer(32)), ir.Constant(integer(32), 16)), ir.FloatType())
