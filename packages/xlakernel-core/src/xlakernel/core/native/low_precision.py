"""bfloat16 and float16 in CPU kernels: stored in 16 bits, computed in float32.

Numba has no bfloat16 on the CPU, and its float16 has no arithmetic there. These two types promote to float32 in
arithmetic. Each store rounds only once (to nearest, ties to even), even for float64 values and for integers that
float32 cannot represent. The usual functions of one or two numbers compute in float32; functions of whole arrays do not
accept these types.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models, register_default
from numba.core.typeconv import rules
from numba.extending import lower_cast, overload

I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
HALF = ir.HalfType()
FLOAT = ir.FloatType()
DOUBLE = ir.DoubleType()

_INTEGERS_AND_BOOLEAN = (*types.integer_domain, types.boolean)


class LowPrecision(types.Type):  # type: ignore[misc]  # Numba has no stubs
    """A number that is converted to float32 in computations.

    This class is not a `types.Number`: Numba unifies these through their NumPy dtypes, and has none for the two types.
    """

    def unify(self, context: Any, other: types.Type) -> types.Type | None:
        """Return the common type of two values that are assigned to one variable."""
        if isinstance(other, LowPrecision):
            return types.float32
        return context.unify_pairs(types.float32, other) if isinstance(other, (types.Number, types.Boolean)) else None


class BFloat16(LowPrecision):
    """The upper half of a float32."""


class Float16(LowPrecision):
    """IEEE 754 binary16."""


bfloat16 = BFloat16("bfloat16")
float16 = Float16("float16 in float32")


def _to_odd(builder: ir.IRBuilder, value: Any) -> Any:
    """Round a float64 to a float32 "to odd": truncate, then set the last bit if the result is inexact.

    A second rounding, to 16 bits, then gives the same result as a direct rounding. Hardware may flush float32 denormals
    to zero. Denormals are therefore built from integers, as multiples of the smallest denormal, 2⁻¹⁴⁹.
    """
    bits = builder.bitcast(value, I64)
    magnitude = builder.bitcast(builder.and_(bits, I64((1 << 63) - 1)), DOUBLE)
    sign = builder.and_(builder.trunc(builder.lshr(bits, I64(32)), I32), I32(1 << 31))
    nearest = builder.fptrunc(magnitude, FLOAT)
    back = builder.fpext(nearest, DOUBLE)
    below = builder.sub(builder.bitcast(nearest, I32), builder.zext(builder.fcmp_ordered(">", back, magnitude), I32))
    normal = builder.or_(below, builder.zext(builder.fcmp_ordered("!=", back, magnitude), I32))

    is_denormal = builder.fcmp_ordered("<", magnitude, DOUBLE(2.0**-126))
    multiple = builder.select(is_denormal, builder.fmul(magnitude, DOUBLE(2.0**149)), DOUBLE(0))
    whole = builder.fptosi(multiple, I32)
    inexact = builder.fcmp_ordered("!=", builder.sitofp(whole, DOUBLE), multiple)
    denormal = builder.or_(whole, builder.zext(inexact, I32))

    return builder.bitcast(builder.or_(builder.select(is_denormal, denormal, normal), sign), FLOAT)


def _integer_to_double(context: Any, builder: ir.IRBuilder, source: Any, value: Any) -> Any:
    """Return an integer as a float64 rounded to odd; see `_to_odd`."""
    if source.bitwidth == 64:
        # A float64 has 53 significant bits: integers of magnitude up to 2⁵³ are exact. Larger ones have up to 11 bits
        # more (0x7FF): clear the lowest 11 bits, and set the next bit (1 << 11) if any of them was set. For signed
        # integers, the offset 2⁵³ turns the test for the range from -2⁵³ to 2⁵³ into one unsigned comparison.
        large = builder.icmp_unsigned(">=", value, I64(1 << 53))
        if source.signed:
            large = builder.icmp_unsigned(">=", builder.add(value, I64(1 << 53)), I64(1 << 54))
        rest = builder.icmp_unsigned("!=", builder.and_(value, I64(0x7FF)), I64(0))
        odd = builder.or_(builder.and_(value, I64(~0x7FF)), builder.shl(builder.zext(rest, I64), I64(11)))
        value = builder.select(large, odd, value)
    return context.cast(builder, value, source, types.float64)


def _widen_bfloat16(builder: ir.IRBuilder, bits: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(bits, I32), ir.Constant(I32, 16)), FLOAT)


def _narrow_to_bfloat16(builder: ir.IRBuilder, value: Any) -> Any:
    bits = builder.bitcast(value, I32)
    # Round to nearest, ties to even: add half a unit of the last kept bit, minus 1 if that bit is 0.
    last = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
    rounded = builder.add(bits, builder.add(last, ir.Constant(I32, 0x7FFF)))
    # Rounding could turn a NaN into infinity. Instead keep the upper bits of the NaN, and make the NaN quiet.
    quiet = builder.or_(bits, ir.Constant(I32, 0x400000))
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, ir.Constant(I32, 16)), I16)


def _widen_float16(builder: ir.IRBuilder, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, HALF), FLOAT)


def _narrow_to_float16(builder: ir.IRBuilder, value: Any) -> Any:
    return builder.bitcast(builder.fptrunc(value, HALF), I16)


def _define(kind: type, instance: LowPrecision, widen: Callable[..., Any], narrow: Callable[..., Any]) -> None:
    """Register the storage and the conversions of *instance* with Numba."""

    @register_default(kind)
    class Model(models.PrimitiveModel):  # type: ignore[misc]  # Numba has no stubs
        def __init__(self, manager: Any, frontend_type: Any) -> None:
            super().__init__(manager, frontend_type, I16)

    conversions = rules.default_type_manager
    conversions.set_promote(instance, types.float32)
    conversions.set_safe_convert(instance, types.float64)
    conversions.set_safe_convert(instance, types.complex64)
    conversions.set_safe_convert(instance, types.complex128)
    for other in (types.float32, types.float64, *_INTEGERS_AND_BOOLEAN):
        conversions.set_unsafe_convert(other, instance)
    for other in _INTEGERS_AND_BOOLEAN:
        conversions.set_unsafe_convert(instance, other)

    def from_instance(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
        return context.cast(builder, widen(builder, value), types.float32, target)

    def to_instance(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
        if isinstance(source, types.Integer) and source.bitwidth > 16:  # type: ignore[attr-defined]  # stubs lack it
            value, source = _integer_to_double(context, builder, source, value), types.float64
        if source == types.float64:
            return narrow(builder, _to_odd(builder, value))
        return narrow(builder, context.cast(builder, value, source, types.float32))

    def truth(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
        return builder.fcmp_unordered("!=", widen(builder, value), ir.Constant(FLOAT, 0))

    for target in (types.Float, types.Integer, types.Complex, LowPrecision):
        lower_cast(kind, target)(from_instance)
    lower_cast(kind, types.Boolean)(truth)
    for source in (types.Float, types.Integer, types.Boolean):
        lower_cast(source, kind)(to_instance)


_define(BFloat16, bfloat16, _widen_bfloat16, _narrow_to_bfloat16)
_define(Float16, float16, _widen_float16, _narrow_to_float16)

rules.default_type_manager.set_unsafe_convert(bfloat16, float16)
rules.default_type_manager.set_unsafe_convert(float16, bfloat16)


_ONE = np.float32(1)  # multiplication converts to float32 and keeps value and sign


def _compute_in_float32(function: Any) -> None:
    """Define *function*, of one or two numbers, for these types by conversion to float32."""

    # Unannotated: Numba requires equal parameters, annotations included, of the overload and of its implementation.
    @overload(function, strict=False)
    def unary(x):  # type: ignore[no-untyped-def]  # see above
        return (lambda x: function(x * _ONE)) if isinstance(x, LowPrecision) else None

    @overload(function, strict=False)
    def binary(x, y):  # type: ignore[no-untyped-def]  # see above
        if isinstance(x, LowPrecision) or isinstance(y, LowPrecision):
            return lambda x, y: function(x * _ONE, y * _ONE)
        return None


for _function in (
    *(float, int, bool, max, min),
    *(math.exp, math.log, math.sqrt, math.sin, math.cos, math.tanh, math.pow, math.floor, math.ceil, math.isnan),
    *(np.exp, np.expm1, np.log, np.log1p, np.log2, np.log10, np.sqrt, np.square, np.abs, np.sign, np.isnan, np.isinf),
    *(np.sin, np.cos, np.tan, np.tanh, np.arctan, np.floor, np.ceil, np.rint, np.maximum, np.minimum, np.isfinite),
):
    _compute_in_float32(_function)
