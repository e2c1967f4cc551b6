"""Kernels and functions on several GPUs: split by a rule, in `jax.shard_map`, and on one after the other."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from xlakernel.core.errors import RecordingWarning  # noqa: E402
from xlakernel.cuda import cuda_callable, numba_cuda_callable, numba_cuda_kernel  # noqa: E402

pytestmark = pytest.mark.gpu

N = 4096
X = np.arange(N, dtype=np.float32)
Y = X[::-1].copy()
BLOCKS = 128  # fewer would make Numba warn where a function of ours launches


@cuda.jit
def add_twice(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + 2 * y[i]


@cuda.jit
def sum_rows(x, out):
    i = cuda.grid(1)
    if i < out.size:
        total = 0.0
        for j in range(x.shape[1]):
            total += x[i, j]
        out[i] = total


def first(x, *_):
    return x


added = numba_cuda_kernel(
    add_twice,
    first,
    launch_dims=lambda x, y: x.shape,
    sharding_rule="i, i -> i",
    reference=lambda x, y: x + 2 * y,
)
summed = numba_cuda_kernel(
    sum_rows,
    lambda x: jax.ShapeDtypeStruct(x.shape[:1], x.dtype),
    launch_dims=lambda x: x.shape[:1],
    sharding_rule="i j -> i",
)


@pytest.fixture(scope="module")
def mesh():
    count = jax.device_count("cuda")
    if count < 2:
        pytest.skip("needs two GPUs")
    return jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))


def split(mesh, spec, *arrays):
    return jax.device_put(arrays, NamedSharding(mesh, spec))


def test_a_rule_keeps_a_call_split(mesh):
    result = jax.jit(added)(*split(mesh, P("d"), X, Y))
    assert result.sharding.spec == P("d")
    assert_array_equal(result, X + 2 * Y)


def test_a_gradient_is_split_too(mesh):
    gradient = jax.jit(jax.grad(lambda x, y: (added(x, y) ** 2).sum(), 1))(*split(mesh, P("d"), X, Y))
    assert gradient.sharding.spec == P("d")
    assert_allclose(gradient, 4 * (X + 2 * Y), rtol=1e-6)


@pytest.mark.parametrize(("spec", "result"), [(P("d", None), P("d")), (P(None, "d"), P())])
def test_factors_that_the_output_lacks_are_summed_over_the_gpus(mesh, spec, result):
    matrix = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    sums = jax.jit(summed)(*split(mesh, spec, matrix))
    assert sums.sharding.is_equivalent_to(NamedSharding(mesh, result), 1)
    assert_array_equal(sums, matrix.sum(axis=1))


def mapped(mesh, function, inputs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(P("d"),) * inputs, out_specs=P("d")))


def test_each_gpu_makes_a_call_of_its_own_in_shard_map(mesh):
    x, y = split(mesh, P("d"), X, Y)
    assert_array_equal(mapped(mesh, added, 2)(x, y), X + 2 * Y)
    looped = mapped(mesh, lambda x, y: jax.lax.fori_loop(0, 50, lambda _, v: added(v, y), x), 2)
    assert_array_equal(looped(x, y), X + 100 * Y)


def through_a_temporary(x, out, stream):
    between = cuda.device_array(x.shape, x.dtype)
    add_twice[BLOCKS, 32, stream](x, x, between)
    add_twice[BLOCKS, 32, stream](between, x, out)


def test_temporaries_are_on_the_gpu_that_runs(mesh):
    run = numba_cuda_callable(through_a_temporary, first, record=True)
    (x,) = split(mesh, P("d"), X)
    assert_array_equal(mapped(mesh, run, 1)(x), 5 * X)


@pytest.fixture(scope="module")
def raw_kernel():
    """A kernel whose handles belong to one context: each GPU has a recording of its own."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    source = 'extern "C" __global__ void k(const float* x, float* out) { int i = threadIdx.x; out[i] = 3 * x[i]; }'
    kernel = cupy.RawKernel(source, "k")
    return lambda x, out, stream: kernel((1,), (x.size,), (x, out))


def test_handles_of_one_context_are_recorded_for_each_gpu(mesh, raw_kernel):
    run = cuda_callable(raw_kernel, first, arrays="cupy", record=True)
    for device in jax.devices("cuda"):
        result = jax.jit(run)(jax.device_put(X[:512], device))
        assert result.devices() == {device}
        assert_array_equal(result, 3 * X[:512])
    (x,) = split(mesh, P("d"), X[:512])
    assert_array_equal(mapped(mesh, run, 1)(x), 3 * X[:512])


@pytest.mark.parametrize("number", [0, 1])
def test_an_eager_call_and_a_batch_run_where_the_arrays_are(mesh, number):
    device = jax.devices("cuda")[number]
    x, y = jax.device_put((X, Y), device)
    assert added(x, y).devices() == {device}
    batch = jax.vmap(added, (0, None))(jnp.stack([x, y]), y)
    assert batch.devices() == {device}
    assert_array_equal(batch, np.stack([X, Y]) + 2 * Y)


def test_an_array_that_a_function_closes_over_binds_it_to_its_gpu(mesh):
    here, there = jax.devices("cuda")[:2]
    table = jax.device_put(X, here)

    def closed(x, out, stream):
        add_twice[BLOCKS, 32, stream](x, cuda.as_cuda_array(table), out)

    run = jax.jit(numba_cuda_callable(closed, first, record=True))
    assert_array_equal(run(jax.device_put(Y, here)), Y + 2 * X)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"runs on CUDA device 1.*recorded for"):
        jax.block_until_ready(run(jax.device_put(Y, there)))


def test_calls_through_python_run_on_each_gpu(mesh):
    def through_the_host(x, out, stream):
        out.copy_to_device(x.copy_to_host(stream=stream), stream=stream)

    run = jax.jit(numba_cuda_callable(through_the_host, first))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        for device in jax.devices("cuda"):
            result = run(jax.device_put(X, device))
            assert result.devices() == {device}
            assert_array_equal(result, X)
