"""Search for the device arrays that a function refers to."""

import dataclasses
import functools
import types

import jax
import pytest

from xlakernel.core.gpu.recording.closure import Closure


class DeviceArray:
    def __init__(self, begin=4096, shape=(3, 4), strides=None, typestr="<f4"):
        self.__cuda_array_interface__ = {
            "data": (begin, False),
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "version": 3,
        }


TABLE = DeviceArray()
HIDDEN = DeviceArray(8192)
MODULE = types.ModuleType("tables")
MODULE.table = TABLE
MODULE.hidden = HIDDEN


@dataclasses.dataclass
class Network:
    weights: DeviceArray

    def step(self, x):
        return x


@dataclasses.dataclass(slots=True)
class Slotted:
    weights: DeviceArray


def uses_a_global(x):
    return TABLE


def calls_it(x):
    return uses_a_global(x)


def uses_a_module(x):
    return MODULE.table


def has_a_default(x, table=TABLE):
    return table


def has_a_keyword(x, *, table=TABLE):
    return table


def has_an_inner_one(x):
    return [TABLE for _ in x]


def closure():
    own = DeviceArray()
    return lambda x: own


@pytest.mark.parametrize(
    "function",
    [
        *(uses_a_global, calls_it, uses_a_module, has_a_default, has_a_keyword, has_an_inner_one, closure()),
        functools.partial(lambda x, table: x, table=TABLE),
        functools.partial(lambda table, x: x, TABLE),
        Network(TABLE).step,
        {"weights": [(TABLE,)]},
        Slotted(TABLE),
        types.SimpleNamespace(table=TABLE),
    ],
)
def test_an_array_is_found(function):
    (found,) = Closure([function]).arrays
    assert (found.begin, found.end) == (4096, 4096 + 48)


@pytest.mark.parametrize(
    ("array", "extent"),
    [
        (DeviceArray(4096, (), None, "<f8"), (4096, 4104)),
        (DeviceArray(4096, (3, 4), (4, 12)), (4096, 4144)),
        (DeviceArray(4096, (3,), (-4,)), (4088, 4100)),
        (DeviceArray(4096, (3,), (8,), "|u1"), (4096, 4113)),
    ],
)
def test_the_extent_of_an_array_follows_its_strides(array, extent):
    (found,) = Closure([array]).arrays
    assert (found.begin, found.end, found.owner) == (*extent, array)


def test_each_is_found_once_also_where_objects_refer_to_each_other():
    around = [TABLE, TABLE]
    around.append(around)
    assert len(Closure([around, TABLE]).arrays) == 1


def test_objects_without_arrays_are_skipped():
    class Broken:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("no device")

    assert Closure([Broken(), jax, int, "text", 3, None, lambda x: x]).arrays == []
