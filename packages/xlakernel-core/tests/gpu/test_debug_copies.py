"""Debug mode of the device on the CPU platform, with a driver whose device memory is the host's."""

import ctypes
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.ffi import abi
from xlakernel.core.ffi.registry import ensure_registered

pytest.importorskip("cuda.bindings")
from cuda.bindings.driver import CUresult

from xlakernel.core.gpu.debug import DeviceMemory, build_debug_handler

F32 = ("float32", (3,))
X = jax.device_put(jnp.array([1.0, 2.0, 3.0]), jax.devices("cpu")[0])

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


@pytest.fixture
def register_debug(host_launchable, fake_driver):
    """Return a function that takes what ``host_launchable`` takes, and returns the name of the registered target.

    Afterwards no memory may be left, whatever came of the calls.
    """

    def register(*args, once=False, **kwargs):
        launchable = host_launchable(*args, **kwargs)
        build = functools.partial(build_debug_handler, launchable, once=once, stream=fake_driver.STREAM)
        return ensure_registered(launchable.name, "cpu", build)

    yield register
    assert not fake_driver.blocks


def call(target, outs, *ins, aliases=None):
    """Call a registered target with buffers as they are, batched or not."""
    options = {"has_side_effect": True, "input_output_aliases": aliases}
    return jax.block_until_ready(jax.jit(lambda *xs: jax.ffi.ffi_call(target, outs, **options)(*xs))(*ins))


def struct_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def message_of(*args, **kwargs):
    with pytest.raises(RAISED) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def beside(array, offset, value):
    """Write a byte next to an array: *offset* from its end if that is positive, else from its beginning."""
    start = array.ctypes.data + (array.nbytes - 1 if offset > 0 else 0)
    ctypes.c_uint8.from_address(start + offset).value = value


def double(x, out):
    out[:] = 2 * x


# Kernels that do what they should


def test_a_kernel_runs_on_copies_and_its_results_are_handed_out(register_debug, fake_driver):
    found = []

    def note(x, out):
        found.extend([x.ctypes.data, out.ctypes.data])
        out[:] = 2 * x

    streams = []
    target = register_debug(note, [F32], [F32], streams=streams)
    out = call(target, struct_of(X), X)
    assert_array_equal(out, 2 * X)
    assert streams == [fake_driver.STREAM] * 2  # with two poisons
    assert not {X.unsafe_buffer_pointer(), out.unsafe_buffer_pointer()} & set(found)
    assert {address % fake_driver.ALIGNMENT for address in found} == {0}


def test_what_an_output_held_before_is_never_read(register_debug, fake_driver):
    """It may be uninitialised, which compute-sanitizer would report."""
    out = call(register_debug(double, [F32], [F32]), struct_of(X), X)
    assert X.unsafe_buffer_pointer() in fake_driver.read
    assert out.unsafe_buffer_pointer() not in fake_driver.read


@pytest.mark.parametrize("name", abi.DATA_TYPES)
def test_every_dtype(register_debug, x64, name):
    def copy_or_not(x, skip, out):
        if not skip:
            out[:] = x

    target = register_debug(copy_or_not, [(name, (2, 3)), ("int32", ())], [(name, (2, 3))])
    x = jnp.arange(6).reshape(2, 3).astype(name)
    assert_array_equal(call(target, struct_of(x), x, jnp.int32(0)), x)
    text = f"did not write element (0, 0) of output 0 ({name}[2,3]), and 5 more. Every"
    assert text in message_of(target, struct_of(x), x, jnp.int32(1))


@pytest.mark.parametrize("batch", [(2,), (2, 1, 3), (0,), (1,)], ids=str)
def test_batches_with_shared_inputs(register_debug, batch):
    out = jax.ShapeDtypeStruct((*batch, 3), jnp.float32)
    x = X.reshape((1,) * len(batch) + (3,))
    assert_array_equal(call(register_debug(double, [F32], [F32]), out, x), np.broadcast_to(2 * x, out.shape))


@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
def test_arrays_without_elements(register_debug, shape):
    def count(x, empty, total):
        total[...] = x.size + empty.size

    target = register_debug(count, [("float32", shape)], [("float32", shape), ("int32", ())])
    empty = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert call(target, (empty, jax.ShapeDtypeStruct((), jnp.int32)), jnp.ones(shape))[1] == 0


def test_memory_that_an_input_and_an_output_share(register_debug):
    def accumulate(total, x, new_total, copy):
        assert total.ctypes.data == new_total.ctypes.data
        new_total += x
        copy[:] = x

    total, x = jnp.full(256, 1000, jnp.int32), jnp.arange(256, dtype=jnp.uint8).view(jnp.int8)
    types = [("int32", (256,)), ("int8", (256,))]
    # Among all values is the poison, so the kernel runs more than once.
    outs = (struct_of(total), struct_of(x))
    new_total, copy = call(register_debug(accumulate, types, types), outs, total, x, aliases={0: 0})
    assert_array_equal(new_total, 1000 + np.asarray(x, np.int32))
    assert_array_equal(copy, x)
    assert_array_equal(total, np.full(256, 1000))


# Kernels that do what they may not


