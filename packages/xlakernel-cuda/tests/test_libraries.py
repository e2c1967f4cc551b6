"""Functions of CUDA libraries on a GPU: CuPy, cuda.core, Warp and PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import RecordingError
from xlakernel.core.identity.fingerprint import examine
from xlakernel.cuda import cuda_callable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*Grid size"),  # Numba thinks that small launches are not worth it
]

N = 1000
X = -np.linspace(-3, 3, N, dtype=np.float32)


def like_first(x, *_):
    return x


def record(func, outs=like_first, **options):
    return jax.jit(cuda_callable(func, outs, record=True, **options))


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(scope="module")
def warp():
    warp = pytest.importorskip("warp", reason="Warp is not installed")
    warp.config.quiet = True
    return warp


@pytest.fixture(scope="module")
def core():
    return pytest.importorskip("cuda.core", reason="cuda.core is not installed")


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch


# CuPy

SAXPY = """
extern "C" __global__ void saxpy(const float* x, const float* y, float* out, float alpha, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = alpha * x[i] + y[i];
}
"""


def test_a_raw_kernel_of_cupy(cupy):
    kernel, current = cupy.RawKernel(SAXPY, "saxpy"), []

    def saxpy(x, y, out, alpha, stream):
        current.append(cupy.cuda.get_current_stream().ptr == stream.ptr)
        kernel((-(-x.size // 256),), (256,), (x, y, out, np.float32(alpha), np.int32(x.size)))

    assert not examine(saxpy).unknown
    run = jax.jit(cuda_callable(saxpy, like_first, arrays="cupy", record=True), static_argnames="alpha")
    for _ in range(3):
        assert_allclose(run(X, X[::-1].copy(), alpha=2.0), 2 * X + X[::-1], atol=1e-6)
    assert set(current) == {True}


def test_a_module_of_cupy(cupy):
    module = cupy.RawModule(code=SAXPY)

    def saxpy(x, out, stream):
        module.get_function("saxpy")((8,), (128,), (x, x, out, np.float32(1), np.int32(x.size)))

    assert_allclose(record(saxpy, arrays="cupy")(X), 2 * X)


def test_an_elementwise_chain_of_cupy(cupy):
    def wave(x, out, stream):
        out[...] = cupy.sin(x) * 2 + x

    run = record(wave, arrays="cupy")
    for i in range(3):
        assert_allclose(run(X + i), np.sin(X + i) * 2 + X + i, atol=1e-5)


def test_cupy_gives_no_memory_of_its_own_to_a_plan(cupy):
    """A replay must not write to blocks that CuPy has allocated for other arrays since."""

    def wave(x, out, stream):
        out[...] = (cupy.sin(x) * 2 + x) * cupy.cos(x)

    run = record(wave, arrays="cupy")
    jax.block_until_ready(run(X))
    others = [cupy.full(N, 5, cupy.float32) for _ in range(64)]
    cupy.cuda.Device().synchronize()
    for _ in range(10):
        jax.block_until_ready(run(X))
    assert all((other == 5).all() for other in others)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_reductions_of_cupy(cupy, axis):
    def total(x, out, stream):
        out[...] = cupy.sum(x, axis=axis)

    x = X.reshape(20, 50)
    outs = jax.ShapeDtypeStruct(np.sum(x, axis=axis).shape, jnp.float32)
    run = record(total, outs, arrays="cupy")
    for i in range(3):
        assert_allclose(run(x + i), np.sum(x + i, axis=axis), rtol=1e-4, atol=1e-3)


def test_kernels_that_cupy_generates(cupy):
    hypot = cupy.ElementwiseKernel("T x, T y", "T z", "z = sqrt(x * x + y * y)", "hypot_of_mine")
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm_of_mine")

    def both(x, y, out, length, stream):
        hypot(x, y, out)
        norm(x, out=length)

    assert not examine(both).unknown
    run = record(both, lambda x, y: (x, jax.ShapeDtypeStruct((), x.dtype)), arrays="cupy")
    out, length = run(X, 2 * X)
    assert_allclose(out, np.hypot(X, 2 * X), rtol=1e-5)
    assert_allclose(length, np.linalg.norm(X), rtol=1e-5)


def test_vmap_and_loops_of_cupy(cupy):
    def wave(x, out, stream):
        out[...] = cupy.sin(x) * 2 + x

    run = record(wave, arrays="cupy")
    x = np.stack([X, X + 1, X + 2])
    assert_allclose(jax.vmap(run)(x), np.sin(x) * 2 + x, atol=1e-5)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: run(x), x))(X)
    expected = X
    for _ in range(5):
        expected = np.sin(expected) * 2 + expected
    assert_allclose(looped, expected, atol=1e-3)


def test_cublas_calls_of_cupy_cannot_be_recorded(cupy):
    def product(x, out, stream):
        out[...] = x @ x

    x = jnp.asarray(X[:900].reshape(30, 30))
    with pytest.raises(RecordingError, match=r"(?s)product.*cuBLAS"):
        record(product, arrays="cupy")(x)
    run = jax.jit(cuda_callable(product, like_first, arrays="cupy"))
    with pytest.warns(Warning, match=r"(?s)product.*cuBLAS"):
        assert_allclose(run(x), np.asarray(x) @ np.asarray(x), atol=1e-2)


# cuda.core

CLUSTERED = """
extern "C" __global__ void tripled(const float* x, float* out, long long n) {
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * 3 + (size - 1);
}
"""


@pytest.mark.parametrize("cluster", [None, 2])
def test_cuda_core(core, cluster):
    device = core.Device(0)
    device.set_current()
    if device.compute_capability < (9, 0):
        pytest.skip("thread block clusters need compute capability 9.0")

    @functools.cache
    def kernel():
        options = core.ProgramOptions(arch=f"sm_{device.arch}")
        return core.Program(CLUSTERED, "c++", options).compile("cubin").get_kernel("tripled")

    def tripled(x, out, stream):
        size = {} if cluster is None else {"cluster": cluster}
        config = core.LaunchConfig(grid=8 if cluster is None else 4, block=128, **size)  # a grid of clusters
        core.launch(stream, config, kernel(), x.ptr, out.ptr, np.int64(N))

    run = record(tripled, arrays=lambda buffer: buffer, stream=core.Stream.from_handle)
    for i in range(3):
        assert_allclose(run(X + i), (X + i) * 3 + (cluster or 1) - 1, rtol=1e-6, atol=1e-6)


# Warp


@pytest.fixture(scope="module")
def warp_kernels(warp):
    @warp.kernel
    def squared(x: warp.array(dtype=float), out: warp.array(dtype=float)):
        i = warp.tid()
        out[i] = x[i] * x[i]

    @warp.kernel
    def added(x: warp.array(dtype=float), y: warp.array(dtype=float), out: warp.array(dtype=float)):
        i = warp.tid()
        out[i] = x[i] + y[i]

    return squared, added


@pytest.mark.parametrize("named", [True, False], ids=["on the stream", "on the current stream"])
def test_kernels_of_warp(warp, warp_kernels, named):
    squared, added = warp_kernels

    def polynomial(x, out, stream):
        between = warp.empty_like(x)
        where = {"stream": stream} if named else {"device": x.device}
        warp.launch(squared, dim=x.shape, inputs=[x], outputs=[between], **where)
        warp.launch(added, dim=x.shape, inputs=[x, between], outputs=[out], **where)

    run = record(polynomial, arrays="warp")
    for i in range(3):
        assert_allclose(run(X + i), (X + i) ** 2 + X + i, atol=1e-5)
    x = np.stack([X, X + 1, X + 2])
    assert_allclose(jax.vmap(run)(x), x**2 + x, atol=1e-5)


def test_fills_and_copies_of_warp(warp):
    def both(x, copied, filled, stream):
        warp.copy(copied, x)
        filled.fill_(3.0)

    copied, filled = record(both, lambda x: (x, x), arrays="warp")(X)
    assert_array_equal(copied, X)
    assert_array_equal(filled, np.full(N, 3))


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "bool", "float32"])
def test_dtypes_of_warp(warp, dtype):
    x = jnp.asarray(np.arange(N) % 100, dtype)
    run = record(lambda x, out, stream: warp.copy(out, x), arrays="warp")
    assert_array_equal(run(x), x)


# PyTorch


@pytest.mark.parametrize("how", ["the array interface", "DLPack"])
def test_torch(torch, how):
    def add_one(x, out, handle):
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            torch.add(x, 1, out=out)

    def as_tensor(buffer):
        return torch.as_tensor(buffer, device="cuda") if how == "the array interface" else torch.from_dlpack(buffer)

    run = record(add_one, arrays=as_tensor, stream=int)
    for i in range(3):
        assert_allclose(run(X + i), X + i + 1, atol=1e-6)
    if how == "DLPack":
        x = jnp.asarray(X, jnp.bfloat16)
        assert_array_equal(run(x), x + 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cublas_calls_of_torch(torch, dtype):
    def product(x, y, out, handle):
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            torch.mm(x, y, out=out)

    shapes = (256, 512), (512, 128)
    run = record(product, jax.ShapeDtypeStruct((256, 128), dtype), arrays=torch.from_dlpack, stream=int)
    for seed in range(3):
        x, y = (jax.random.normal(jax.random.key(seed + i), shapes[i]).astype(dtype) for i in range(2))
        exact = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
        assert_allclose(np.asarray(run(x, y), np.float64), exact, rtol=1e-2, atol=0.3)
    both = jax.vmap(run)(jnp.stack([x, 2 * x]), jnp.stack([y, y]))
    assert_allclose(np.asarray(both[1], np.float64), 2 * exact, rtol=1e-2, atol=0.6)


# Several at once


def test_libraries_together(cupy):
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

    def mixed(x, out, stream):
        between = cupy.sin(x)
        result = cuda.as_cuda_array(out, sync=False)
        result.copy_to_device(cuda.as_cuda_array(between, sync=False), stream=cuda.external_stream(stream.ptr))

    assert_allclose(record(mixed, arrays="cupy")(X), np.sin(X), atol=1e-6)


def test_arrays_of_one_library_and_the_stream_of_another(cupy):
    cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

    @cuda.jit
    def double(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = 2 * x[i]

    def mixed(x, out, stream):
        double[8, 128, stream](cuda.as_cuda_array(cupy.sin(x), sync=False), cuda.as_cuda_array(out, sync=False))

    assert_allclose(record(mixed, arrays="cupy", stream="numba")(X), 2 * np.sin(X), atol=1e-6)
