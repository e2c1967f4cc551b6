"""Targets that kernels share, and new targets for changed kernels."""

import enum
import gc
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest

from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import _recipe, numba_kernel

pytestmark = pytest.mark.versions

OUT = jax.ShapeDtypeStruct((), jnp.float32)


def run(kernel, x=1.0):
    """Call a kernel that computes one number from another."""
    return float(numba_kernel(kernel, outs=OUT)(np.float32(x)))


@pytest.fixture
def new_targets():
    """Return a function that returns the targets registered since its last call."""
    known = len(registered_targets())

    def new():
        nonlocal known
        found, known = registered_targets()[known:], len(registered_targets())
        return found

    return new


def define(source, name="kernel", **space):
    """Return an njit function from source without a file, like that of a notebook's cell."""
    space = {"numba": numba, "np": np, **space}
    exec(source, space)  # noqa: S102
    return numba.njit(space[name])


PLUS = "def kernel(x, out):\n    out[()] = x[()] + {}\n"


@numba.njit
def plus_one(x, out):
    out[()] = x[()] + 1


def test_wrapping_a_kernel_many_times_registers_it_once(new_targets):
    for i in range(1000):
        call = numba_kernel(plus_one, outs=OUT)
        if i % 100 == 0:
            assert call(np.float32(i)) == i + 1
    (name,) = new_targets()
    assert "plus_one" in name


def test_a_call_registers_nothing(new_targets):
    call = numba_kernel(plus_one, outs=OUT)
    call(1.0)
    new_targets()
    for i in range(20):
        call(float(i))
        jax.jit(call)(float(i))
        jax.vmap(call)(np.arange(float(i), i + 3, dtype=np.float32))
    assert new_targets() == []


def test_each_combination_of_dtypes_and_ranks_is_a_target(new_targets):
    @numba.njit
    def fill(x, out):
        for i in range(out.size):
            out[i] = x.size

    for x in (np.ones(2, "f4"), np.ones(9, "f4"), np.ones(2, "i4"), np.ones((2, 1), "f4"), np.ones((5, 6), "f4")):
        for outs in (jax.ShapeDtypeStruct((1,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32)):
            assert numba_kernel(fill, outs=outs)(x)[0] == x.size
    assert len(new_targets()) == 3


def test_wrappers_and_kernels_can_be_collected():
    def make(value):
        @numba.njit
        def kernel(x, out):
            out[()] = x[()] + value

        return kernel

    call = numba_kernel(make(1.0), outs=OUT)
    results = [jax.jit(call)(1.0)]
    del call
    gc.collect()
    jax.clear_caches()
    results.append(run(make(1.0)))
    assert results == [2, 2]


def test_equal_closures_share_and_others_do_not(new_targets):
    def make(value, function):
        @numba.njit
        def kernel(x, out):
            out[()] = function(x[()]) + value

        return kernel

    twice, thrice = numba.njit(lambda v: 2 * v), numba.njit(lambda v: 3 * v)
    assert [run(make(1.0, twice)), run(make(1.0, twice)), run(make(1.0, numba.njit(lambda v: 2 * v)))] == [3, 3, 3]
    assert len(new_targets()) == 1
    assert [run(make(2.0, twice)), run(make(1.0, thrice)), run(make(1, twice)), run(make(True, twice))] == [4, 4, 3, 3]
    assert len(new_targets()) == 4


def test_options_are_part_of_the_kernel(new_targets):
    def kernel(x, out):
        value, total = x[()], 0.0  # a parallel loop of Numba's cannot read an array of rank 0
        for i in numba.prange(4):
            total += i * value
        out[()] = total

    options = [{}, {"parallel": True}, {"fastmath": True}, {"fastmath": {"nnan"}}, {"boundscheck": True}]
    options += [{"error_model": "numpy"}, {"inline": "always"}, {"nogil": True}]
    for option in options:
        assert run(numba.njit(**option)(kernel), 2) == 12
    assert len(new_targets()) == len(options)
    assert run(numba.njit(kernel), 2) == 12
    assert new_targets() == []


@pytest.mark.parametrize("library", ["numba", "np", "llvmlite"])
def test_the_version_of_a_compiler_is_part_of_the_kernel(library, new_targets, monkeypatch):
    source = PLUS.format("7.25")  # which no other test has compiled
    first = numba_kernel(define(source), outs=OUT)
    assert first(np.float32(1)) == 8.25
    new_targets()
    other = types.SimpleNamespace(**{**vars(getattr(_recipe, library)), "__version__": "0.0"})
    monkeypatch.setattr(_recipe, library, other)
    assert numba_kernel(define(source), outs=OUT)(np.float32(1)) == 8.25
    assert len(new_targets()) == 1


@pytest.mark.parametrize("setting", ["OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE"])
def test_a_setting_of_numba_is_part_of_the_kernel(setting, new_targets, monkeypatch):
    source = PLUS.format("9.25")  # which no other test has compiled
    assert run(define(source)) == 10.25
    new_targets()
    config = types.SimpleNamespace(**{**vars(numba.config), setting: "another"})
    monkeypatch.setattr(_recipe, "numba", types.SimpleNamespace(**{**vars(numba), "config": config}))
    assert run(define(source)) == 10.25
    assert len(new_targets()) == 1


def test_a_division_by_zero_follows_the_error_model():
    def divide(x, out):
        out[()] = 1 / x[()]

    assert run(numba.njit(error_model="numpy")(divide), 0) == np.inf
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="ZeroDivisionError"):
        run(numba.njit(divide), 0)


