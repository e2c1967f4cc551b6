"""Functions that launch kernels of CUDA C, recorded on a GPU and replayed inside JAX."""

import ctypes
import itertools
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.gpu import driver

pytestmark = pytest.mark.gpu

N = 4096
OUT = jax.ShapeDtypeStruct((N,), jnp.float32)
X = np.arange(N, dtype=np.float32)
Y = np.full(N, 0.5, np.float32)


@pytest.fixture
def axpy(cuda, wrap):
    return wrap(lambda stream, a: cuda.axpy(stream, *a), OUT, inputs=2, record=True)


def test_a_launch_is_replayed_by_a_call(axpy):
    np.testing.assert_array_equal(axpy(X, Y), 2 * X + Y)
    np.testing.assert_array_equal(jax.jit(axpy)(Y, X), 2 * Y + X)


def test_a_loop_and_a_cuda_graph_replay_it(axpy):
    looped = jax.jit(lambda x, y: jax.lax.fori_loop(0, 10, lambda _, v: axpy(v, y), x))
    expected = X
    for _ in range(10):
        expected = 2 * expected + Y
    np.testing.assert_array_equal(looped(X, Y), expected)

    def unrolled(x, y):
        for _ in range(10):
            x = jax.lax.optimization_barrier(axpy(x, y))
        return x

    jitted = jax.jit(unrolled)
    for y in (Y, Y):  # the second call updates or replays the graph, on other buffers
        np.testing.assert_array_equal(jitted(X, jnp.asarray(y)), expected)


def test_vmap_replays_it_for_each_slice(axpy):
    xs = np.stack([X, 2 * X, 3 * X])
    np.testing.assert_array_equal(jax.vmap(axpy, (0, None))(xs, Y), 2 * xs + Y)
    both = jax.vmap(jax.vmap(axpy, (None, 0)), (0, None))(xs, np.stack([Y, -Y]))
    np.testing.assert_array_equal(both, 2 * xs[:, None] + np.stack([Y, -Y])[None])
    assert jax.vmap(axpy)(xs[:0], xs[:0]).shape == (0, N)


def test_one_launch_of_many_threads_at_once(axpy):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda k: np.asarray(axpy(X * k, Y)), range(16)))
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result, 2 * X * k + Y)


def test_handles_of_one_context_work_too(cuda, wrap):
    run = wrap(lambda s, a: cuda.axpy(s, *a, kernel=cuda.function("axpy")), OUT, inputs=2, record=True)
    np.testing.assert_array_equal(run(X, Y), 2 * X + Y)


