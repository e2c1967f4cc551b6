"""Huge pages for large results."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

#: The size in bytes from which NumPy asks for huge pages, too; and a multiple of the size of every kernel's pages.
_LARGE, _PAGE = np.uint64(1 << 22), np.uint64(1 << 16)


@intrinsic
def _advise(typing: Any, address: Any, size: Any) -> Any:
    """Call ``madvise(address, size, MADV_HUGEPAGE)`` on Linux, and ignore an error: it may have no huge pages."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if sys.platform != "linux":
            return context.get_dummy_value()
        number, size = ir.IntType(32), ir.IntType(64)
        kind = ir.FunctionType(number, [cgutils.voidptr_t, size, number])
        madvise = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        builder.call(madvise, [builder.inttoptr(arguments[0], cgutils.voidptr_t), arguments[1], number(14)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


@njit
def use_huge_pages(y):
    """Ask Linux for huge pages for a large array that is about to be written for the first time.

    Memory from XLA has pages of 4 KiB. At the first write to each, Linux interrupts the program, which then takes
    several times as long as the writing.
    """
    size = np.uint64(y.size * y.itemsize)
    if size >= _LARGE:
        begin = np.uint64(y.ctypes.data)
        first = (begin + _PAGE - np.uint64(1)) // _PAGE * _PAGE
        _advise(first, begin + size - first)
