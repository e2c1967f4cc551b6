"""The batch of a call in LLVM IR: the extents of its axes, and the offsets of its slices in a buffer.

The CPU's handlers and the GPU's launch plans share these rules. The first dimensions of all buffers are the axes of the
batch. An axis has the one extent of the buffers that is not 1, or 1. Outputs must have it; inputs may have 1 instead,
and all slices share them along that axis. Slices are numbered in C order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .frame import I64, i64


def join(builder: ir.IRBuilder, extent: Any, own: Any) -> Any:
    """Return the extent of an axis, given that of the buffers so far and one buffer's own."""
    return builder.select(_is_one(builder, own), extent, own)


def differs(builder: ir.IRBuilder, own: Any, extent: Any, is_input: Any) -> Any:
    """Return whether a buffer has neither the extent of the axis nor, if it is an input, an extent of 1."""
    shared = builder.and_(is_input, _is_one(builder, own))
    return builder.not_(builder.or_(shared, builder.icmp_signed("==", own, extent)))


@contextlib.contextmanager
def coordinates(
    builder: ir.IRBuilder, index: Any, rank: Any, extent_of: Callable[[Any], Any]
) -> Iterator[tuple[Any, Any]]:
    """Emit a loop over the axes, from the last to the first, with the coordinate of slice *index* along each.

    The coordinates are the digits of the number, in the base of the extents.
    """
    remaining = cgutils.alloca_once(builder, I64)
    builder.store(index, remaining)
    with cgutils.for_range(builder, rank, intp=I64) as loop:
        axis = builder.sub(builder.sub(rank, loop.index), i64(1))
        extent = extent_of(axis)
        rest = builder.load(remaining)
        quotient = builder.udiv(rest, extent)
        builder.store(quotient, remaining)
        yield axis, builder.sub(rest, builder.mul(quotient, extent))


def advance(builder: ir.IRBuilder, offset: Any, stride: Any, own: Any, coordinate: Any) -> None:
    """Move a buffer's offset along an axis, and its stride in bytes to the next one of `coordinates`.

    Args:
      builder: the builder.
      offset: address of the offset, or of an address in the buffer.
      stride: address of the stride, which begins as the size of a slice.
      own: the buffer's extent along the axis.
      coordinate: the slice's coordinate.
    """
    step = builder.load(stride)
    moved = builder.select(_is_one(builder, own), i64(0), builder.mul(coordinate, step))
    builder.store(builder.add(builder.load(offset), moved), offset)
    builder.store(builder.mul(step, own), stride)


def _is_one(builder: ir.IRBuilder, extent: Any) -> Any:
    return builder.icmp_signed("==", extent, i64(1))
