"""The batch of a call in LLVM IR: the extents of its axes, and the offsets of its slices in a buffer.

The CPU's handlers and the GPU's launch plans share these rules. The first dimensions of all buffers are the axes of the
batch. The extent of an axis is the common extent of all buffers that do not have 1 there, or 1. Outputs must have the
extent of the axis. An input may have 1 instead, and is then shared by all slices along the axis. Slices are numbered in
C order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .frame import I64, i64


def join(builder: ir.IRBuilder, extent: Any, own: Any) -> Any:
    """Return the extent of an axis, given the *extent* found in earlier buffers and the *own* extent of one more."""
    return builder.select(_is_one(builder, own), extent, own)


def differs(builder: ir.IRBuilder, own: Any, extent: Any, is_input: Any) -> Any:
    """Return True if a buffer's *own* extent is neither the axis's *extent* nor, for an input, 1."""
    shared = builder.and_(is_input, _is_one(builder, own))
    return builder.not_(builder.or_(shared, builder.icmp_signed("==", own, extent)))


@contextlib.contextmanager
def coordinates(
    builder: ir.IRBuilder, index: Any, rank: Any, extent_of: Callable[[Any], Any]
) -> Iterator[tuple[Any, Any]]:
    """Emit a loop over the axes, from the last to the first, with the coordinate of slice *index* along each.

    The coordinates are the digits of *index* in the mixed radix of the extents.
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
    """Move a buffer's offset along one axis of `coordinates`, and update the stride in bytes for the next axis.

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
