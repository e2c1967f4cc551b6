"""Programs of several launches, which XLA may capture in its CUDA graphs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_allclose

from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

pytestmark = pytest.mark.gpu

Floats = wp.array(dtype=float)


@wp.kernel
def step(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * 0.5 + y[i]


@wp.kernel
def halve(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * 0.5


def in_two_launches(x: Floats, y: Floats, out: Floats):
    half = wp.empty_like(x)
    wp.launch(halve, dim=x.shape, inputs=[x], outputs=[half])
    wp.copy(out, half)
    wp.launch(add, dim=x.shape, inputs=[y], outputs=[out])


@wp.kernel
def add(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = out[i] + x[i]


run = warp_kernel(step, lambda x, y: x)
RUNS = {
    "warp_kernel": run,
    "jax_kernel": lambda x, y: jax_kernel(step)(x, y)[0],
    "jax_callable": lambda x, y: jax_callable(in_two_launches)(x, y)[0],
}


def numpy_steps(x, y, count):
    for _ in range(count):
        x = x * np.float32(0.5) + y
    return x


@pytest.mark.parametrize("way", RUNS)
@pytest.mark.parametrize("size", [4096, 1000])
def test_unrolled_launches_give_the_same_each_time_the_program_runs(way, size):
    def unrolled(x, y):
        for _ in range(20):
            x = RUNS[way](x, y)
        return x

    jitted = jax.jit(unrolled)
    for seed in range(4):  # other buffers each time, with which a captured graph is updated
        x, y = np.random.default_rng(seed).random((2, size), np.float32)
        assert_allclose(jitted(jnp.asarray(x), jnp.asarray(y)), numpy_steps(x, y, 20), rtol=1e-6)


@pytest.mark.parametrize("way", RUNS)
def test_launches_between_operations_of_xlas_own(way):
    def mixed(x, y):
        for _ in range(6):
            x = jnp.sin(RUNS[way](x, y)) + 1
        return x

    x, y = np.random.default_rng(0).random((2, 500), np.float32)
    expected = x
    for _ in range(6):
        expected = np.sin(numpy_steps(expected, y, 1)) + 1
    assert_allclose(jax.jit(mixed)(x, y), expected, rtol=1e-5)


def test_adjoints_after_one_another():
    def unrolled(x, y):
        for _ in range(10):
            (x,) = jax_kernel(step, enable_backward=True)(x, y)
        return x.sum()

    gradient = jax.jit(jax.grad(unrolled, (0, 1)))
    for seed in range(3):
        x, y = np.random.default_rng(seed).random((2, 1000), np.float32)
        for found, expected in zip(gradient(x, y), (2.0**-10, 2 - 2.0**-9), strict=True):
            assert_allclose(found, np.full(1000, expected), rtol=1e-6)


def test_equal_calls_share_one_target():
    x = jnp.ones(100)
    text = jax.jit(lambda x: run(run(x, x), x)).lower(x).as_text()
    targets = re.findall(r'custom_call @"([^"]+)"', text)
    assert targets and len({*targets}) == 1
