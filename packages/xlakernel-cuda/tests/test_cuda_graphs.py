"""Programs of several launches, which XLA may capture in CUDA graphs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose

from xlakernel.cuda import numba_cuda_kernel

pytestmark = pytest.mark.gpu


@cuda.jit
def step(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 0.5 + y[i]


run = numba_cuda_kernel(step, lambda x, y: x, launch_dims=lambda x, y: x.size)


def numpy_steps(x, y, count):
    for _ in range(count):
        x = x * np.float32(0.5) + y
    return x


@pytest.mark.parametrize("size", [4096, 1000])
def test_unrolled_launches_give_the_same_each_time_the_program_runs(size):
    def unrolled(x, y):
        for _ in range(20):
            x = run(x, y)
        return x

    jitted = jax.jit(unrolled)
    for seed in range(4):  # other buffers each time, as a captured graph must be told
        x, y = np.random.default_rng(seed).random((2, size), np.float32)
        assert_allclose(jitted(jnp.asarray(x), jnp.asarray(y)), numpy_steps(x, y, 20), rtol=1e-6)


def test_launches_between_operations_of_xlas_own():
    def mixed(x, y):
        for _ in range(6):
            x = jnp.sin(run(x, y)) + 1
        return x

    x, y = np.random.default_rng(0).random((2, 500), np.float32)
    expected = x
    for _ in range(6):
        expected = np.sin(numpy_steps(expected, y, 1)) + 1
    assert_allclose(jax.jit(mixed)(x, y), expected, rtol=1e-5)


def test_equal_calls_share_one_target():
    x = jnp.ones(100)
    text = jax.jit(lambda x: run(run(x, x), x)).lower(x).as_text()
    targets = re.findall(r'custom_call @"([^"]+)"', text)
    assert targets and len({*targets}) == 1
