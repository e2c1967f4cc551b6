"""A row of a matrix times a few neighbouring columns of an operand, with the sums in registers.

A tile is a few neighbouring columns, as many as fit into a given number of bytes, but at least one. The code that Numba
compiles for a plain loop over columns loads and stores the sums at each entry, and takes twice as long.

These functions are Numba intrinsics. Like Numba's own code, they check the bounds of rows and entries in debug mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .lanes import Lanes, add, any_of, load, load_flags, nonzero, scale, splat, store, where, zeros

# The number of independent sums of a tile: an addition does not wait for the previous addition.
_UNROLLED = 2


def _width(size: Any, dtype: Any) -> int:
    """Return the number of elements in a tile of *size* bytes, a literal."""
    return max(1, int(size.literal_value) // int(dtype.bitwidth // 8))


@intrinsic(prefer_literal=True)
def tile_width(typing: Any, size: Any, array: Any) -> Any:
    """Return the number of columns of *array* in a tile of *size* bytes, a literal; at least 1."""
    width = _width(size, array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, width)

    return types.int64(size, array), generate


@intrinsic(prefer_literal=True)
def gather_tile(
    typing: Any,
    size: Any,
    data: Any,
    indices: Any,
    begin: Any,
    end: Any,
    x: Any,
    y: Any,
    row: Any,
    column: Any,
    active: Any,
) -> Any:
    """``y[row, c] = sum(data[k] * x[indices[k], c])`` over the entries *begin* … *end* - 1, c in the tile at *column*.

    *size* is a literal. Zeros of *x* are skipped if *active* is not None. The loop over the entries is unrolled
    `_UNROLLED` times, with a separate sum for each copy of its body; a second loop adds the remaining entries.
    """
    width = _width(size, y.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, data_, indices_, begin, end, x_, y_, row, column, _ = arguments
        lanes = Lanes(context, builder, y.dtype, width)

        def add_entry(k: Any, total: Any) -> Any:
            address = _address(lanes, x, x_, _position(lanes, indices, indices_, k), column)
            values, flags = _load_operand(lanes, x, address, active)
            return add(lanes, total, _term(lanes, data, data_, k, values, flags))

        def add_entries(k: Any, totals: list[Any]) -> list[Any]:
            return [add_entry(builder.add(k, k.type(offset)), total) for offset, total in enumerate(totals)]

        even = builder.add(begin, builder.and_(builder.sub(end, begin), begin.type(-_UNROLLED)))
        total, *others = _loop(builder, (begin, even, _UNROLLED), [zeros(lanes)] * _UNROLLED, add_entries)
        for other in others:
            total = add(lanes, total, other)
        (total,) = _loop(builder, (even, end, 1), [total], add_entries)
        store(lanes, total, _address(lanes, y, y_, row, column))
        return context.get_dummy_value()

    integer = types.int64
    return types.void(size, data, indices, integer, integer, x, y, integer, integer, active), generate


@intrinsic(prefer_literal=True)
def scatter_tile(
    typing: Any,
    size: Any,
    data: Any,
    indices: Any,
    begin: Any,
    end: Any,
    x: Any,
    row: Any,
    column: Any,
    y: Any,
    active: Any,
) -> Any:
    """``y[indices[k], c] += data[k] * x[row, column + c]`` for the entries *begin* … *end* - 1, c in the tile.

    *size* is a literal. Zeros of *x* are skipped if *active* is not None.
    """
    width = _width(size, y.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, data_, indices_, begin, end, x_, row, column, y_, _ = arguments
        lanes = Lanes(context, builder, y.dtype, width)
        values, flags = _load_operand(lanes, x, _address(lanes, x, x_, row, column), active)

        def add_entry(k: Any, _: list[Any]) -> list[Any]:
            address = _address(lanes, y, y_, _position(lanes, indices, indices_, k), k.type(0))
            term = _term(lanes, data, data_, k, values, flags)
            store(lanes, add(lanes, load(lanes, address), term), address)
            return []

        # The range is empty if no element of the tile is active.
        if flags is not None:
            end = builder.select(any_of(lanes, flags), end, begin)
        _loop(builder, (begin, end, 1), [], add_entry)
        return context.get_dummy_value()

    integer = types.int64
    return types.void(size, data, indices, integer, integer, x, integer, integer, y, active), generate


def _load_operand(lanes: Lanes, kind: Any, address: Any, active: Any) -> tuple[Any, Any]:
    """Return the values, or None if all are 1, and the bits of active elements, or None if all are active."""
    if isinstance(kind.dtype, types.Boolean):
        return None, load_flags(lanes, address)
    values = load(lanes, address)
    return values, None if isinstance(active, types.NoneType) else nonzero(lanes, values)


def _term(lanes: Lanes, kind: Any, data: Any, k: Any, values: Any, flags: Any) -> Any:
    """Return the product of entry *k* with the operand's tile, 0 where the operand is inactive."""
    # LLVM hoists this load out of the loops if all entries have one weight.
    stored = _element(lanes, kind, data, k if kind.ndim == 1 else k.type(0))
    weight = lanes.context.cast(lanes.builder, stored, kind.dtype, lanes.dtype)
    vector = splat(lanes, weight) if values is None else scale(lanes, values, weight)
    return vector if flags is None else where(lanes, flags, vector)


def _address(lanes: Lanes, kind: Any, matrix: Any, row: Any, column: Any) -> Any:
    array = lanes.context.make_array(kind)(lanes.context, lanes.builder, matrix)
    rows, columns = cgutils.unpack_tuple(lanes.builder, array.shape, 2)
    _check(lanes, row, rows)
    return lanes.builder.gep(array.data, [lanes.builder.add(lanes.builder.mul(row, columns), column)])


def _position(lanes: Lanes, kind: Any, indices: Any, k: Any) -> Any:
    """Return index *k*, which is nonnegative, in 64 bits."""
    index = _element(lanes, kind, indices, k)
    return index if index.type.width == 64 else lanes.builder.zext(index, ir.IntType(64))


def _element(lanes: Lanes, kind: Any, vector: Any, k: Any) -> Any:
    array = lanes.context.make_array(kind)(lanes.context, lanes.builder, vector)
    _check(lanes, k, cgutils.unpack_tuple(lanes.builder, array.shape)[0])
    return lanes.builder.load(lanes.builder.gep(array.data, [k]))


def _check(lanes: Lanes, index: Any, extent: Any) -> None:
    """Emit a bounds check of an index into the first axis, if the caller is compiled with checks."""
    if lanes.context.enable_boundscheck:
        cgutils.do_boundscheck(lanes.context, lanes.builder, index, extent, 0)


def _loop(
    builder: Any, span: tuple[Any, Any, int], carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit a loop over *span*, (begin, end, step), that carries values as phi nodes; return their final values."""
    begin, end, step = span
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("tile_head", "tile_body", "tile_end"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(begin.type)
    k.add_incoming(begin, before)
    values = [builder.phi(value.type) for value in carried]
    for value, first in zip(values, carried, strict=True):
        value.add_incoming(first, before)
    builder.cbranch(builder.icmp_signed("<", k, end), inside, after)
    builder.position_at_end(inside)
    new = body(k, values)
    k.add_incoming(builder.add(k, k.type(step)), builder.block)
    for value, following in zip(values, new, strict=True):
        value.add_incoming(following, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return values
