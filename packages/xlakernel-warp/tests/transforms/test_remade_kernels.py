"""Kernels that are made again and again in one module of Warp, which is compiled again and again."""

import functools
import gc

import jax
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.warp import jax_kernel, warp_kernel
from xlakernel.warp._kernels.launch import WarpLaunch

wp.set_module_options({"enable_backward": False})
pytestmark = pytest.mark.usefixtures("platform")

X = np.arange(5, dtype=np.float32)


def made_in(number):
    @wp.kernel
    def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + number

    return kernel


def test_what_was_compiled_before_stays_right():
    first, second = made_in(1.0), made_in(2.0)
    runs = [jax_kernel(kernel) for kernel in (first, second)]
    compiled = jax.jit(runs[0]).lower(X).compile()  # after another of the same name was made
    assert_array_equal(compiled(X)[0], X + 1)
    runs.append(warp_kernel(made_in(3.0), lambda x: x))
    del first, second
    gc.collect()
    for _ in range(2):
        assert_array_equal(compiled(X)[0], X + 1)
        for number, run in enumerate(runs, 1):
            assert_array_equal(np.ravel(run(X)), X + number)
    assert_array_equal(jax.jit(lambda x: runs[1](runs[0](x)[0])[0])(X), X + 3)


def test_a_kernel_that_is_made_while_a_function_is_traced():
    @functools.partial(jax.jit, static_argnames="number")
    def program(x, number):
        return jax_kernel(made_in(number))(x)[0]

    for x in (X, X[:2], X):
        assert_array_equal(program(x, number=7.0), x + 7)


def test_a_kernel_that_is_made_while_another_is_recorded(platform, monkeypatch):
    """As by another thread: Warp then loads the module anew, and other code is called than a moment before."""
    if platform != "cpu":
        pytest.skip("the code of a GPU is not identified by its address")
    record, meanwhile = WarpLaunch.recorded, []

    def recorded(launch, addresses):
        found = record(launch, addresses)
        if not meanwhile:
            meanwhile.append(made_in(99.0))
        return found

    monkeypatch.setattr(WarpLaunch, "recorded", recorded)
    assert_array_equal(jax_kernel(made_in(11.0))(X)[0], X + 11)
    assert_array_equal(jax_kernel(meanwhile[0])(X)[0], X + 99)
