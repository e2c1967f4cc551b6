"""Constants of users' subclasses of enums, numbers and tuples, with the methods and attributes that they have now."""

import collections
import enum
import typing

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba import objmode
from numba.extending import overload

from xlakernel.core.identity.fingerprint import examine
from xlakernel.numba import numba_kernel
from xlakernel.numba._compile import COMPILER

X = jnp.ones(1)


def lowered(kernel):
    return jax.jit(numba_kernel(kernel, outs=X, has_side_effect=True)).lower(X).compile()


def outputs(kernel):
    """Return the first output of a kernel in JAX and of its dispatcher."""
    out = np.zeros(1)
    kernel(np.ones(1), out)
    return float(lowered(kernel)(X)[0]), out[0]


# Subclasses of types whose instances a compiler freezes by their values.
CLASSES = """
class Record(typing.NamedTuple):
    field: float = 1.0
    def rate(self): return RATE
class Renamed(collections.namedtuple("Renamed", "field")):
    @property
    def own(self): return RATE
    def rate(self): return self.own
class Member(enum.Enum):
    A = 1
    def rate(self): return RATE
class Number(enum.IntEnum):
    A = 1
    @classmethod
    def own(cls): return RATE
    def rate(self): return self.own()
class Single(float):
    A = RATE
    def rate(self): return self.A
class Flags(enum.Flag):
    A = 1
    B = 2
    def rate(self): return RATE if ~self is Flags.B else 0
class Several(tuple):
    def rate(self): return helper()
class Inherits(Several): ...
class Elements(np.ndarray):
    @staticmethod
    def own(): return RATE
    def rate(self): return self.own()
def helper(): return RATE
"""
MAKERS = ["Record()", "Renamed(1.0)", "Member.A", "Number.A", "Flags.A", "Single(1)", "Several()", "Inherits()"]
MAKERS += ["np.zeros(1).view(Elements)"]


def classes(rate, source=CLASSES):
    space = {"enum": enum, "typing": typing, "collections": collections, "np": np, "__name__": __name__}
    exec(source.replace("RATE", str(rate)), space)  # noqa: S102
    return space


def kernel_of_value(value):
    @numba.njit
    def kernel(x, out):
        with objmode(rate="float64"):
            rate = value.rate()
        out[:] = rate * x

    return kernel


def kernel_with_definition(value):
    def factor(x): ...

    @overload(factor)
    def define(x):
        rate = value.rate()
        return lambda x: rate * x

    @numba.njit
    def kernel(x, out):
        out[0] = factor(x[0])

    return kernel


@pytest.mark.parametrize("make", [kernel_of_value, kernel_with_definition])
@pytest.mark.parametrize("maker", MAKERS)
def test_methods_of_a_value_are_those_of_its_class(make, maker):
    for rate in (2, 3, 2):
        assert lowered(make(eval(maker, classes(rate))))(X)[0] == rate  # noqa: S307


@pytest.mark.parametrize("make", [kernel_of_value, kernel_with_definition])
@pytest.mark.parametrize("maker", MAKERS)
def test_methods_of_a_value_are_compared_with_those_of_another_process(make, maker):
    one, same, other = (examine(make(eval(maker, classes(rate))), None, COMPILER.declarations()) for rate in (2, 2, 3))  # noqa: S307
    assert one.content == same.content != other.content
    assert not one.unknown


@pytest.mark.parametrize("kind", ["Record", "Member"])
def test_a_class_is_compared_with_that_of_another_process(kind):
    def make(given):
        @numba.njit
        def kernel(x, out):
            with objmode(rate="float64"):
                rate = next(iter(given)).rate() if issubclass(given, enum.Enum) else given().rate()
            out[:] = rate * x

        return kernel

    one, same, other = (examine(make(classes(rate)[kind])) for rate in (2, 2, 3))
    assert one.content == same.content != other.content


def test_attributes_of_an_instance_are_its_own():
    space = classes(2)
    one, other = space["Several"](), space["Several"]()
    one.seen, other.seen = [], []

    def note(value):
        @numba.njit
        def kernel(x, out):
            out[:] = x
            with objmode():
                value.seen.append(1)

        return kernel

    for value in (one, other):
        jax.block_until_ready(lowered(note(value))(X))
    jax.effects_barrier()
    assert one.seen == other.seen == [1]


