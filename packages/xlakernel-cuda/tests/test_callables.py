"""Functions that launch Numba CUDA kernels, recorded on a GPU, under JAX's transformations too."""

import concurrent.futures
import functools
import gc
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.cuda import cuda_callable, numba_cuda_callable
from xlakernel.cuda._environment import has_bfloat16_arrays

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*Grid size"),  # Numba thinks that small launches are not worth it
]

THREADS = 128
N = 1000
#: A function that is recorded, or an error.
recorded = functools.partial(numba_cuda_callable, record=True)


def like_first(x, *_):
    return x


def blocks(n):
    return -(-n // THREADS)


def numbers(*shape, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(0).integers(1, 100, shape), dtype)


@cuda.jit
def add_kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def scale_kernel(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * factor


@cuda.jit
def square_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * x[i]


@cuda.jit
def sqrt_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = math.sqrt(x[i])


@cuda.jit
def shift_kernel(x, out):
    """out[i] = out[i] + x[i - 1]: depends on neighbours, so that a mixed-up slice shows."""
    i = cuda.grid(1)
    if 0 < i < out.size:
        out[i] += x[i - 1]


def add(x, y, out, stream):
    add_kernel[blocks(x.size), THREADS, stream](x, y, out)


def double(x, out, stream):
    add_kernel[blocks(x.size), THREADS, stream](x, x, out)


def magnitude(x, out, stream):
    """Two kernels and a temporary in between."""
    squares = cuda.device_array(x.shape, x.dtype)
    square_kernel[blocks(x.size), THREADS, stream](x, squares)
    sqrt_kernel[blocks(x.size), THREADS, stream](squares, out)


def scaled(x, factor, out, stream):
    scale_kernel[blocks(x.size), THREADS, stream](x, factor, out)


def differences(x, out, stream):
    """A prefix of two, of whole rows: x[i] + x[i - 1]."""
    out.copy_to_device(x)
    shift_kernel[blocks(x.size), THREADS, stream](x, out)


def differences_of(x):
    return np.asarray(x) + np.concatenate([np.zeros_like(x[..., :1]), x[..., :-1]], -1)


# Recordings


def test_one_kernel():
    x, y = numbers(N), numbers(N)
    assert_array_equal(recorded(add, like_first)(x, y), x + y)


def test_two_kernels_and_a_temporary():
    x = -numbers(N)
    run = jax.jit(recorded(magnitude, like_first))
    for _ in range(3):
        assert_allclose(run(x), abs(x))


def test_python_is_not_called_again():
    calls = []

    def counted(x, out, stream):
        calls.append(x.size)
        double(x, out, stream)

    run, x = jax.jit(recorded(counted, like_first)), numbers(N)
    assert_array_equal(run(x), 2 * x)
    count = len(calls)
    for i in range(10):
        assert_array_equal(run(x + i), 2 * (x + i))
    assert len(calls) == count > 0


def test_temporaries_one_after_the_other():
    """Each is freed before the next is made, which may then have its address."""

    def powers(x, out, stream):
        last = x
        for _ in range(3):
            following = cuda.device_array(x.shape, x.dtype)
            square_kernel[blocks(x.size), THREADS, stream](last, following)
            last = following
        out.copy_to_device(last, stream=stream)

    x = jnp.linspace(0.5, 1.5, N)
    assert_allclose(recorded(powers, like_first)(x), x**8, rtol=1e-5)


def test_stream_ordered_temporaries():
    def checked(result):
        status, *values = result
        assert status == driver.CUresult.CUDA_SUCCESS
        return values[0] if values else None

    def ordered(x, out, handle):
        stream = cuda.external_stream(handle)
        memory = checked(driver.cuMemAllocAsync(x.size * x.dtype.itemsize, handle))
        interface = {"shape": x.shape, "typestr": x.dtype.str, "data": (int(memory), False), "version": 3}
        between = cuda.from_cuda_array_interface(interface)
        square_kernel[blocks(x.size), THREADS, stream](x, between)
        sqrt_kernel[blocks(x.size), THREADS, stream](between, out)
        checked(driver.cuMemFreeAsync(memory, handle))

    x = -numbers(N)
    run = jax.jit(cuda_callable(ordered, like_first, stream=int, record=True))
    for _ in range(3):
        assert_allclose(run(x), abs(x))


def test_fills_and_copies_of_the_driver():
    def fill(x, out, stream):
        half = x.nbytes // 2
        driver.cuMemsetD32Async(out.ptr, 7, x.shape[0], stream)
        driver.cuMemcpyDtoDAsync(out.ptr + half, x.ptr, half, stream)
        driver.cuMemsetD8Async(out.ptr, 1, 4, stream)

    x = numbers(N, dtype=np.int32)
    run = cuda_callable(fill, like_first, arrays=lambda buffer: buffer, stream=int, record=True)
    expected = np.full(N, 7)
    expected[N // 2 :] = x[: N // 2]
    expected[0] = 0x01010101
    assert_array_equal(run(x), expected)


def test_copies_of_arrays_go_on_xlas_stream():
    def copies(x, whole, part, stream):
        whole.copy_to_device(x)
        part[:] = x
        part[2:5] = whole[7:10]

    x = numbers(N)
    whole, part = recorded(copies, lambda x: (x, x))(x)
    assert_array_equal(whole, x)
    assert_array_equal(part, np.concatenate([x[:2], x[7:10], x[5:]]))


def test_views_and_slices_of_arguments():
    def sliced(x, out, stream):
        grid = x.reshape(2, N // 2)
        add_kernel[blocks(N), THREADS, stream](x[: N // 2], x[N // 2 :], out[: N // 2])
        add_kernel[blocks(N), THREADS, stream](grid[1], x[::2], out[N // 2 :])

    x = numbers(N)
    half = N // 2
    expected = np.concatenate([x[:half] + x[half:], x[half:] + x[::2]])
    assert_array_equal(recorded(sliced, like_first)(x), expected)


def test_device_arrays_that_are_closed_over():
    def closing():
        table = cuda.to_device(np.arange(N, dtype=np.float32))

        def offset(x, out, stream):
            add_kernel[blocks(N), THREADS, stream](x, table, out)

        return jax.jit(recorded(offset, like_first))

    run, x = closing(), numbers(N)
    for _ in range(3):
        assert_array_equal(run(x), x + np.arange(N))
        gc.collect()
        cuda.to_device(np.full(N, -1, np.float32))  # would take the table's place


def test_forks_and_joins():
    def forked(x, out, stream):
        other, forked, joined = cuda.stream(), cuda.event(timing=False), cuda.event(timing=False)
        left, right = cuda.device_array(x.shape, x.dtype), cuda.device_array(x.shape, x.dtype)
        forked.record(stream)
        forked.wait(other)
        square_kernel[blocks(N), THREADS, other](x, left)
        add_kernel[blocks(N), THREADS, stream](x, x, right)
        joined.record(other)
        joined.wait(stream)
        add_kernel[blocks(N), THREADS, stream](left, right, out)

    x = numbers(N)
    run = jax.jit(recorded(forked, like_first))
    for _ in range(3):
        assert_array_equal(run(x), x * x + 2 * x)


@cuda.jit
def detect_kernel(v, threshold, spikes):
    i = cuda.grid(1)
    if i < v.size:
        spikes[i] = 1 if v[i] >= threshold[0] else 0


@cuda.jit
def reset_kernel(v, spikes, rest, out):
    i = cuda.grid(1)
    if i < v.size:
        out[i] = rest[0] if spikes[i] else v[i]


def test_a_step_of_a_spiking_network():
    def step(v, threshold, rest, spikes, out, stream):
        detect_kernel[blocks(v.size), THREADS, stream](v, threshold, spikes)
        reset_kernel[blocks(v.size), THREADS, stream](v, spikes, rest, out)

    v = jnp.asarray(np.random.default_rng(0).uniform(-75, -50, 10_000), jnp.float32)
    outs = [jax.ShapeDtypeStruct(v.shape, jnp.int32), jax.ShapeDtypeStruct(v.shape, jnp.float32)]
    spikes, after = recorded(step, outs)(v, jnp.array([-55.0]), jnp.array([-70.0]))
    assert_array_equal(spikes, v >= -55)
    assert_array_equal(after, jnp.where(v >= -55, -70.0, v))
    assert 0 < spikes.sum() < v.size


def test_static_scalars_are_part_of_the_recording():
    run, x = recorded(scaled, like_first), numbers(N)
    for factor in (2, 3, 0.5):
        assert_allclose(run(x, factor=factor), x * factor)
    jitted = jax.jit(run, static_argnames="factor")
    assert_allclose(jitted(x, factor=4) + jitted(x, factor=5), 9 * x)


BFLOAT16 = pytest.param(
    "bfloat16",
    marks=pytest.mark.skipif(not has_bfloat16_arrays(), reason="numba-cuda takes arrays of bfloat16 from 0.29 on"),
)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float16", BFLOAT16, "float32", "complex64", "bool"])
def test_dtypes(dtype):
    def copy(x, out, stream):
        out.copy_to_device(x)

    x = numbers(N).astype(dtype)
    assert_array_equal(recorded(copy, like_first)(x), x)


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_kernels_of_half_precision(dtype):
    x = jnp.linspace(0, 1, N).astype(dtype)
    assert_array_equal(recorded(double, like_first)(x), x + x)


def test_arrays_without_elements_and_without_dimensions():
    def fill(x, out, stream):
        if x.size:
            out.copy_to_device(x)

    for x in (jnp.zeros((0,)), jnp.zeros((3, 0, 2)), jnp.float32(3)):
        assert_array_equal(recorded(fill, like_first)(x), x)


# JAX


def test_vmap():
    run, x, y = recorded(add, like_first), numbers(5, N), numbers(N)
    assert_array_equal(jax.vmap(run, in_axes=(0, None))(x, y), x + y)
    assert_array_equal(jax.vmap(run, in_axes=(1, None), out_axes=1)(x.T, y), (x + y).T)
    nested = jax.vmap(jax.vmap(run, in_axes=(None, 0)), in_axes=(0, None))
    assert_array_equal(nested(x, 2 * x), x[:, None] + 2 * x[None])


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("method", ["native", "broadcast_all", "sequential"])
def test_vmap_keeps_slices_and_temporaries_apart(size, method):
    x = -numbers(size, N)
    assert_allclose(jax.vmap(recorded(magnitude, like_first, vmap_method=method))(x), abs(x))
    assert_array_equal(jax.vmap(recorded(differences, like_first, vmap_method=method))(x), differences_of(x))


def test_grad_of_the_reference():
    run = recorded(magnitude, like_first, reference=abs)
    x = jnp.array([-2.0, 3.0])
    assert_array_equal(jax.jit(jax.grad(lambda x: run(x).sum()))(x), [-1, 1])
    assert_array_equal(jax.vmap(jax.grad(lambda x: run(x).sum()))(jnp.stack([x, -x])), [[-1, 1], [1, -1]])


def test_a_loop():
    run, x = recorded(magnitude, like_first), numbers(N)
    result = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: run(x) + 1, x))(x)
    assert_allclose(result, x + 100, rtol=1e-5)


def test_shard_map():
    devices = jax.devices("gpu")
    mesh = jax.make_mesh((len(devices),), ("a",), axis_types=(AxisType.Auto,), devices=devices)
    x = jax.device_put(-numbers(len(devices) * N), NamedSharding(mesh, PartitionSpec("a")))
    specs = PartitionSpec("a")
    run = jax.jit(
        jax.shard_map(recorded(magnitude, like_first), mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    )
    assert_allclose(run(x), abs(x))
    assert len(run(x).devices()) == len(devices)


def test_a_sharding_rule():
    devices = jax.devices("gpu")
    mesh = jax.make_mesh((len(devices),), ("a",), axis_types=(AxisType.Auto,), devices=devices)
    x = jax.device_put(-numbers(len(devices) * N), NamedSharding(mesh, PartitionSpec("a")))
    result = jax.jit(recorded(magnitude, like_first, sharding_rule="i -> i"))(x)
    assert_allclose(result, abs(x))
    assert len(result.devices()) == len(devices)


def test_every_device():
    for device in jax.devices("gpu"):
        x = jax.device_put(-numbers(N), device)
        result = recorded(magnitude, like_first)(x)
        assert_allclose(result, abs(x))
        assert result.devices() == {device}


def test_aliases():
    def accumulate(total, x, out, stream):
        add_kernel[blocks(x.size), THREADS, stream](out, x, out)

    run = recorded(accumulate, like_first, input_output_aliases={0: 0})
    total, x = numbers(N), numbers(N)
    kept = np.array(total)
    assert_array_equal(jax.jit(run)(total, x), kept + x)
    assert_array_equal(total, kept)
    assert_array_equal(jax.jit(run, donate_argnums=0)(jnp.array(kept), x), kept + x)
    assert_array_equal(jax.vmap(run)(jnp.stack([kept, 2 * kept]), jnp.stack([x, x])), np.stack([kept, 2 * kept]) + x)


@pytest.mark.parametrize("record", [True, False])
def test_an_alias_of_a_part_of_another_array(record):
    def accumulate(total, x, out, stream):
        # The input and the output are the same memory.
        add_kernel[blocks(x.size), THREADS, stream](total, x, out)

    run = numba_cuda_callable(accumulate, like_first, input_output_aliases={0: 0}, record=record)

    def program(x):
        whole = jnp.cumsum(x)
        return whole, run(whole[:-1], x[1:])

    x = jnp.arange(2**14, dtype=jnp.float32) % 7
    expected = np.cumsum(np.asarray(x, np.float64))
    whole, found = jax.jit(program)(x)
    assert_array_equal(whole, expected)
    assert_array_equal(found, expected[:-1] + x[1:])


@pytest.mark.parametrize("record", [True, False])
def test_threads(record):
    run = jax.jit(numba_cuda_callable(magnitude, like_first, record=record))
    inputs = [-numbers(N) - i for i in range(32)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for x, result in zip(inputs, pool.map(run, inputs), strict=True):
            assert_allclose(result, abs(x))


def test_functions_on_streams_of_their_own_in_one_program():
    run, x = recorded(magnitude, like_first), -numbers(64, N)
    result = jax.jit(lambda x: sum(run(row) for row in x))(list(x))
    assert_allclose(result, abs(x).sum(0), rtol=1e-5)
