"""Arithmetic on several neighbouring elements at once, as vectors of LLVM.

LLVM makes of a vector what the processor has, whatever its size.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

_FLAGS = ("contract",)


class Lanes:
    """Emits arithmetic on vectors of *width* elements; complex ones as real and imaginary parts in turn.

    Args:
      context: Numba's.
      builder: where to emit.
      dtype: Numba's type of an element.
      width: how many.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder, dtype: Any, width: int) -> None:
        self.context = context
        self.builder = builder
        self.dtype = dtype
        self.width = width
        self.is_complex = isinstance(dtype, types.Complex)
        self.is_integer = isinstance(dtype, types.Integer)
        part = dtype.underlying_float if self.is_complex else dtype
        self.part = context.get_data_type(part)
        self.part_bytes = part.bitwidth // 8
        self.count = width * (2 if self.is_complex else 1)
        self.kind = ir.VectorType(self.part, self.count)
        self.zero = self._constant([0] * self.count)

    def load(self, address: Any) -> Any:
        """Load the elements from *address* on, the first one's."""
        vector = self.builder.load(self.builder.bitcast(address, self.kind.as_pointer()))
        vector.align = self.part_bytes
        return vector

    def store(self, vector: Any, address: Any) -> None:
        """Store them."""
        stored = self.builder.store(vector, self.builder.bitcast(address, self.kind.as_pointer()))
        stored.align = self.part_bytes

    def load_flags(self, address: Any) -> Any:
        """Load bools from *address* on, as one bit each."""
        kind = ir.VectorType(ir.IntType(8), self.width)
        flags = self.builder.load(self.builder.bitcast(address, kind.as_pointer()))
        flags.align = 1
        return self.builder.icmp_unsigned("!=", flags, ir.Constant(kind, [0] * self.width))

    def nonzero(self, vector: Any) -> Any:
        """Return which elements are not 0, as one bit each; NaN is not."""
        if self.is_integer:
            return self.builder.icmp_unsigned("!=", vector, self.zero)
        differs = self.builder.fcmp_unordered("une", vector, self.zero)
        if not self.is_complex:
            return differs
        return self.builder.or_(
            self._take(differs, range(0, self.count, 2)), self._take(differs, range(1, self.count, 2))
        )

    def any(self, flags: Any) -> Any:
        """Return whether any of the bits is set."""
        number = ir.IntType(self.width)
        return self.builder.icmp_unsigned("!=", self.builder.bitcast(flags, number), number(0))

    def where(self, flags: Any, vector: Any) -> Any:
        """Return the elements whose bit is set, and 0 for the others."""
        if self.is_complex:
            flags = self._take(flags, [lane // 2 for lane in range(self.count)])
        return self.builder.select(flags, vector, self.zero)

    def splat(self, value: Any) -> Any:
        """Return *value*, an element, in all places."""
        if not self.is_complex:
            return self._repeat([value])
        number = self.context.make_complex(self.builder, self.dtype, value=value)
        return self._repeat([number.real, number.imag])

    def add(self, one: Any, other: Any) -> Any:
        """Return the sum."""
        return self.builder.add(one, other) if self.is_integer else self.builder.fadd(one, other, flags=_FLAGS)

    def scale(self, vector: Any, value: Any) -> Any:
        """Return *vector* times *value*, an element."""
        if not self.is_complex:
            return self._multiply(vector, self._repeat([value]))
        number = self.context.make_complex(self.builder, self.dtype, value=value)
        crossed = self._multiply(self._take(vector, [lane ^ 1 for lane in range(self.count)]), self._signs())
        return self.add(
            self._multiply(vector, self._repeat([number.real])), self._multiply(crossed, self._repeat([number.imag]))
        )

    def _multiply(self, one: Any, other: Any) -> Any:
        return self.builder.mul(one, other) if self.is_integer else self.builder.fmul(one, other, flags=_FLAGS)

    def _signs(self) -> Any:
        """Return -1 for each real part, whose sum takes the product of the imaginary ones from it."""
        return self._constant([-1, 1] * self.width)

    def _repeat(self, values: list[Any]) -> Any:
        vector: Any = ir.Constant(self.kind, ir.Undefined)
        for position, value in enumerate(values):
            vector = self.builder.insert_element(vector, value, ir.IntType(32)(position))
        return self._take(vector, [lane % len(values) for lane in range(self.count)])

    def _take(self, vector: Any, lanes: Any) -> Any:
        lanes = list(lanes)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

    def _constant(self, values: list[int]) -> Any:
        return ir.Constant(self.kind, values if self.is_integer else [float(value) for value in values])
