"""Kernels of equal text that differ in what their names stand for: each runs its own code.

Warp's own hash of a kernel takes them for one. Its tracker has some of the cases: https://github.com/NVIDIA/warp/issues/637.
"""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest
import warp as wp

from xlakernel.warp import jax_callable, jax_kernel, warp_kernel
from xlakernel.warp._internals import code

wp.set_module_options({"enable_backward": False})

A = wp.array(dtype=float)
DOUBLES = wp.array(dtype=wp.float64)
INTEGERS = wp.array(dtype=wp.int64)
X = np.linspace(0.25, 1.0, 4, dtype=np.float32)


@wp.func
def square(x: float):
    return x * x


@wp.func
def cube(x: float):
    return x * x * x


def builtin_in_kernel(f):
    @wp.kernel
    def with_builtin(x: A, out: A):
        i = wp.tid()
        out[i] = f(x[i])

    return with_builtin


@wp.func
def static(x: float):
    return x


def builtin_in_call_of_static(f):
    """Its function is not ``wp.static``."""

    @wp.kernel
    def with_static(x: A, out: A):
        i = wp.tid()
        out[i] = static(f(x[i]))

    return with_static


def builtin_in_function(f):
    @wp.func
    def helper(x: float):
        return f(x)

    @wp.kernel
    def with_helper(x: A, out: A):
        i = wp.tid()
        out[i] = helper(x[i])

    return with_helper


def builtin_in_namespace(f):
    ns = types.SimpleNamespace(f=f)

    @wp.kernel
    def with_namespace(x: A, out: A):
        i = wp.tid()
        out[i] = ns.f(x[i])

    return with_namespace


def default(value):
    @wp.func
    def scaled(x: float, by: float = value):
        return x * by

    @wp.kernel
    def with_default(x: A, out: A):
        i = wp.tid()
        out[i] = scaled(x[i])

    return with_default


def gradient(f):
    @wp.kernel(enable_backward=False)
    def with_gradient(x: A, out: A):
        i = wp.tid()
        out[i] = wp.grad(f)(x[i])

    return with_gradient


def mapped(f):
    @wp.kernel
    def with_map(x: A, out: A):
        wp.tile_store(out, wp.tile_map(f, wp.tile_load(x, shape=4)))

    return with_map


def element_type(T):
    @wp.kernel
    def with_type(x: A, out: DOUBLES):
        i = wp.tid()
        one = wp.identity(n=2, dtype=T)[0, 0]
        out[i] = wp.float64(one / (one + one + one))

    return with_type


def wide_number(c):
    @wp.kernel
    def with_wide_number(x: A, out: DOUBLES):
        i = wp.tid()
        out[i] = wp.float64(c)

    return with_wide_number


def wide_integer(c):
    @wp.kernel
    def with_wide_integer(x: A, out: INTEGERS):
        i = wp.tid()
        out[i] = wp.int64(c)

    return with_wide_integer


def static_number(c):
    @wp.kernel
    def with_static_number(x: A, out: DOUBLES):
        i = wp.tid()
        out[i] = wp.float64(wp.static(c))

    return with_static_number


def three_functions(functions):
    f, g, h = functions

    @wp.kernel
    def with_three_functions(x: A, out: A):
        i = wp.tid()
        out[i] = f(x[i]) + 10.0 * g(x[i]) + 100.0 * h(x[i])

    return with_three_functions


WAVES = {wp.sin: np.sin(X), wp.cos: np.cos(X), wp.exp: np.exp(X)}
POWERS = {square: X**2, cube: X**3}

CASES = {
    builtin_in_kernel: WAVES,
    builtin_in_call_of_static: WAVES,
    builtin_in_function: WAVES,
    builtin_in_namespace: WAVES,
    default: {2.0: 2 * X, 3.0: 3 * X},
    gradient: {square: 2 * X, cube: 3 * X**2},
    mapped: POWERS,
    three_functions: {
        (square, cube, square): 101 * X**2 + 10 * X**3,
        (square, cube, cube): X**2 + 110 * X**3,
    },
    element_type: {wp.float32: np.full(4, np.float32(1) / np.float32(3), "f8"), wp.float64: np.full(4, 1 / 3)},
    wide_number: {c: np.full(4, c) for c in (0.1, 0.1 + 1e-12)},
    wide_integer: {c: np.full(4, c) for c in (1, 2**32 + 1)},
    static_number: {c: np.full(4, c) for c in (0.1, 0.1 + 1e-12)},
}