@pytest.mark.parametrize("offset", [1, 4, 16 * 1024, -1, -16 * 1024])
@pytest.mark.parametrize("which", ["input 0", "output 0"])
def test_a_write_beside_an_array_is_found(register_debug, offset, which):
    def astray(x, out):
        out[:] = x
        beside(x if which == "input 0" else out, offset, 7)

    message = message_of(register_debug(astray, [F32], [F32]), struct_of(X), X)
    line = astray.__code__.co_firstlineno
    assert message.startswith(f"FAILED_PRECONDITION: kernel 'astray' of {__file__}:{line} wrote out of bounds, beside ")
    assert f"beside {which} (float32[3]), at an index that is not checked. Threads that have no element" in message


def test_a_write_beside_an_array_without_elements_is_found(host_launchable, fake_driver):
    def astray(stream, addresses):
        ctypes.c_uint8.from_address(addresses[1]).value = 7

    launchable = dataclasses.replace(host_launchable(double, [F32], [("float32", (0,))]), launch=astray)
    build = functools.partial(build_debug_handler, launchable, once=False, stream=fake_driver.STREAM)
    target = ensure_registered(launchable.name, "cpu", build)
    message = message_of(target, jax.ShapeDtypeStruct((0,), jnp.float32), X)
    assert "beside output 0 (float32[0])" in message


def test_an_input_that_is_written_is_found_and_was_not_changed(register_debug):
    def spoil(x, out):
        out[:] = x
        x[1] = 5

    x = jnp.ones((4, 3))
    message = message_of(register_debug(spoil, [F32], [F32]), struct_of(x), x)
    assert "changed element (1,) of input 0 (float32[3]), in slice (0,) of a batch of (4,), and 3 more" in message
    assert ": 1.0 became 5.0. Inputs are read-only" in message
    assert_array_equal(x, np.ones((4, 3)))


@pytest.mark.parametrize("once", [False, True])
def test_runs_tell_what_was_not_written(register_debug, once):
    streams = []
    target = register_debug(lambda x, out: None, [F32], [F32], once=once, streams=streams)
    message = message_of(target, struct_of(X), X)
    assert "did not write element (0,) of output 0 (float32[3]), and 2 more." in message
    assert ("(Unless it wrote " in message) == once
    assert len(streams) == (1 if once else 2)


def test_an_exception_is_reported_as_without_debug_mode(register_debug):
    def fail(x, out):
        raise ValueError("its own")

    message = message_of(register_debug(fail, [F32], [F32]), struct_of(X), X)
    where = f"{__file__}:{fail.__code__.co_firstlineno + 1} in {fail.__qualname__}"
    assert message.startswith(f"INVALID_ARGUMENT: ValueError: its own (raised by kernel 'fail', {where})")


# Failures of the device


@pytest.mark.parametrize("raises", [False, True], ids=["silently", "as the library says"])
def test_an_error_of_the_device_names_the_kernel_and_what_is_lost(register_debug, fake_driver, raises):
    streams = []

    def crash(x, out):
        fake_driver.lost = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        if raises:
            raise RuntimeError("the library noticed")

    target = register_debug(crash, [F32], [F32], streams=streams)
    message = message_of(target, jax.ShapeDtypeStruct((4, 3), jnp.float32), jnp.ones((4, 3)))
    place = f"{__file__}:{crash.__code__.co_firstlineno}"
    assert message.startswith(
        f"INTERNAL: kernel 'crash' of {place} failed on the device: CUDA_ERROR_ILLEGAL_ADDRESS (700: illegal_address). "
        "The device's context is lost, and all arrays with it: every later call fails. Restart the process."
    )
    assert len(streams) == 1  # it waits after each slice
    later = message_of(target, struct_of(X), X)
    assert "It comes from something that ran on the device before kernel 'crash'" in later
    assert len(streams) == 1


def test_an_error_that_passes_loses_nothing(register_debug, fake_driver):
    def disturb(x, out):
        answers = [CUresult.CUDA_ERROR_UNKNOWN]
        original = fake_driver.cuStreamSynchronize
        fake_driver.cuStreamSynchronize = lambda stream: (answers.pop(),) if answers else original(stream)

    message = message_of(register_debug(disturb, [F32], [F32]), struct_of(X), X)
    assert "failed on the device: CUDA_ERROR_UNKNOWN (999: unknown)." in message
    assert "lost" not in message


def test_missing_memory_is_an_error_with_the_fix(register_debug, fake_driver):
    streams = []
    target = register_debug(double, [F32], [F32], streams=streams)
    fake_driver.refuses["cuMemAlloc"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    message = message_of(target, struct_of(X), X)
    assert f"the device has no {2 * DeviceMemory.guard + 12} bytes for one of them" in message
    assert "CUDA_ERROR_OUT_OF_MEMORY" in message and "XLA_PYTHON_CLIENT_MEM_FRACTION" in message
    assert not streams
    fake_driver.refuses.clear()
    assert_array_equal(call(target, struct_of(X), X), 2 * X)


@pytest.mark.parametrize(("function", "after"), [("cuMemcpyHtoDAsync", 1), ("cuMemcpyDtoHAsync", 1), ("cuMemFree", 0)])
def test_a_driver_that_refuses_is_an_error_and_memory_is_freed(register_debug, fake_driver, function, after):
    target = register_debug(double, [F32], [F32])
    original, calls = getattr(fake_driver, function), []

    def refuse_later(*args):
        calls.append(original(*args))
        return (CUresult.CUDA_ERROR_UNKNOWN,) if len(calls) > after else calls[-1]

    setattr(fake_driver, function, refuse_later)
    message = message_of(target, struct_of(X), X)
    assert "DeviceError" in message and "CUDA_ERROR_UNKNOWN" in message
    assert len(calls) > after
