"""Prefetching of memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _prefetch_for(writing: bool) -> Any:
    """Return an intrinsic that prefetches the cache line of ``array[index]``; the index may be out of bounds.

    The intrinsic emits a call of ``llvm.prefetch(address, writing, locality 3, data cache)``.
    """

    @intrinsic
    def prefetch(typing: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            elements = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            address = builder.bitcast(builder.gep(elements, [arguments[1]]), ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            keep_in_all_caches, data_cache = number(3), number(1)
            builder.call(function, [address, number(int(writing)), keep_in_all_caches, data_cache])
            return context.get_dummy_value()

        return types.void(array, types.uint64), generate

    return prefetch


prefetch = _prefetch_for(writing=False)
prefetch_for_writing = _prefetch_for(writing=True)