def with_attribute(kind, rate):
    value = {"function": lambda: lambda: 1, "tuple": classes(2)["Several"], "member": lambda: classes(2)["Member"].A}[
        kind
    ]()
    value.attribute = rate
    return value


@pytest.mark.parametrize("kind", ["function", "tuple", "member"])
def test_attributes_are_compared(kind):
    one, same, other = (examine(kernel_of_value(with_attribute(kind, rate))) for rate in (2, 2, 3))
    assert one.content == same.content != other.content
    assert not one.unknown
    value = with_attribute(kind, 2)
    value.itself = value
    assert not examine(kernel_of_value(value)).unknown


@numba.njit
def add_one(value):
    return value + 1


# Subclasses whose methods Numba calls when it compiles a constant.
NUMBERS = """
class Single(float):
    def __float__(self): return RATE
class Scalar(np.float64):
    def __float__(self): return RATE
class Whole(int):
    def __str__(self): return "RATE"
class Attribute(float):
    def __float__(self): return self.rate
class Iterated(typing.NamedTuple("Iterated", [("field", float)])):
    def __iter__(self): return (RATE * item for item in tuple.__iter__(self))
attribute = Attribute(1.0)
attribute.rate = RATE
"""


def number_itself(value):
    @numba.njit
    def kernel(x, out):
        out[0] = value

    return kernel


def number_in_tuple(value):
    items = (value, 2.0)

    @numba.njit
    def kernel(x, out):
        out[0] = items[0]

    return kernel


def number_in_helper(value):
    @numba.njit
    def helper():
        return value

    @numba.njit
    def kernel(x, out):
        out[0] = helper()

    return kernel


def field_of_tuple(value):
    @numba.njit
    def kernel(x, out):
        out[0] = value.field

    return kernel


@pytest.mark.parametrize(
    ("maker", "make"),
    [
        *[("Single(1)", make) for make in (number_itself, number_in_tuple, number_in_helper)],
        *[(maker, number_itself) for maker in ("Scalar(1)", "Whole(1)", "attribute")],
        ("Iterated(1.0)", field_of_tuple),
    ],
)
def test_a_number_is_read_by_methods_of_its_class(maker, make):
    for rate in (2, 3, 2):
        kernel = make(eval(maker, classes(float(rate) if "Whole" not in maker else rate, NUMBERS)))  # noqa: S307
        assert outputs(kernel) == (rate, rate)


class Pair(typing.NamedTuple):
    function: object
    value: object


class Converted(Pair):
    def __new__(cls, function, value):
        return super().__new__(cls, function, 10 * value)


class Doubled(Pair):
    def __iter__(self):
        return (2 * item if isinstance(item, float) else item for item in tuple.__iter__(self))


@pytest.mark.parametrize("kind", [Pair, Converted, Doubled])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_copy_of_a_named_tuple_has_its_items(kind, is_inside):
    pair = kind(add_one, 1.0)
    outer = (pair, 2.0)

    @numba.njit
    def kernel(x, out):
        out[0] = outer[0].function(outer[0].value) if is_inside else pair.function(pair.value)

    one, same = outputs(kernel)
    assert one == same


class WithUnit(Pair):
    unit = 1.0


@pytest.mark.parametrize("value", [2.0, np.ones(2), [1]], ids=["number", "array", "list"])
def test_a_copy_of_a_named_tuple_has_its_attributes(value):
    pair = WithUnit(add_one, value)
    pair.unit = 5.0

    def factor(x): ...

    @overload(factor)
    def define(x):
        unit = pair.unit
        return lambda x: unit * x

    @numba.njit
    def in_definition(x, out):
        out[0] = factor(x[0])

    @numba.njit
    def in_block(x, out):
        with objmode(unit="float64"):
            unit = pair.unit
        out[0] = unit

    assert outputs(in_definition) == outputs(in_block) == (5, 5)
