"""A row of a matrix times a few neighbouring columns of an operand, with the sums in registers.

A tile is so many columns as fit into a number of bytes, one of `SIZES`, or a single column. What Numba makes of a loop
over columns loads and stores the sums at each entry, which takes twice as long.

These functions are Numba's intrinsics. Debug mode does not check their indices one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ._lanes import Lanes

# Entries that are added up apart: the next need not wait for the sum of the one before.
_UNROLLED = 2


def _width(size: Any, dtype: Any) -> int:
    """Return how many elements a tile of *size* bytes, a literal, is wide."""
    return max(1, int(size.literal_value) // int(dtype.bitwidth // 8))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_width(typing: Any, size: Any, array: Any) -> Any:
    """Return how many columns of *array* a tile of *size* bytes has; at least 1."""
    width = _width(size, array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, width)

    return types.int64(size, array), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def gather_tile(
    typing: Any,
    size: Any,
    data: Any,
    indices: Any,
    begin: Any,
    end: Any,
    x: Any,
    y: Any,
    i: Any,
    column: Any,
    active: Any,
) -> Any:
    """``y[i, c] = sum(data[k] * x[indices[k], c])`` over the entries *begin* … *end* - 1, for the tile at *column*.

    *size* is a literal. Only elements of *x* that are not 0 count if *active* is not None.
    """
    integer = types.int64
    signature = types.void(size, data, indices, integer, integer, x, y, integer, integer, active)
    width = _width(size, y.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile = _Tile(context, builder, signature.args[1], arguments[1], signature.args[5], y.dtype, width, active)
        positions = _Matrix(context, builder, signature.args[2], arguments[2])
        operand = _Matrix(context, builder, signature.args[5], arguments[5])
        result = _Matrix(context, builder, signature.args[6], arguments[6])
        begin, end, row, column = arguments[3], arguments[4], arguments[7], arguments[8]

        def add(k: Any, total: Any) -> Any:
            address = operand.address(positions.position(k), column)
            return tile.lanes.add(total, tile.term(*tile.load(address), k))

        even = builder.add(begin, builder.and_(builder.sub(end, begin), ir.IntType(64)(-_UNROLLED)))
        totals = _loop(
            builder,
            (begin, even, _UNROLLED),
            [tile.lanes.zero] * _UNROLLED,
            lambda k, totals: [add(builder.add(k, k.type(u)), total) for u, total in enumerate(totals)],
        )
        total = totals[0]
        for other in totals[1:]:
            total = tile.lanes.add(total, other)
        (total,) = _loop(builder, (even, end, 1), [total], lambda k, totals: [add(k, totals[0])])
        tile.lanes.store(total, result.address(row, column))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def scatter_tile(
    typing: Any,
    size: Any,
    data: Any,
    indices: Any,
    begin: Any,
    end: Any,
    x: Any,
    i: Any,
    column: Any,
    y: Any,
    active: Any,
) -> Any:
    """``y[indices[k], c] += data[k] * x[i, column + c]`` for the entries *begin* … *end* - 1 and the columns of a tile.

    *size* is a literal. Only elements of *x* that are not 0 count if *active* is not None.
    """
    integer = types.int64
    signature = types.void(size, data, indices, integer, integer, x, integer, integer, y, active)
    width = _width(size, y.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile = _Tile(context, builder, signature.args[1], arguments[1], signature.args[5], y.dtype, width, active)
        positions = _Matrix(context, builder, signature.args[2], arguments[2])
        operand = _Matrix(context, builder, signature.args[5], arguments[5])
        result = _Matrix(context, builder, signature.args[8], arguments[8])
        begin, end, row, column = arguments[3], arguments[4], arguments[6], arguments[7]
        values, flags = tile.load(operand.address(row, column))

        def add(k: Any, _: Any) -> list[Any]:
            address = result.address(positions.position(k), k.type(0))
            tile.lanes.store(tile.lanes.add(tile.lanes.load(address), tile.term(values, flags, k)), address)
            return []

        # An empty range where nothing of the tile is active.
        if flags is not None:
            end = builder.select(tile.lanes.any(flags), end, begin)
        _loop(builder, (begin, end, 1), [], add)
        return context.get_dummy_value()

    return signature, generate


class _Matrix:
    """A C-contiguous array of one or two dimensions."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.builder = builder
        self.data = array.data
        self.extents = cgutils.unpack_tuple(builder, array.shape, kind.ndim)

    def address(self, row: Any, column: Any) -> Any:
        return self.builder.gep(self.data, [self.builder.add(self.builder.mul(row, self.extents[1]), column)])

    def element(self, k: Any) -> Any:
        return self.builder.load(self.builder.gep(self.data, [k]))

    def position(self, k: Any) -> Any:
        """Return element *k*, an index and so not negative, in 64 bits."""
        found = self.element(k)
        return found if found.type.width == 64 else self.builder.zext(found, ir.IntType(64))


class _Tile:
    """Loads elements of an operand and multiplies them by the weights."""

    def __init__(
        self, context: Any, builder: Any, data_kind: Any, data: Any, operand: Any, dtype: Any, width: int, active: Any
    ) -> None:
        self.context = context
        self.builder = builder
        self.lanes = Lanes(context, builder, dtype, width)
        self.data_kind = data_kind
        self.data = _Matrix(context, builder, data_kind, data)
        self.is_flags = isinstance(operand.dtype, types.Boolean)
        # Where nothing is infinite or NaN, a 0 adds nothing by itself.
        self.is_active = not isinstance(active, types.NoneType)

    def load(self, address: Any) -> tuple[Any, Any]:
        """Return values, None where they all are 1, and the bits of those that count, None where all do."""
        if self.is_flags:
            return None, self.lanes.load_flags(address)
        values = self.lanes.load(address)
        return values, self.lanes.nonzero(values) if self.is_active else None

    def term(self, values: Any, flags: Any, k: Any) -> Any:
        """Return what entry *k* adds."""
        # All entries have the first one's weight where there is but that; LLVM takes this load out of the loops.
        stored = self.data.element(k if self.data_kind.ndim == 1 else k.type(0))
        weight = self.context.cast(self.builder, stored, self.data_kind.dtype, self.lanes.dtype)
        vector = self.lanes.splat(weight) if values is None else self.lanes.scale(values, weight)
        return vector if flags is None else self.lanes.where(flags, vector)


def _loop(
    builder: Any, span: Sequence[Any], carried: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit a loop over begin, end, step of *span* that carries values in registers; return the last ones."""
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
