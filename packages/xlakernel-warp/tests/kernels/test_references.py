"""Values of globals, variables and attributes that change between the definition of a kernel and its compilation."""

import enum
import threading
import types
from typing import Any

import jax
import numpy as np
import pytest
import warp as wp

from xlakernel.core import deserialize, export
from xlakernel.core.errors import CompileError
from xlakernel.warp import warp_kernel
from xlakernel.warp._internals import code

A = wp.array(dtype=float)
X = np.ones(4, np.float32)
OUT = jax.ShapeDtypeStruct((4,), np.float32)

SCALE = 1.0
PARTS = (0.5, 0.5)
VECTOR = wp.vec2(1.0, 1.0)
module = types.ModuleType("constants")


class Constants:
    SCALE = 1.0
    PARTS = (0.5, 0.5)


class Factor(enum.IntEnum):
    TWO = 2


def multiple(factor):
    @wp.func
    def multiplied(x: float):
        return float(factor) * x

    return multiplied


FUNCTIONS = {value: multiple(value) for value in range(1, 7)}
function = FUNCTIONS[1]


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


def with_static_in_loop(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_static(x: A, out: A):
        i = wp.tid()
        out[i] = 0.0
        for part in range(2):
            out[i] += wp.static(PARTS[part]) * x[i]

    return scaled_by_static


def with_static_attribute_in_loop(**options):
    @wp.kernel(enable_backward=False, **options)
    def scaled_by_static_attribute(x: A, out: A):
        i = wp.tid()
        out[i] = 0.0
        for part in range(2):
            out[i] += wp.static(Constants.PARTS[part]) * x[i]

    return scaled_by_static_attribute


def with_static_in_helper(**options):
    @wp.func
    def sum_of_parts(x: float):
        total = float(0.0)  # noqa: UP018  # a variable, in Warp
        for part in range(2):
            total += wp.static(PARTS[part]) * x
        return total

    @wp.kernel(enable_backward=False, **options)
    def scaled_by_static_in_helper(x: A, out: A):
        i = wp.tid()
        out[i] = sum_of_parts(x[i])

    return scaled_by_static_in_helper


def with_static_in_generic_helper(**options):
    @wp.func
    def generic_sum_of_parts(x: Any):
        total = float(0.0)  # noqa: UP018  # a variable, in Warp
        for part in range(2):
            total += wp.static(PARTS[part]) * x
        return total

    @wp.kernel(enable_backward=False, **options)
    def scaled_by_static_in_generic_helper(x: A, out: A):
        i = wp.tid()
        out[i] = generic_sum_of_parts(x[i])

    return scaled_by_static_in_generic_helper


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
    global SCALE, PARTS, function
    PARTS = Constants.PARTS = (value / 2, value / 2)
    SCALE = Constants.SCALE = module.SCALE = VECTOR[0] = value
    function = FUNCTIONS[value]


@pytest.fixture(autouse=True)
def ones():
    assign(1.0)
    yield
    assign(1.0)


def scale_of(kernel):
    return float(jax.jit(warp_kernel(kernel, OUT)).lower(X).compile()(X)[0])


STATIC = [
    with_static_in_loop,
    with_static_attribute_in_loop,
    with_static_in_helper,
    with_static_in_generic_helper,
]
MAKERS = [with_global, with_attribute, with_module_attribute, with_vector, with_function, with_helper, *STATIC]


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


@pytest.mark.parametrize("options", [{}, {"module": "unique"}], ids=["module", "unique"])
@pytest.mark.parametrize("make", MAKERS)
def test_code_has_the_values_that_it_was_hashed_with(make, options):
    assign(4.0)
    kernel = make(**options)
    assign(5.0)
    before = code.content(kernel, 1)
    assign(6.0)
    out = wp.zeros(4, float, device="cpu")
    wp.launch(kernel, 4, [wp.array(X, device="cpu")], [out], device="cpu", block_dim=1)
    assert out.numpy()[0] == 5.0
    assert code.content(kernel, 1) == before
    assert code.content(make(module="unique"), 1) != before


@pytest.mark.parametrize("make", STATIC)
def test_a_kernel_defined_beside_it_changes_the_static_values(make):
    kernel = make()
    assert scale_of(kernel) == 1.0
    assign(2.0)
    assert scale_of(with_global()) == 2.0  # Warp compiles both
    assign(1.0)
    assert scale_of(make()) == 1.0
    del kernel


@pytest.mark.parametrize("options", [{}, {"module": "unique"}], ids=["module", "unique"])
def test_static_expressions_that_define_functions(options):
    def scaled(part):
        @wp.func
        def multiplied(x: float):
            return wp.static(float(part + 1)) * x

        return multiplied

    @wp.kernel(enable_backward=False, **options)
    def scaled_by_functions(x: A, out: A):
        i = wp.tid()
        out[i] = 0.0
        for part in range(2):
            out[i] += wp.static(scaled(part))(x[i])

    assert scale_of(scaled_by_functions) == 3.0
    assert not code.is_outdated(scaled_by_functions, 1)
    assert scale_of(scaled_by_functions) == 3.0


def test_a_static_expression_that_fails_leaves_no_hash():
    global PARTS
    PARTS = (1.0,)
    kernel = with_static_in_generic_helper()
    with pytest.raises(CompileError, match=r"does not compile|failed to compile"):
        scale_of(kernel)
    assign(2.0)
    assert scale_of(with_static_in_generic_helper()) == 2.0
    assign(3.0)
    assert scale_of(with_static_in_generic_helper()) == 3.0


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


@pytest.mark.parametrize("options", [{}, {"module": "unique"}], ids=["module", "unique"])
def test_a_kernel_and_its_functions_read_one_value(options):
    def make():
        @wp.func
        def scaled(x: float):
            return SCALE * x

        @wp.kernel(enable_backward=False, **options)
        def ratio_of_results(x: A, out: A):
            i = wp.tid()
            out[i] = SCALE * x[i] / scaled(x[i])

        return ratio_of_results

    done = threading.Event()

    def change():
        global SCALE
        while not done.is_set():
            SCALE = 2.0
            SCALE = 1.0

    thread = threading.Thread(target=change)
    thread.start()
    try:
        found = [scale_of(make()) for _ in range(20)]
    finally:
        done.set()
        thread.join()
    assert found == [1.0] * 20


@wp.kernel(enable_backward=False)
def scaled_by_member(x: A, out: A):
    i = wp.tid()
    out[i] = float(int(Factor.TWO)) * x[i]


def test_a_kernel_that_names_a_member_of_an_enumeration_can_be_exported():
    exported = export(jax.jit(warp_kernel(scaled_by_member, OUT)))(X)
    np.testing.assert_array_equal(deserialize(exported.serialize()).call(X), 2 * X)
