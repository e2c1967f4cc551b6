"""Numba's types that contain a value."""

import math
import operator

import numba
import numpy as np
import pytest
from numba import types
from numba.core.registry import cpu_target
from numba.core.types import StringLiteral

from xlakernel.core.native.copies.valued_types import has_value

DISPATCHER = numba.njit(lambda x: x)
RECORD = numba.from_dtype(np.dtype([("a", "f8"), ("b", "i4")]))


def resolve(function):
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(function)


class Own(types.Type):
    pass


@pytest.mark.parametrize(
    "kind",
    [
        *(types.float32, types.complex128, types.boolean, types.none, types.unicode_type, RECORD),
        *(types.float64[:, ::1], types.Array(RECORD, 1, "A"), types.Optional(types.intp), types.List(types.float64)),
        *(types.UniTuple(types.intp, 3), types.Tuple((types.intp, types.float32)), types.Omitted(1.0)),
        *(types.literal(3), types.FunctionType(types.float64(types.float64)), types.NPDatetime("s")),
        *(types.slice2_type, types.range_state64_type, types.ListType(types.intp)),
        types.DictType(types.unicode_type, types.float64),
    ],
    ids=lambda kind: type(kind).__name__,
)
def test_types_without_a_value(kind):
    assert not has_value(kind)
    assert not has_value(((kind, types.intp), None, "name"))


@pytest.mark.parametrize(
    "kind",
    [
        *(numba.typeof(DISPATCHER), types.Module(math), resolve(math.sin), resolve(operator.add)),
        *(StringLiteral("name"), types.Tuple((types.intp, StringLiteral("name"))), types.Optional(Own("own"))),
        *(Own("own"), types.List(Own("own")), types.ListType(Own("own")), numba.typeof(np.float32)),
        *(types.DictType(types.intp, Own("own")), types.DictType(Own("own"), types.intp)),
    ],
    ids=lambda kind: type(kind).__name__,
)
def test_types_with_a_value(kind):
    assert has_value(kind)
    assert has_value((("context", (types.intp, kind)), None))
