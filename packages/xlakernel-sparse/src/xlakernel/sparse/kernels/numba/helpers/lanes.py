"""Arithmetic on several neighbouring elements at once, as LLVM vectors.

LLVM legalises vectors of any width for the processor. Complex elements are stored as alternating real and imaginary
parts.

The operations are functions instead of methods of `Lanes`: the content hash of a kernel includes the intrinsics that
call them, and covers functions and tuples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

_FLAGS = ("contract",)


class Lanes(NamedTuple):
    """Vectors of *width* elements of *dtype*, a Numba type, and the context and builder that emit their code."""

    context: Any
    builder: Any
    dtype: Any
    width: int


def load(lanes: Lanes, address: Any) -> Any:
    """Load the elements from *address* on."""
    vector = lanes.builder.load(lanes.builder.bitcast(address, _kind(lanes).as_pointer()))
    vector.align = _part(lanes).bitwidth // 8
    return vector


def store(lanes: Lanes, vector: Any, address: Any) -> None:
    """Store the elements of *vector* from *address* on."""
    stored = lanes.builder.store(vector, lanes.builder.bitcast(address, _kind(lanes).as_pointer()))
    stored.align = _part(lanes).bitwidth // 8


def load_flags(lanes: Lanes, address: Any) -> Any:
    """Load bools from *address* on, as one bit each."""
    kind = ir.VectorType(ir.IntType(8), lanes.width)
    flags = lanes.builder.load(lanes.builder.bitcast(address, kind.as_pointer()))
    flags.align = 1
    return lanes.builder.icmp_unsigned("!=", flags, ir.Constant(kind, [0] * lanes.width))


def nonzero(lanes: Lanes, vector: Any) -> Any:
    """Return one bit for each element, set if the element is not 0; NaN is not 0."""
    if _is_integer(lanes):
        return lanes.builder.icmp_unsigned("!=", vector, zeros(lanes))
    differs = lanes.builder.fcmp_unordered("une", vector, zeros(lanes))
    if not _is_complex(lanes):
        return differs
    real, imaginary = (_take(lanes, differs, range(first, 2 * lanes.width, 2)) for first in (0, 1))
    return lanes.builder.or_(real, imaginary)


def any_of(lanes: Lanes, flags: Any) -> Any:
    """Return a bit that is set if any of the bits *flags* is set."""
    number = ir.IntType(lanes.width)
    return lanes.builder.icmp_unsigned("!=", lanes.builder.bitcast(flags, number), number(0))


def where(lanes: Lanes, flags: Any, vector: Any) -> Any:
    """Return the elements of *vector* whose bit in *flags* is set, and 0 for the other elements."""
    if _is_complex(lanes):
        flags = _take(lanes, flags, (lane // 2 for lane in range(2 * lanes.width)))
    return lanes.builder.select(flags, vector, zeros(lanes))


def zeros(lanes: Lanes) -> Any:
    """Return a vector of zeros."""
    return _constant(lanes, [0] * _kind(lanes).count)


def splat(lanes: Lanes, value: Any) -> Any:
    """Return a vector whose elements are all *value*."""
    return _repeat(lanes, _parts(lanes, value))


def add(lanes: Lanes, one: Any, other: Any) -> Any:
    """Return the sum of two vectors."""
    return lanes.builder.add(one, other) if _is_integer(lanes) else lanes.builder.fadd(one, other, flags=_FLAGS)


def scale(lanes: Lanes, vector: Any, value: Any) -> Any:
    """Return *vector* times the scalar *value*."""
    real, *imaginary = _parts(lanes, value)
    scaled = _multiply(lanes, vector, _repeat(lanes, [real]))
    for part in imaginary:
        crossed = _take(lanes, vector, (lane ^ 1 for lane in range(2 * lanes.width)))
        signed = _multiply(lanes, crossed, _constant(lanes, [-1, 1] * lanes.width))
        scaled = add(lanes, scaled, _multiply(lanes, signed, _repeat(lanes, [part])))
    return scaled


def _is_complex(lanes: Lanes) -> bool:
    return isinstance(lanes.dtype, types.Complex)


def _is_integer(lanes: Lanes) -> bool:
    return isinstance(lanes.dtype, types.Integer)


def _part(lanes: Lanes) -> Any:
    return lanes.dtype.underlying_float if _is_complex(lanes) else lanes.dtype


def _kind(lanes: Lanes) -> Any:
    count = lanes.width * (2 if _is_complex(lanes) else 1)
    return ir.VectorType(lanes.context.get_data_type(_part(lanes)), count)


def _parts(lanes: Lanes, value: Any) -> list[Any]:
    if not _is_complex(lanes):
        return [value]
    number = lanes.context.make_complex(lanes.builder, lanes.dtype, value=value)
    return [number.real, number.imag]


def _multiply(lanes: Lanes, one: Any, other: Any) -> Any:
    return lanes.builder.mul(one, other) if _is_integer(lanes) else lanes.builder.fmul(one, other, flags=_FLAGS)


def _repeat(lanes: Lanes, values: list[Any]) -> Any:
    """Return a vector that repeats *values*."""
    vector: Any = ir.Constant(_kind(lanes), ir.Undefined)
    for position, value in enumerate(values):
        vector = lanes.builder.insert_element(vector, value, ir.IntType(32)(position))
    return _take(lanes, vector, (lane % len(values) for lane in range(vector.type.count)))


def _take(lanes: Lanes, vector: Any, places: Iterable[int]) -> Any:
    """Return the parts of *vector* at *places*, as a vector."""
    chosen = list(places)
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)
    return lanes.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _constant(lanes: Lanes, values: list[int]) -> Any:
    return ir.Constant(_kind(lanes), values if _is_integer(lanes) else [float(value) for value in values])