def wrapped(make, value, how, like):
    options = {"launch_dims": (1, 64), "block_dim": 64} if make is mapped else {"launch_dims": 4}
    if how is warp_kernel:
        return warp_kernel(make(value), jax.ShapeDtypeStruct(like.shape, like.dtype), **options)
    call = jax_kernel(make(value), output_dims=4, **options)
    return lambda x: call(x)[0]


@pytest.mark.usefixtures("x64", "platform")
@pytest.mark.parametrize(
    ("make", "how"),
    [*((make, warp_kernel) for make in CASES), (builtin_in_kernel, jax_kernel)],
    ids=lambda function: function.__name__,
)
def test_each_kernel_runs_its_own_code(make, how):
    runs = [(wrapped(make, value, how, like), like) for value, like in CASES[make].items()]
    for run, like in runs:
        np.testing.assert_allclose(run(X), like, rtol=1e-6 if like.dtype == "f4" else 1e-15)


@pytest.mark.usefixtures("platform")
def test_a_callable_launches_each_kernel_with_its_own_code():
    sine, cosine = builtin_in_kernel(wp.sin), builtin_in_kernel(wp.cos)

    def both(x: A, first: A, second: A):
        for kernel, out in ((sine, first), (cosine, second)):
            wp.launch(kernel, dim=4, inputs=[x], outputs=[out])

    np.testing.assert_allclose(jax_callable(both, num_outputs=2)(X), [np.sin(X), np.cos(X)], rtol=1e-6)


NUMBER = 2


@wp.kernel
def with_static(x: A, out: A):
    i = wp.tid()
    out[i] = x[i] * float(wp.static(NUMBER))


def test_what_a_static_expression_was_computed_from_does_not_count(monkeypatch):
    call = warp_kernel(with_static, lambda x: x)
    np.testing.assert_array_equal(call(X), 2 * X)
    before = code.code_hash(with_static, 1)
    monkeypatch.setattr(f"{__name__}.NUMBER", 3)
    assert not code.is_outdated(with_static, 1)
    with_static.module.mark_modified()
    assert code.code_hash(with_static, 1) == before


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the program in a process of its own, each with the same cache of Warp's; return what it found."""
    cache = tmp_path_factory.mktemp("warp")

    def run(*arguments, **environment):
        env = {**os.environ, "WARP_CACHE_PATH": str(cache), **environment}
        command = [sys.executable, Path(__file__).parents[1] / "programs" / "code_hash.py", *arguments]
        out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(out.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def first(run):
    return run("first", PYTHONHASHSEED="1")


@pytest.mark.process
def test_other_processes_do_not_find_it_in_the_cache(run, first):
    cosine = run(WAVE="cos")
    np.testing.assert_allclose(first["wave"], np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(cosine["wave"], np.cos(X), rtol=1e-6)
    assert first["hash"] != cosine["hash"]


@pytest.mark.process
def test_other_processes_find_the_same_kernel_in_the_cache(run, first):
    assert run(PYTHONHASHSEED="2")["hash"] == first["hash"]


@pytest.mark.process
def test_kernels_that_warp_launched_before_run_their_own_code(first):
    np.testing.assert_allclose(first["called"], [np.sin(X), np.cos(X)], rtol=1e-6)


@pytest.mark.process
def test_kernels_that_warp_hashes_well_keep_their_hash(first):
    assert first["own"] == first["own again"]


@pytest.mark.process
def test_kernels_that_warp_merged_when_they_were_defined_are_refused(first):
    for message in first["merged"]:
        assert "with_builtin: Warp" in message
        assert 'Leave out module="unique", or give the functions different names' in message
    np.testing.assert_allclose(first["apart"], [np.sin(X), np.cos(X)], rtol=1e-6)


@pytest.mark.process
def test_a_kernel_that_is_defined_twice_is_not_refused(first):
    np.testing.assert_allclose(first["twice"], [2 * X] * 2)
