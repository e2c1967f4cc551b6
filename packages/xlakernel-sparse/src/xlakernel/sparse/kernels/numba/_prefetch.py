"""Asking for memory before it is needed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, a vector; an address that does not exist is no error."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        elements = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(elements, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep_in_all_caches, data_cache = number(0), number(3), number(1)
        builder.call(function, [address, read, keep_in_all_caches, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate
