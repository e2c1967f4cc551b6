"""Names of targets: equal kernels share one, and no kernel runs the code of another."""

import gc
import linecache
import types
from typing import Any

import jax
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.ffi.registry import registered_targets
from xlakernel.warp import warp_kernel

pytestmark = pytest.mark.versions

wp.set_module_options({"enable_backward": False})

X = np.arange(3, dtype="f4")


def same(x, *_):
    return x


def run(kernel, x=X, **options):
    return np.asarray(warp_kernel(kernel, same, **options)(x))


@pytest.fixture
def new_targets():
    """Return a function that gives the targets registered since it was last called."""
    known = len(registered_targets())

    def new():
        nonlocal known
        found, known = registered_targets()[known:], len(registered_targets())
        return found

    return new


@wp.kernel
def plus_one(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + 1.0


@wp.kernel
def plus(x: wp.array(dtype=float), value: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + value


def test_wrapping_a_kernel_many_times_registers_it_once(new_targets):
    for i in range(1000):
        call = warp_kernel(plus_one, lambda x: x, launch_dims=lambda x: x.shape)
        if i % 100 == 0:
            assert_array_equal(call(X + i), X + i + 1)
    (name,) = new_targets()
    assert name.startswith(f"xlakernel.warp/{__name__}.plus_one(i0 float32[1d], o0 float32[1d])#")


def test_shapes_batches_threads_and_scalars_make_no_other_target(new_targets):
    call = warp_kernel(plus, same)
    assert_array_equal(call(X, value=1), X + 1)
    assert len(new_targets()) == 1
    for size in (0, 1, 7):
        x = np.arange(size, dtype="f4")
        for value in (1, 2.5, np.float32(-1)):
            assert_array_equal(jax.jit(lambda x, value=value: call(x, value=value))(x), x + np.float32(value))
    assert_array_equal(jax.vmap(jax.vmap(lambda x: call(x, value=3)))(np.ones((2, 3, 4), "f4")), np.full((2, 3, 4), 4))
    assert_array_equal(warp_kernel(plus, same, launch_dims=2)(X, value=1)[:2], X[:2] + 1)
    assert_array_equal(warp_kernel(plus, same, vmap_method="broadcast_all", block_dim=64)(X, value=1), X + 1)
    assert len(new_targets()) == 1  # for the launch of no threads, which calls nothing


OPTIONS = [
    {},
    {"output_init": 0},
    {"output_init": 1},
    {"output_init": 1, "launch_dims": 0},
    {"has_side_effect": True},
]


def test_what_a_handler_does_besides_is_part_of_its_name(new_targets):
    for debug in (False, True):
        with debug_mode(debug):
            for options in OPTIONS:
                out = run(plus_one, **options)
                assert_array_equal(out, np.ones(3) if options.get("launch_dims") == 0 else X + 1)
        assert len(new_targets()) >= len(OPTIONS) - (not debug)  # the first of them may be there
    for options in OPTIONS:
        run(plus_one, **options)
    assert new_targets() == []


# Kernels of one name: each factory is given a value, by which alone they differ


def closure(value, **options):
    @wp.kernel(**options)
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + value

    return kernel


def function(value):
    if value == 1.0:

        @wp.func
        def step(x: float):
            return x + 1.0
    else:

        @wp.func
        def step(x: float):
            return x + 2.0

    return calling(step)


def calling(step):
    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = step(x[i])

    return kernel


def function_of_a_function(value):
    inner = 1.0 * value

    @wp.func
    def deep(x: float):
        return x + inner

    @wp.func
    def step(x: float):
        return deep(x)

    return calling(step)


def static(value):
    holder = types.SimpleNamespace(value=value)  # Warp does not look into it by itself

    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + wp.static(holder.value)

    return kernel


def static_in_a_loop(value):
    values = [value / 2.0, value / 2.0]

    @wp.kernel(module="unique")  # in one module, Warp itself takes such kernels of one name for the same
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        total = x[i]
        for j in range(2):
            total += wp.static(values[j])
        out[i] = total

    return kernel


def constant(value):
    number = wp.constant(value)

    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + number

    return kernel


def vector_constant(value):
    numbers = wp.constant(wp.vec3(0.0, value, 0.0))

    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + numbers[1]

    return kernel


def in_modules_of_their_own(value):
    return closure(value, module="unique")


def struct(value):
    @wp.struct
    class Numbers:
        first: float
        second: float

    if value == 1.0:

        @wp.func
        def make():
            return Numbers(1.0, 2.0)
    else:

        @wp.func
        def make():
            return Numbers(2.0, 1.0)

    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + make().first

    return kernel


FACTORIES = (closure, function, function_of_a_function, static, static_in_a_loop, constant, vector_constant, struct)
FACTORIES += (in_modules_of_their_own,)


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.__name__)
def test_equal_kernels_share_a_target_and_others_never_do(factory, new_targets):
    kernels = [factory(value) for value in (1.0, 2.0, 1.0, 2.0)]  # all there when the first is compiled
    for _ in range(2):
        for kernel, value in zip(kernels, (1.0, 2.0, 1.0, 2.0), strict=True):
            assert_array_equal(run(kernel), X + value)
    assert len(new_targets()) == 2
    late = factory(1.0)  # Warp loads the module again
    assert_array_equal(run(late), X + 1)
    assert_array_equal(run(kernels[1], X[:2]), X[:2] + 2)  # lowered again
    assert new_targets() == []


def test_kernels_that_come_and_go_are_never_mistaken(new_targets):
    """Their addresses are used again."""
    for value in (3.0, 4.0, 5.0, 6.0):
        kernel = closure(value, module="unique")
        assert_array_equal(run(kernel), X + value)
        assert_array_equal(run(kernel, launch_dims=lambda x: x.size), X + value)
        del kernel
        jax.clear_caches()
        gc.collect()
    assert len(new_targets()) == 4


# Options


@wp.kernel(module=wp.get_module(f"{__name__}.options"), enable_backward=False)
def optional(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] / 3.0


def test_other_options_of_a_module_are_another_target(new_targets):
    found = []
    for fast in (False, True, False):
        optional.module.options["fast_math"] = fast
        optional.module.mark_modified()  # as wp.set_module_options does
        assert abs(run(optional) - X / 3).max() < 1e-6
        found.append(len(new_targets()))
    assert found == [1, 1, 0]


def test_other_options_of_a_kernel_are_another_target(new_targets):
    for backward in (True, False):
        module = wp.get_module(f"{__name__}.backward_{backward}")  # in one, Warp 1.14 takes the kernels for the same
        assert_array_equal(run(closure(9.0, enable_backward=backward, module=module)), X + 9)
    assert len(new_targets()) == 2


def test_overloads_are_targets_of_their_own(new_targets):
    @wp.kernel(module="unique", enable_backward=False)
    def generic(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
        i = wp.tid()
        out[i] = x[i] + x[i]

    by_hand = [wp.overload(generic, [wp.array(dtype=kind)] * 2) for kind in (wp.vec3, wp.vec2, wp.float32)]
    for kernel, shape in zip(by_hand, ((4, 3), (4, 2), (4,)), strict=True):
        assert_array_equal(run(kernel, np.ones(shape, "f4")), np.full(shape, 2))
    assert len(new_targets()) == 3
    assert_array_equal(run(generic), 2 * X)
    assert len(new_targets()) <= 1  # as the overload by hand


# Globals that change


SCALE = wp.constant(2.0)


def scaled():
    @wp.kernel(module=wp.get_module(f"{__name__}.globals"))
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] * SCALE

    return kernel


def test_a_constant_that_changed_is_seen_by_kernels_that_are_defined_later(monkeypatch):
    first = warp_kernel(scaled(), same)
    program = jax.jit(first)
    assert_array_equal(program(X), X * 2)
    monkeypatch.setitem(globals(), "SCALE", wp.constant(3.0))
    assert_array_equal(run(scaled()), X * 3)
    assert_array_equal(program(X), X * 2)  # compiled


# As in a notebook, whose cells have no file, and define the same names again

CELL = """
@wp.kernel
def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + {}
"""


@pytest.fixture
def notebook(monkeypatch):
    """Return a function that runs a cell, and returns what it calls ``kernel``."""
    module = types.ModuleType("__main__")
    space, count = vars(module), 0
    space["wp"] = wp

    def cell(source):
        nonlocal count
        count += 1
        file = f"<ipython-input-{count}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), space)  # noqa: S102
        return space["kernel"]

    yield cell
    for number in range(1, count + 1):
        linecache.cache.pop(f"<ipython-input-{number}>", None)


def test_a_kernel_that_is_defined_again_in_a_notebook(notebook):
    calls = []
    for value in (1.0, 2.0, 1.0, 3.0):
        calls.append((warp_kernel(notebook(CELL.format(value)), same), value))
        for call, expected in calls:
            assert_array_equal(call(X), X + expected)
    for call, expected in calls:  # lowered again, when other kernels have their name
        assert_array_equal(call(np.ones(5, "f4")), np.full(5, 1 + expected))
        assert_array_equal(jax.vmap(call)(np.stack([X, X])), [X + expected] * 2)


def test_messages_name_the_cell(notebook):
    call = warp_kernel(notebook(CELL.format("1.0").replace("out[i] =", "if i > 0:\n        out[i] =")), same)
    with debug_mode(), pytest.raises(Exception, match=r"kernel 'kernel' of <ipython-input-1>:\d+ did not write"):
        jax.block_until_ready(call(X))