def test_parameters_in_one_block(cuda, wrap):
    def launch(stream, addresses):
        block = struct.pack("PPPf4xq", *addresses, 2, N)
        size = ctypes.c_size_t(len(block))
        pairs = {1: ctypes.cast(block, ctypes.c_void_p).value, 2: ctypes.addressof(size), 0: 0}
        extra = (ctypes.c_void_p * 6)(*itertools.chain(*pairs.items()))
        grid, threads = (N // 256, 1, 1), (256, 1, 1)
        cuda.check(
            cuda.driver.cuLaunchKernel(cuda.function("axpy"), *grid, *threads, 0, stream, 0, ctypes.addressof(extra))
        )

    run = wrap(launch, OUT, inputs=2, record=True)
    np.testing.assert_array_equal(run(X, Y), 2 * X + Y)


def test_pointers_in_structs_and_views_are_relocated(cuda, wrap):
    def launch(stream, addresses):
        x, out = addresses

        class Vector(ctypes.Structure):
            _fields_ = (("before", ctypes.c_long), ("data", ctypes.c_void_p), ("n", ctypes.c_long))

        half = N // 2  # the second half of x, into the first of out, and the other way round
        for source, target in ((x + 4 * half, out), (x, out + 4 * half)):
            blocks = [Vector(0, source, half), Vector(0, target, half)]
            pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(block) for block in blocks))
            config = cuda.driver
            cuda.check(
                config.cuLaunchKernel(
                    cuda.function("twice"), N // 256, 1, 1, 256, 1, 1, 0, stream, ctypes.addressof(pointers), 0
                )
            )

    run = wrap(launch, OUT, record=True)
    np.testing.assert_array_equal(run(X), 2 * np.roll(X, N // 2))
    np.testing.assert_array_equal(jax.vmap(run)(np.stack([X, -X]))[1], -2 * np.roll(X, N // 2))


def test_fills_and_copies(cuda, wrap):
    def launch(stream, addresses):
        x, out = addresses
        d = cuda.driver
        cuda.check(d.cuMemsetD32Async(out, int(np.float32(7).view(np.uint32)), N, stream))
        cuda.check(d.cuMemsetD2D16Async(out, 8, 0, 1, 4, stream))  # the low halves of four floats
        cuda.check(d.cuMemcpyDtoDAsync(out + 4 * 100, x, 4 * 50, stream))
        cuda.check(d.cuMemcpyAsync(out + 4 * 200, x, 4 * 50, stream))
        copy = d.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.dstDevice, copy.srcPitch, copy.dstPitch = x, out, 64, 128
        copy.srcXInBytes, copy.srcY, copy.dstXInBytes, copy.dstY = 8, 1, 4, 10
        copy.WidthInBytes, copy.Height = 32, 4
        cuda.check(d.cuMemcpy2DAsync(copy, stream))

    expected = np.full(N, 7, np.float32)
    expected.view(np.uint16)[0:16:4] = 0
    expected[100:150] = expected[200:250] = X[:50]
    rows = np.lib.stride_tricks.as_strided(expected[10 * 32 + 1 :], (4, 8), (128, 4))
    rows[:] = np.lib.stride_tricks.as_strided(X[16 + 2 :], (4, 8), (64, 4))
    run = wrap(launch, OUT, record=True)
    np.testing.assert_array_equal(run(X), expected)
    np.testing.assert_array_equal(jax.vmap(run)(np.stack([0 * X, X]))[1], expected)


@pytest.mark.parametrize("kind", ["cuMemAlloc", "cuMemAllocAsync", "allocator"])
def test_temporary_memory_is_scratch_of_the_call(cuda, kind, wrap):
    from xlakernel.core.gpu.recording.addresses import temporary

    kept = []

    def launch(stream, addresses):
        x, y, out = addresses
        d = cuda.driver
        if kind == "cuMemAlloc":
            block = int(cuda.check(d.cuMemAlloc(4 * N)))
            kept.append(block)
        elif kind == "cuMemAllocAsync":
            block = int(cuda.check(d.cuMemAllocAsync(4 * N, stream)))
        else:
            block = temporary(4 * N)
        cuda.axpy(stream, x, y, block)
        cuda.axpy(stream, block, y, out, alpha=3.0)
        if kind == "cuMemAllocAsync":
            cuda.check(d.cuMemFreeAsync(block, stream))

    run = wrap(launch, OUT, inputs=2, record=True)
    np.testing.assert_array_equal(run(X, Y), 3 * (2 * X + Y) + Y)
    for block in kept:
        cuda.check(cuda.driver.cuMemFree(block))
    np.testing.assert_array_equal(jax.vmap(run)(np.stack([X, 2 * X]), np.stack([Y, Y]))[1], 3 * (4 * X + Y) + Y)
    text = jax.jit(run).lower(X, Y).as_text()
    assert f"tensor<{4 * N}xui8>" in text


def test_memory_that_a_library_keeps_for_each_stream_is_temporary(cuda, wrap):
    blocks = {}

    def launch(stream, addresses):
        x, y, out = addresses
        if stream not in blocks:
            blocks[stream] = int(cuda.check(cuda.driver.cuMemAlloc(4 * N)))
        cuda.axpy(stream, x, y, blocks[stream])
        cuda.axpy(stream, blocks[stream], y, out, alpha=3.0)

    run = wrap(launch, OUT, inputs=2, record=True)
    np.testing.assert_array_equal(run(X, Y), 3 * (2 * X + Y) + Y)
    assert len(blocks) == 2
    for block in blocks.values():
        cuda.check(cuda.driver.cuMemFree(block))


def test_a_device_array_that_it_closes_over_is_used_in_place(cuda, wrap):
    y = jnp.asarray(Y)
    table = [y]

    def launch(stream, addresses):
        x, out = addresses
        cuda.axpy(stream, x, table[0].unsafe_buffer_pointer(), out)

    run = wrap(launch, OUT, record=True)
    np.testing.assert_array_equal(run(X), 2 * X + Y)


def test_work_on_several_streams_is_done_in_an_order_that_fits(cuda, wrap):
    d = cuda.driver
    other = cuda.check(d.cuStreamCreate(1))
    events = [cuda.check(d.cuEventCreate(2)) for _ in range(2)]

    def launch(stream, addresses):
        x, y, out = addresses
        block = int(cuda.check(d.cuMemAllocAsync(4 * N, stream)))
        cuda.axpy(stream, x, y, out)
        cuda.check(d.cuEventRecord(events[0], stream))
        cuda.check(d.cuStreamWaitEvent(other, events[0], 0))
        cuda.axpy(int(other), out, y, block)
        cuda.check(d.cuEventRecord(events[1], other))
        cuda.check(d.cuStreamWaitEvent(stream, events[1], 0))
        cuda.axpy(stream, block, x, out)

    run = wrap(launch, OUT, inputs=2, record=True)
    np.testing.assert_array_equal(run(X, Y), 2 * (2 * (2 * X + Y) + Y) + X)


def test_cooperative_and_cluster_launches_keep_their_kind(cuda, wrap):
    def together(stream, addresses):
        pointers = [(p, ctypes.c_void_p) for p in addresses]
        attribute = cuda.attribute("COOPERATIVE", cooperative=1)
        cuda.launch(cuda.kernel("neighbour"), stream, *pointers, (N, ctypes.c_long), attributes=[attribute])

    np.testing.assert_array_equal(wrap(together, OUT, record=True)(X), X + np.roll(X, -1))

    def clustered(stream, addresses):
        attribute = cuda.attribute("CLUSTER_DIMENSION")
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 4, 1, 1
        arguments = (addresses[1], ctypes.c_void_p), (N, ctypes.c_long)
        cuda.launch(cuda.kernel("cluster"), stream, *arguments, attributes=[attribute])

    run = wrap(clustered, OUT, record=True)
    np.testing.assert_array_equal(run(X), np.full(N, 4))

    def unrolled(x):
        for _ in range(10):
            x = jax.lax.optimization_barrier(run(x))
        return x

    np.testing.assert_array_equal(jax.jit(unrolled)(X), np.full(N, 4))


def test_much_shared_memory_is_allowed_on_every_gpu(cuda, wrap):
    floats = 40_000
    kernel = cuda.kernel("shared")

    def launch(stream, addresses):
        driver.allow_shared_mem(driver.load_kernel(int(kernel)), 4 * floats)
        arguments = (addresses[1], ctypes.c_void_p), (floats, ctypes.c_int)
        cuda.launch(kernel, stream, *arguments, grid=1, shared=4 * floats)

    run = wrap(launch, jax.ShapeDtypeStruct((1,), jnp.float32), record=True)
    total = np.float32(0)
    for value in np.arange(floats, dtype=np.float32):
        total += value
    for device in jax.devices("cuda"):
        assert run(jax.device_put(X, device))[0] == total


def test_every_gpu_runs_it(cuda, wrap):
    if jax.device_count("cuda") < 2:
        pytest.skip("needs two GPUs")
    for kernel in (None, "function"):

        def launch(stream, addresses, kernel=kernel):
            cuda.axpy(stream, *addresses, kernel=kernel and cuda.function("axpy"))

        run = jax.jit(wrap(launch, OUT, inputs=2, record=True))
        for device in jax.devices("cuda"):
            x, y = jax.device_put((X, Y), device)
            result = run(x, y)
            assert result.devices() == {device}
            np.testing.assert_array_equal(result, 2 * X + Y)