# What a kernel refers to


class Color(enum.IntEnum):
    RED = 1


class Pair(NamedTuple):
    first: float
    second: float


def module(**content):
    made = types.ModuleType("constants")
    vars(made).update(content)
    return made


def reads(expression):
    return f"def kernel(x, out):\n    out[()] = x[()] + {expression}\n"


def helper(value, default=0.0):
    space = {}
    exec(f"def helper(v, w={default}):\n    return v * {value} + w\n", space)  # noqa: S102
    return space["helper"]


CHANGES = {
    "number": ("G", {"G": 1.0}, {"G": 2.0}),
    "type of a number": ("G / 2", {"G": np.int64(1)}, {"G": np.float32(3)}),
    "content of an array": ("G[1]", {"G": np.array([0.0, 1])}, {"G": np.array([0.0, 2])}),
    "array in a tuple": ("G[0][1]", {"G": (np.array([0, 1]), 5)}, {"G": (np.array([0, 2]), 5)}),
    "attribute of a module": ("G.value", {"G": module(value=1)}, {"G": module(value=2)}),
    "module in a module": ("G.m.value", {"G": module(m=module(value=1))}, {"G": module(m=module(value=2))}),
    "member of an enum": ("G.RED.value", {"G": Color}, {"G": enum.IntEnum("Color", {"RED": 2})}),
    "named tuple": ("G.first", {"G": Pair(1.0, 5.0)}, {"G": Pair(2.0, 5.0)}),
    "helper": ("G(x[()])", {"G": numba.njit(helper(1))}, {"G": numba.njit(helper(2))}),
    "default of a helper": ("G(x[()])", {"G": numba.njit(helper(0, 1))}, {"G": numba.njit(helper(0, 2))}),
    "helper in a module": (
        "G.f(x[()])",
        {"G": module(f=numba.njit(helper(1)))},
        {"G": module(f=numba.njit(helper(2)))},
    ),
    "helper of a helper": (
        "G(x[()])",
        {"G": define("def f(v):\n    return g(v)\n", "f", g=numba.njit(helper(1)))},
        {"G": define("def f(v):\n    return g(v)\n", "f", g=numba.njit(helper(2)))},
    ),
    "function of NumPy": ("G(x[()] - 1)", {"G": np.cos}, {"G": np.sin}),
    "record": ("G[0]['a']", {"G": np.array([(1,)], [("a", "f4")])}, {"G": np.array([(2,)], [("a", "f4")])}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_reference_of_a_kernel_is_another_target(what, new_targets):
    expression, before, after = CHANGES[what]
    expected = [1 + eval(expression, {"x": np.float32([1])[0].reshape(()), **space}) for space in (before, after)]  # noqa: S307
    assert expected[0] != expected[1]
    for space, value in zip((before, after), expected, strict=True):
        for _ in range(2):
            assert run(define(reads(expression), **space)) == pytest.approx(value)
        assert len(new_targets()) == 1, what


# Definitions that come again, as in a notebook


def test_a_function_defined_again_under_its_name(new_targets):
    for value in (1, 2, 3):
        assert run(define(PLUS.format(value))) == 1 + value
    assert len(new_targets()) == 3
    assert run(define(PLUS.format(2))) == 3
    assert new_targets() == []


def test_old_wrappers_keep_their_kernel():
    calls = [numba_kernel(define(PLUS.format(value)), outs=OUT) for value in (1, 2)]
    jitted = jax.jit(lambda x: (calls[0](x), calls[1](x)))
    assert jitted(0.0) == (1, 2)
    assert [call(0.0) for call in calls] == [1, 2]


FACTOR = 1.0


@numba.njit
def times_factor(x, out):
    out[()] = x[()] * FACTOR


def test_a_global_is_read_when_a_call_is_traced(monkeypatch):
    """As in a function under jax.jit."""
    call = numba_kernel(times_factor, outs=OUT)
    assert call(3.0) == 3
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert call(3.0) == 3  # not traced again
    assert run(times_factor, 3) == 6
    assert run(numba.njit(times_factor.py_func), 3) == 6
    jax.clear_caches()
    assert (call(3.0), run(times_factor, 3)) == (6, 6)


def test_an_array_that_is_changed_in_place():
    table = np.array([1.0])
    source = "def kernel(x, out):\n    out[()] = x[()] + table[0]\n"
    kernel = define(source, table=table)
    assert run(kernel) == 2
    table[0] = 5
    assert run(kernel) == 6
    assert run(define(source, table=table)) == 6
    table[0] = 1
    assert run(kernel) == 2


def test_explicit_signatures_do_not_limit_a_kernel():
    kernel = numba.njit("void(float64[:], float64[:])")(lambda x, out: None)
    numba_kernel(kernel, outs=jax.ShapeDtypeStruct((2,), jnp.int8))(jnp.ones(3, jnp.int8)).block_until_ready()


def test_errors_of_one_function_at_two_places_name_the_right_one():
    """Equal code at two lines must not share machine code, because its errors name the line."""
    source = "def kernel(x, out):\n    raise ValueError('here')\n"
    for lines in (0, 5):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=f":{lines + 2} in kernel"):
            run(define("\n" * lines + source))
