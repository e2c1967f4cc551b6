"""Functions that cannot be recorded: their errors, and calls through Python."""

import ctypes
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import LaunchError, RecordingError, RecordingWarning

pytestmark = pytest.mark.gpu

N = 4096
OUT = jax.ShapeDtypeStruct((N,), jnp.float32)
X = np.arange(N, dtype=np.float32)
Y = np.full(N, 0.5, np.float32)


def unrecordable(cuda):
    d = cuda.driver
    host = np.zeros(N, np.float32)
    count = [0.0]

    def default_stream(stream, a):
        cuda.axpy(stream, a[0], a[0], a[1], alpha=1.0)
        cuda.axpy(0, a[1], a[0], a[1], alpha=1.0)

    def waits(stream, a):
        cuda.axpy(stream, a[0], a[0], a[1])
        cuda.check(d.cuStreamSynchronize(stream))

    def copies_to_host(stream, a):
        cuda.axpy(stream, a[0], a[0], a[1])
        cuda.check(d.cuMemcpyDtoHAsync(host.ctypes.data, a[1], host.nbytes, stream))

    def differs(stream, a):
        count[0] += 1
        cuda.axpy(stream, a[0], a[0], a[1], alpha=2.0 + 0 * count[0], n=N + int(count[0]) % 2 - 1)
        cuda.axpy(stream, a[0], a[0], a[1])

    def not_joined(stream, a):
        other, event = cuda.check(d.cuStreamCreate(1)), cuda.check(d.cuEventCreate(2))
        cuda.check(d.cuEventRecord(event, stream))
        cuda.check(d.cuStreamWaitEvent(other, event, 0))
        cuda.axpy(int(other), a[0], a[0], a[1])
        cuda.check(d.cuStreamSynchronize(other))

    return {
        "default_stream": (default_stream, "default stream"),
        "waits": (waits, "waits for the device"),
        "copies_to_host": (copies_to_host, "to memory of the host"),
        "differs": (differs, "does not do the same each time: parameter 4 of kernel 0 .axpy. is 0x1000 and then 0xfff"),
        "not_joined": (not_joined, "waits for the device"),
    }


NAMES = ("default_stream", "waits", "copies_to_host", "differs", "not_joined")


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_recorded_is_named(cuda, name, wrap):
    launch, text = unrecordable(cuda)[name]
    with pytest.raises(RecordingError, match=text):
        wrap(launch, OUT, record=True)(X)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_cannot_be_recorded_runs_through_python_with_one_warning(cuda, name, wrap):
    launch, _ = unrecordable(cuda)[name]
    run = wrap(launch, OUT, record="auto")
    expected = 3 * X
    with pytest.warns(RecordingWarning, match="Python instead"):
        np.testing.assert_array_equal(run(X), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        looped = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, v: run(v), x))
        np.testing.assert_array_equal(looped(X), 3**5 * X)
        np.testing.assert_array_equal(jax.vmap(run)(np.stack([X, -X])), np.stack([3 * X, -3 * X]))


@pytest.mark.parametrize("told", ["by its code", "in words"])
def test_another_thread_on_the_default_stream_does_not_spoil_a_recording(cuda, wrap, told):
    host, disturbed = np.zeros(4, np.float32), []

    def launch(stream, addresses):
        if not disturbed:

            def disturb():
                with cuda.context_of(cuda.usual_device()):
                    disturbed.append(cuda.driver.cuMemcpyDtoH(host.ctypes.data, addresses[0], host.nbytes))

            thread = threading.Thread(target=disturb)
            thread.start()
            thread.join()
        try:
            cuda.axpy(stream, *addresses)
        except Exception as error:
            if told == "by its code":
                raise
            raise RuntimeError("the capture failed, says a library, as Warp does") from error

    np.testing.assert_array_equal(wrap(launch, OUT, inputs=2, record=True)(X, Y), 2 * X + Y)
    assert int(disturbed[0][0]) == 906


def test_work_on_a_stream_of_its_own_is_refused_and_harms_nothing(cuda, wrap):
    other = cuda.check(cuda.driver.cuStreamCreate(1))
    large = jax.ShapeDtypeStruct((1 << 24,), jnp.float32)

    def elsewhere(stream, addresses):
        cuda.axpy(int(other), addresses[0], addresses[0], addresses[1], n=1 << 24)

    with pytest.raises(RecordingError, match="elsewhere"):
        wrap(elsewhere, large, record=True)(jnp.ones(1 << 24))
    assert float(jnp.ones(4).sum()) == 4


def test_an_exception_of_the_function_is_its_own(cuda, wrap):
    def fails(stream, addresses):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        wrap(fails, OUT, record="auto")(X)


def test_a_launch_that_the_driver_refuses_is_an_error(cuda, wrap):
    def too_large(stream, addresses):
        pointers = [(p, ctypes.c_void_p) for p in (addresses[0], *addresses)]
        arguments = *pointers, (1.0, ctypes.c_float), (N, ctypes.c_long)
        cuda.launch(cuda.kernel("axpy"), stream, *arguments, block=2048)

    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
        wrap(too_large, OUT, record="auto")(X)
