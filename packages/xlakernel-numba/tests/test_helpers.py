"""The references of a kernel that determine its code: helpers compiled earlier, overloads, compiler pipelines."""

import threading

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numba.core.compiler import Compiler
from numba.extending import overload, overload_attribute, overload_method

from xlakernel.core.ffi.registry import registered_targets
from xlakernel.numba import numba_kernel

ONE = jnp.zeros(1)


def define(source, **names):
    """Run *source* like a notebook's cell, in a namespace that later cells may change."""
    space = {"numba": numba, **names}
    exec(source, space)  # noqa: S102
    return space


HELPER = "@numba.njit\ndef helper(v): return v + G\n"
KERNEL = "@numba.njit\ndef kernel(x, out): out[0] = helper(x[0])\n"


def run(space):
    return float(numba_kernel(space["kernel"], outs=ONE)(ONE)[0])


def test_helpers_without_anything_to_change_are_shared():
    source = "@numba.njit\ndef helper(v): return v + 1\n" + KERNEL.replace("helper(x[0])", "helper(x[0]) * 7")
    first = define(source)
    first["helper"](np.float32(0))
    assert run(first) == 7
    before = len(registered_targets())
    assert run(define(source)) == 7
    assert len(registered_targets()) == before


@pytest.mark.parametrize("factor", [2, 3])
def test_an_overload_is_part_of_the_kernel(factor):
    def scaled(value):
        raise NotImplementedError

    @overload(scaled)
    def scaled_in_numba(value):
        return lambda value: value * factor

    @numba.njit
    def kernel(x, out):
        out[0] = scaled(x[0])

    assert numba_kernel(kernel, outs=ONE)(ONE + 1)[0] == factor


def test_a_pipeline_is_part_of_the_kernel():
    class Other(Compiler):
        pass

    def kernel(x, out):
        out[0] = x[0]

    before = len(registered_targets())
    for dispatcher in (numba.njit(kernel), numba.njit(pipeline_class=Other)(kernel)):
        numba_kernel(dispatcher, outs=ONE)(ONE)
    assert len(registered_targets()) == before + 2


def test_a_kernel_is_wrapped_while_numba_compiles_in_another_thread():
    """Numba's lock and ours are always taken in one order."""
    begun, other_begun = threading.Event(), threading.Event()

    @numba.njit
    def constant(x, out):
        out[0] = x[0] + 3

    @numba.njit
    def slow_to_register(x, out):
        out[0] = x[0] + 4

    def value():
        raise NotImplementedError

    @overload(value)
    def value_in_numba():
        begun.set()
        other_begun.wait(5)
        found = float(numba_kernel(constant, outs=ONE)(ONE)[0])
        return lambda: found

    results = []

    def compile_with_overload():
        results.append(numba.njit(lambda: value())())

    def call_another():
        begun.wait(5)
        other_begun.set()
        results.append(float(numba_kernel(slow_to_register, outs=ONE)(ONE)[0]))

    threads = [threading.Thread(target=target, daemon=True) for target in (compile_with_overload, call_another)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [3, 4]


def test_failures_of_equal_kernels_at_two_places_are_distinguished():
    """They share the function that records exceptions inside prange."""
    source = """
@numba.njit
def check(v):
    if v < 0:
        raise ValueError("negative")
    return v


@numba.njit(parallel=True)
def kernel(x, out):
    for i in numba.prange(out.size):
        out[i] = check(x[i])
"""
    kernels = [define(source)["kernel"], define("\n" + source)["kernel"]]
    calls = [numba_kernel(kernel, outs=lambda x: x) for kernel in kernels]
    good = jnp.arange(5000.0)
    bad = good.at[4999].set(-1)
    wrong = []

    def call_often(call, x, fails):
        for _ in range(60):
            try:
                jax.block_until_ready(call(x))
                failed = False
            except (ValueError, jax.errors.JaxRuntimeError):
                failed = True
            if failed != fails:
                wrong.append(fails)

    for call, x in zip(calls, (good, good), strict=True):
        jax.block_until_ready(call(x))
    threads = [
        threading.Thread(target=call_often, args=arguments)
        for arguments in ((calls[0], good, False), (calls[1], bad, True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("declare", "use"), [(overload_method, "x.{}()"), (overload_attribute, "x.{}")])
def test_a_declared_attribute_belongs_to_the_kernel(declare, use):
    """Numba finds it by the attribute's name on a type; no name of the kernel refers to it."""
    name = f"twofold_{declare.__name__}"
    kernel = f"@numba.njit\ndef kernel(x, out): out[0] = {use.format(name)}\n"
    for factor in (1, 2):
        declare(numba.types.Array, name)(define(f"def declared(x): return lambda x: {factor} * x[0]\n")["declared"])
        run_kernel = numba_kernel(define(kernel)["kernel"], outs=ONE)
        assert run_kernel(ONE + 3)[0] == 3 * factor


@pytest.mark.parametrize("first", [0, 1])
def test_a_parallel_helper_called_by_an_overload_reports_exceptions(first):
    """Kernels share the copy of a helper."""

    @numba.njit
    def checked(v):
        if v < 0:
            raise ValueError("negative")
        return v + first

    @numba.njit(parallel=True)
    def helper(x, out):
        for i in numba.prange(x.size):
            out[i] = checked(x[i])

    def named(x, out): ...

    @overload(named)
    def _named(x, out):
        return lambda x, out: helper(x, out)

    @numba.njit
    def by_overload(x, out):
        named(x, out)

    @numba.njit
    def by_itself(x, out):
        helper(x, out)

    x = np.arange(1000, dtype=np.float32)
    kernels = [by_overload, by_itself]
    for kernel in (kernels[first], kernels[1 - first]):
        call = numba_kernel(kernel, outs=lambda x: x)
        np.testing.assert_array_equal(call(x), x + first)
        with pytest.raises(Exception, match="negative"):
            jax.block_until_ready(call(-x))
        np.testing.assert_array_equal(call(x), x + first)
