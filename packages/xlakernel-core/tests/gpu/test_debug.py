"""Calls through Python and debug mode on a GPU, with kernels of CUDA's own compiler."""

import ctypes
import dataclasses
import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.ffi.registry import ensure_registered

pytestmark = pytest.mark.gpu

SOURCE = r"""
extern "C" __global__ void scale(const float *x, float *out, long long n, long long limit) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < limit) out[i] = i < n ? 2 * x[i] : 7;  // a limit beyond n writes out of bounds
}
extern "C" __global__ void spoil(float *x, float *out, long long n, long long limit) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) { out[i] = x[i]; if (i == limit) x[i] = 5; }
}
extern "C" __global__ void crash(const float *x, float *out, long long n, long long limit) {
  *(volatile float *)limit = 1;
}
"""
BLOCK = 128
CAPABILITY = "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY"

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


def load_kernels():
    """Compile `SOURCE` and return a function that returns a kernel by its name."""
    from cuda.bindings import driver, nvrtc

    from xlakernel.core.gpu.driver import check

    def compiled(result):
        status, *values = result
        assert not status, status
        return values[0] if values else None

    jax.block_until_ready(on_gpu(0))  # JAX starts the driver
    device = check(driver.cuDeviceGet(0))
    major, minor = (
        check(driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"{CAPABILITY}_{part}"), device))
        for part in ("MAJOR", "MINOR")
    )
    program = compiled(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"kernels.cu", 0, [], []))
    option = f"--gpu-architecture=sm_{major}{minor}".encode()
    compiled(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    cubin = b" " * compiled(nvrtc.nvrtcGetCUBINSize(program))
    compiled(nvrtc.nvrtcGetCUBIN(program, cubin))
    library = check(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
    return lambda name: check(driver.cuLibraryGetKernel(library, name.encode()))


def make_launchable(kernels, name, n, limit):
    """Return a launchable of a kernel, for arrays of *n* floats."""
    from cuda.bindings import driver

    from xlakernel.core.gpu.driver import check
    from xlakernel.core.gpu.launchable import Launchable
    from xlakernel.core.gpu.plan import Array

    function = driver.CUfunction(int(kernels(name)))
    blocks = -(-max(n, limit if name == "scale" else 1) // BLOCK)

    def launch(stream, addresses):
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong)
        parameters = ((*addresses, n, limit), types)
        check(driver.cuLaunchKernel(function, blocks, 1, 1, BLOCK, 1, 1, 0, stream, parameters, 0))

    arrays = (Array("input", 0, "float32", (n,)), Array("output", 0, "float32", (n,)))
    return Launchable(f"test_{name}_{n}_{limit}", name, "kernels.cu:2", arrays, launch)


def register(launchable, mode="python", *, once=False):
    """Register a launchable to run through Python, or in debug mode; return the target."""
    from xlakernel.core.gpu.debug import build_debug_handler
    from xlakernel.core.gpu.python_call import build_python_handler

    def build():
        return build_python_handler(launchable) if mode == "python" else build_debug_handler(launchable, once=once)

    return ensure_registered(f"{launchable.name}_{mode}_{once}", "CUDA", build)


@pytest.fixture(scope="module")
def new_launchable():
    """Return a function that makes a launchable of a kernel's name, the size of its arrays, and its limit."""
    return functools.partial(make_launchable, load_kernels())


@pytest.fixture(params=["python", "debug"])
def scale(request, new_launchable):
    """The target that doubles 1000 numbers, in both modes."""
    return register(new_launchable("scale", 1000, 1000), request.param)


@pytest.fixture(scope="module")
def register_debug(new_launchable):
    """Return a function that registers what ``new_launchable`` makes, in debug mode."""
    return lambda *args, once=False: register(new_launchable(*args), "debug", once=once)


def on_gpu(x, number=0):
    return jax.device_put(jnp.asarray(x, jnp.float32), jax.devices("gpu")[number])


def program(target, n, batch=()):
    out = jax.ShapeDtypeStruct((*batch, n), jnp.float32)
    return jax.jit(lambda x: jax.ffi.ffi_call(target, out)(x))


def message_of(target, x):
    with pytest.raises(RAISED) as caught:
        jax.block_until_ready(program(target, x.shape[-1], x.shape[:-1])(x))
    return str(caught.value)


# Calls through Python


@pytest.mark.parametrize("shape", [(1000,), (3, 1000), (2, 3, 1000), (0, 1000)], ids=str)
def test_values(scale, shape):
    x = on_gpu(np.random.default_rng(0).normal(size=shape))
    assert_array_equal(program(scale, 1000, shape[:-1])(x), 2 * np.asarray(x))


def test_slices_that_share_an_input(scale):
    x = on_gpu(np.arange(1000.0)[None])
    assert_array_equal(program(scale, 1000, (4,))(x), np.tile(2 * np.asarray(x), (4, 1)))


def test_many_calls_in_one_program_in_the_order_of_the_stream(scale):
    call = program(scale, 1000)

    @jax.jit
    def run(x):
        return jax.lax.fori_loop(0, 10, lambda _, x: call(x * 0.5 + 1), x)

    x = np.arange(1000, dtype=np.float32)
    expected = x.copy()
    for _ in range(10):
        expected = 2 * (expected * 0.5 + 1)
    for _ in range(5):
        assert_array_equal(run(on_gpu(x)), expected)


def test_calls_from_many_threads_on_every_device(scale):
    call, devices = program(scale, 1000), len(jax.devices("gpu"))

    def work(number):
        return np.asarray(call(on_gpu(np.full(1000, number), number % devices)))

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(work, range(100))):
            assert_array_equal(found, np.full(1000, 2 * number))


def test_an_exception_of_the_launching_function_is_an_error(new_launchable):
    def refuse(stream, addresses):
        raise LookupError(f"on a stream: {stream > 0}")

    here = f"{__file__}:{refuse.__code__.co_firstlineno}"
    launchable = dataclasses.replace(new_launchable("scale", 8, 8), name="test_refuse", launch=refuse, place=here)
    line = refuse.__code__.co_firstlineno + 1
    message = message_of(register(launchable), on_gpu(np.ones(8)))
    assert f"LookupError: on a stream: True (raised by kernel 'scale', {__file__}:{line} in " in message


# Debug mode


@pytest.mark.parametrize("beyond", [1, BLOCK, 4096])
def test_a_write_out_of_bounds_is_found(register_debug, beyond):
    message = message_of(register_debug("scale", 1000, 1000 + beyond), on_gpu(np.ones(1000)))
    assert "kernel 'scale' of kernels.cu:2 wrote out of bounds, beside output 0 (float32[1000])" in message


def test_an_element_that_is_not_written_is_found(register_debug):
    message = message_of(register_debug("scale", 1000, 998), on_gpu(np.ones((2, 1000))))
    assert "did not write element (998,) of output 0 (float32[1000]), in slice (0,) of a batch of (2,)" in message
    assert ", and 3 more." in message


def test_the_error_of_a_single_run_mentions_doubt(register_debug):
    message = message_of(register_debug("scale", 1000, 998, once=True), on_gpu(np.ones(1000)))
    assert "did not write element (998,)" in message and "(Unless it wrote " in message


def test_an_input_that_is_written_is_found_and_was_not_changed(register_debug):
    x = on_gpu(np.ones(1000))
    message = message_of(register_debug("spoil", 1000, 3), x)
    assert "changed element (3,) of input 0 (float32[1000]): 1.0 became 5.0. Inputs are read-only" in message
    assert_array_equal(x, np.ones(1000))
    assert_array_equal(program(register_debug("spoil", 1000, -1), 1000)(x), np.ones(1000))


@pytest.fixture
def free_memory():
    """Return a function that returns how much of the first device's memory is free, or in JAX's pool."""
    from cuda.bindings import driver

    from xlakernel.core.gpu.driver import check

    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxPushCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    yield lambda: check(driver.cuMemGetInfo())[0] + jax.devices("gpu")[0].memory_stats()["pool_bytes"]
    check(driver.cuCtxPopCurrent())
    check(driver.cuDevicePrimaryCtxRelease(device))


def test_no_memory_is_left_behind(register_debug, free_memory):
    n = 8 << 20
    good, bad = program(register_debug("scale", n, n), n), register_debug("scale", n, n - 1)
    x = on_gpu(np.ones(n))
    free = []
    for _ in range(8):
        jax.block_until_ready(good(x))
        message_of(bad, x)
        free.append(free_memory())
    assert free[-1] >= free[3]  # the driver takes some at first


@pytest.mark.parametrize("address", [8, 3 << 40], ids=hex)
def test_a_lost_context_is_an_error_that_names_the_kernel(address):
    """It takes the context along, so it has a process of its own: this file, as a program."""
    command = [sys.executable, __file__, str(address)]
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "kernel 'crash' of kernels.cu:2 failed on the device: CUDA_ERROR_ILLEGAL_ADDRESS (700: " in done.stdout
    assert "The device's context is lost" in done.stdout
    assert "Restart the process." in done.stdout


def crash_at(address):
    target = register(make_launchable(load_kernels(), "crash", 8, address), "debug")
    x = on_gpu(np.ones(8))
    try:
        jax.block_until_ready(program(target, 8)(x))
    except RAISED as error:
        print(error, flush=True)
        os._exit(0)  # what ends in the usual way would use the context once more
    os._exit(3)


if __name__ == "__main__":
    crash_at(int(sys.argv[1]))
