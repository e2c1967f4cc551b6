"""Launches that the device refuses, and exceptions of kernels in debug mode."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda, float32
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import CompileError, LaunchError, ReadOnlyInputError
from xlakernel.core.structs import Struct
from xlakernel.cuda import numba_cuda_kernel
from xlakernel.cuda._kernels import device as _device

pytestmark = pytest.mark.gpu


@cuda.jit
def double(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


def same(x, *_):
    return x


def still_works():
    run = numba_cuda_kernel(double, same, launch_dims=lambda x: x.size)
    assert_array_equal(run(jnp.arange(7.0)), 2 * np.arange(7.0))


def test_shared_memory_beyond_the_device():
    most = next(iter(_device.shared_mem_limits().values()))
    run = numba_cuda_kernel(double, same, launch_dims=4, shared_mem=most + 4)
    with pytest.raises(LaunchError, match=f"double: shared_mem is {most + 4} bytes.*allows {most}"):
        run(jnp.ones(4))
    still_works()


def test_a_launch_with_less_shared_memory_takes_none_from_others():
    x = jnp.arange(7.0)
    with_more = jax.jit(numba_cuda_kernel(double, same, launch_dims=lambda x: x.size, shared_mem=200 * 1024))
    assert_array_equal(with_more(x), 2 * np.arange(7.0))
    with_less = numba_cuda_kernel(double, same, launch_dims=lambda x: x.size, shared_mem=100 * 1024)
    assert_array_equal(with_less(x), 2 * np.arange(7.0))
    assert_array_equal(with_more(x), 2 * np.arange(7.0))


@cuda.jit
def grid_sync(out):
    cuda.cg.this_grid().sync()
    out[0] = 1


def test_a_cooperative_grid_that_does_not_fit():
    run = numba_cuda_kernel(grid_sync, Struct((1,), jnp.float32), grid=1_000_000, block=256)
    with pytest.raises(LaunchError, match=r"grid_sync: synchronises its whole grid.*1000000 blocks"):
        run()
    still_works()


def test_a_cooperative_grid_that_does_not_fit_with_its_shared_memory():
    run = numba_cuda_kernel(grid_sync, Struct((1,), jnp.float32), grid=2000, block=32, shared_mem=200 * 1024)
    with pytest.raises(LaunchError, match=r"2000 blocks; only [1-9]\d* fit, with 32 threads and 204800 bytes"):
        run()
    still_works()


@cuda.jit
def fixed_and_dynamic(x, out):
    fixed, dynamic = cuda.shared.array(10_000, float32), cuda.shared.array(0, float32)
    fixed[cuda.threadIdx.x] = dynamic[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = fixed[cuda.threadIdx.x] + dynamic[cuda.threadIdx.x]


def test_shared_arrays_of_fixed_and_of_dynamic_size_that_do_not_fit_together():
    run = numba_cuda_kernel(fixed_and_dynamic, same, grid=1, block=32, shared_mem=200 * 1024)
    with pytest.raises(LaunchError, match=r"40000 bytes of shared arrays .* and 204800 bytes of dynamic .* allows \d+"):
        run(jnp.ones(32))
    still_works()


def test_a_block_with_too_many_registers():
    @cuda.jit(launch_bounds=128)
    def bounded(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    run = numba_cuda_kernel(bounded, same, grid=1, block=256)
    with pytest.raises(LaunchError, match=r"bounded: block .* has 256 threads.*128"):
        run(jnp.ones(256))
    still_works()


def test_a_kernel_that_does_not_compile():
    @cuda.jit
    def broken(x, out):
        out[0] = x.no_such_attribute

    with pytest.raises(CompileError, match=r"broken\(x: readonly array.*(?s:.*)no_such_attribute"):
        numba_cuda_kernel(broken, same, launch_dims=1)(jnp.ones(3))
    still_works()


def test_a_kernel_that_writes_to_its_input():
    @cuda.jit
    def writes(x, out):
        x[0] = 1

    with pytest.raises(ReadOnlyInputError, match=r"writes.*input_output_aliases"):
        numba_cuda_kernel(writes, same, launch_dims=1)(jnp.ones(3))
    still_works()


def test_small_launches_are_no_reason_for_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numba_cuda_kernel(cuda.jit(double.py_func), same, grid=1, block=1)(jnp.ones(2))


@cuda.jit
def refuses(x, out):
    i = cuda.grid(1)
    if i < out.size:
        if x[i] < 0:
            raise ValueError("negative input")
        out[i] = x[i]


def test_debug_mode_reports_a_kernels_exception():
    run = numba_cuda_kernel(refuses, same, launch_dims=lambda x: x.size)
    with debug_mode():
        assert_array_equal(run(jnp.arange(5.0)), np.arange(5.0))
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="negative input"):
            jax.block_until_ready(run(jnp.arange(5.0) - 2))
        assert_array_equal(run(jnp.arange(5.0)), np.arange(5.0))
    still_works()


def test_debug_mode_finds_unwritten_elements():
    @cuda.jit
    def half(x, out):
        i = cuda.grid(1)
        if i < out.size // 2:
            out[i] = x[i]

    run = numba_cuda_kernel(half, same, launch_dims=lambda x: x.size)
    with debug_mode(), pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="output 0"):
        jax.block_until_ready(run(jnp.arange(6.0)))


def test_debug_mode_with_more_shared_memory_than_usual():
    run = numba_cuda_kernel(double, same, launch_dims=lambda x: x.size, shared_mem=100 * 1024)
    with debug_mode():
        assert_array_equal(run(jnp.arange(7.0)), 2 * np.arange(7.0))
