"""Values of globals, variables and attributes that change between the definition of a kernel and its compilation."""

import threading
import types

import jax
import numpy as np
import pytest
import warp as wp

from xlakernel.warp import warp_kernel

A = wp.array(dtype=float)
X = np.ones(4, np.float32)
OUT = jax.ShapeDtypeStruct((4,), np.float32)

SCALE = 1.0
VECTOR = wp.vec2(1.0, 1.0)
module = types.ModuleType("constants")


class Constants:
    SCALE = 1.0


@wp.func
def once(x: float):
    return x


@wp.func
def twice(x: float):
    return 2.0 * x


@wp.func
def thrice(x: float):
    return 3.0 * x


FUNCTIONS = {1.0: once, 2.0: twice, 3.0: thrice}
function = once


def with_global(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_global(x: A, out: A):
        i = wp.tid()
        out[i] = SCALE * x[i]

    return scaled_by_global


def with_attribute(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_attribute(x: A, out: A):
        i = wp.tid()
        out[i] = Constants.SCALE * x[i]

    return scaled_by_attribute


def with_module_attribute(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_module_attribute(x: A, out: A):
        i = wp.tid()
        out[i] = module.SCALE * x[i]

    return scaled_by_module_attribute


def with_vector(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_vector(x: A, out: A):
        i = wp.tid()
        out[i] = VECTOR[0] * x[i]

    return scaled_by_vector


def with_function(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_function(x: A, out: A):
        i = wp.tid()
        out[i] = function(x[i])

    return scaled_by_function


def with_helper(**options):
    @wp.func
    def helper(x: float):
        return SCALE * x

    @wp.kernel(enable_backward=False, **options)
    def scaled_by_helper(x: A, out: A):
        i = wp.tid()
        out[i] = helper(x[i])

    return scaled_by_helper


def with_cell(**options):
    scale = 1.0

    @wp.kernel(enable_backward=False, **options)
    def scaled_by_cell(x: A, out: A):
        i = wp.tid()
        out[i] = scale * x[i]

    def assign(value):
        nonlocal scale
        scale = value

    assign(SCALE)
    scaled_by_cell.assign = assign
    return scaled_by_cell


def assign(value):
    """Give every value above that kernels refer to another value."""
    global SCALE, function
    SCALE = Constants.SCALE = module.SCALE = VECTOR[0] = value
    function = FUNCTIONS[value]


@pytest.fixture(autouse=True)
def ones():
    assign(1.0)
    yield
    assign(1.0)


def scale_of(kernel):
    return float(jax.jit(warp_kernel(kernel, OUT)).lower(X).compile()(X)[0])


MAKERS = [with_global, with_attribute, with_module_attribute, with_vector, with_function, with_helper]


@pytest.mark.parametrize("options", [{}, {"module": "unique"}], ids=["module", "unique"])
@pytest.mark.parametrize("make", MAKERS)
def test_a_kernel_defined_later_has_its_own_values(make, options):
    changed = make(**options)
    assign(2.0)
    assert scale_of(changed) == 2.0
    assign(1.0)
    assert scale_of(make(**options)) == 1.0
    for value in (3.0, 2.0, 1.0):
        assign(value)
        assert scale_of(make(**options)) == value


@pytest.mark.parametrize("make", MAKERS)
def test_compiled_code_is_frozen(make):
    kernel = make(module="unique")
    assert scale_of(kernel) == 1.0
    assign(2.0)
    assert scale_of(kernel) == 1.0


def test_a_variable_of_a_function_that_is_assigned_later():
    kernel = with_cell(module="unique")
    kernel.assign(2.0)
    assert scale_of(kernel) == 2.0
    assert scale_of(with_cell(module="unique")) == 1.0


def test_plain_launches_do_not_store_code_under_other_values():
    def make():
        @wp.kernel(module="unique", enable_backward=False)
        def launched_by_warp(x: A, out: A):
            i = wp.tid()
            out[i] = SCALE * x[i]

        return launched_by_warp

    changed = make()
    assign(2.0)
    out = wp.zeros(4, float, device="cpu")
    wp.launch(changed, 4, [wp.array(X, device="cpu")], [out], device="cpu")
    assert out.numpy()[0] == 2.0
    assign(1.0)
    assert scale_of(make()) == 1.0


def test_a_generic_kernel_that_is_defined_later_has_its_own_values():
    def make():
        @wp.kernel(module="unique", enable_backward=False)
        def scaled_generic(x: wp.array(dtype=wp.Float), out: wp.array(dtype=wp.Float)):
            i = wp.tid()
            out[i] = x.dtype(SCALE) * x[i]

        return scaled_generic

    changed = make()
    assign(2.0)
    assert scale_of(changed) == 2.0
    assign(1.0)
    assert scale_of(make()) == 1.0


@pytest.mark.parametrize("options", [{}, {"module": "unique"}], ids=["module", "unique"])
def test_values_that_another_thread_assigns_are_read_once(options):
    def make():
        @wp.kernel(enable_backward=False, **options)
        def ratio_of_attribute(x: A, out: A):
            i = wp.tid()
            out[i] = Constants.SCALE / Constants.SCALE * x[i] + Constants.SCALE - Constants.SCALE

        return ratio_of_attribute

    done = threading.Event()

    def change():
        while not done.is_set():
            Constants.SCALE = 2.0
            Constants.SCALE = 1.0

    thread = threading.Thread(target=change)
    thread.start()
    try:
        found = [scale_of(make()) for _ in range(10)]
        for _ in range(10):
            with_attribute(**options)
            scale_of(with_attribute(**options))
    finally:
        done.set()
        thread.join()
    assert found == [1.0] * 10
    for value in (1.0, 2.0):
        Constants.SCALE = value
        assert scale_of(with_attribute(**options)) == value
