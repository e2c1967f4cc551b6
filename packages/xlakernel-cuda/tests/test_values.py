"""Results of kernels on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda, float32
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.core.errors import ReadOnlyInputError
from xlakernel.core.structs import Struct
from xlakernel.cuda import numba_cuda_kernel

pytestmark = pytest.mark.gpu


@cuda.jit
def copy(x, out):
    i, size = cuda.grid(1), x.size
    if i < size:
        if x.ndim == 0:
            out[()] = x[()]
        elif x.ndim == 1:
            out[i] = x[i]
        elif x.ndim == 2:
            out[i // x.shape[1], i % x.shape[1]] = x[i // x.shape[1], i % x.shape[1]]
        elif x.ndim == 3:
            n, k = x.shape[1], x.shape[2]
            out[i // (n * k), i // k % n, i % k] = x[i // (n * k), i // k % n, i % k]
        else:
            m, n, k = x.shape[1], x.shape[2], x.shape[3]
            out[i // (m * n * k), i // (n * k) % m, i // k % n, i % k] = x[
                i // (m * n * k), i // (n * k) % m, i // k % n, i % k
            ]


def same(x, *_):
    return x


DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16")
DTYPES += ("float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 1, 3), (2, 3, 1, 2), (0,), (2, 0)])
def test_every_dtype_and_rank_arrives(enable_x64, dtype, shape):
    with enable_x64():
        x = jnp.asarray(np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape)).astype(dtype)
        run = numba_cuda_kernel(copy, same, launch_dims=lambda x: x.size)
        assert_array_equal(jax.jit(run)(x), x)


@cuda.jit
def where_am_i(out):
    i, j, k = cuda.grid(3)
    if i < out.shape[0] and j < out.shape[1] and k < out.shape[2]:
        out[i, j, k] = i * 10000 + j * 100 + k


@pytest.mark.parametrize(
    "launch",
    [
        {"launch_dims": (19, 9, 5)},
        {"launch_dims": lambda: (19, 9, 5)},
        {"grid": (5, 3, 2), "block": (4, 3, 3)},
        {"grid": lambda: (19, 9, 5), "block": lambda: 1},
    ],
)
def test_each_thread_has_its_indices(launch):
    i, j, k = np.ogrid[:19, :9, :5]
    run = numba_cuda_kernel(where_am_i, Struct((19, 9, 5), jnp.int32), **launch)
    assert_array_equal(run(), i * 10000 + j * 100 + k)


@cuda.jit
def add_up(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, i % out.size, x[i])


@pytest.mark.parametrize("init", [0, 0.5, [0.5]])
def test_a_kernel_that_accumulates_begins_with_output_init(init):
    run = numba_cuda_kernel(add_up, Struct((2,), jnp.float32), launch_dims=1000, output_init=init)
    expected = np.full(2, 500 + np.ravel(init)[0])
    for _ in range(3):
        assert_array_equal(jax.jit(run)(jnp.ones(1000)), expected)
    assert_array_equal(jax.vmap(run)(jnp.ones((3, 1000))), [expected] * 3)


@cuda.jit
def leave(out):
    pass


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (4099,), (3, 70000)])
def test_output_init_of_every_width_and_size(enable_x64, dtype, value, shape):
    with enable_x64():
        run = numba_cuda_kernel(leave, Struct(shape, jnp.dtype(dtype)), launch_dims=1, output_init=value)
        assert_array_equal(run(), np.full(shape, value, jnp.dtype(dtype)))


def test_an_unequal_pattern_of_16_bytes(enable_x64):
    with enable_x64():
        out = Struct((513,), jnp.complex128)
        assert_array_equal(
            numba_cuda_kernel(leave, out, launch_dims=1, output_init=1.5 - 0.1j)(), np.full(513, 1.5 - 0.1j)
        )


@pytest.mark.parametrize(("options", "expected"), [({}, 0), ({"output_init": 7}, 7)])
def test_a_launch_of_no_threads_gives_defined_outputs(options, expected):
    run = numba_cuda_kernel(copy, lambda x: Struct((5,), jnp.float32), launch_dims=lambda x: x.size, **options)
    assert_array_equal(jax.jit(run)(jnp.ones(0)), np.full(5, expected))
    assert_array_equal(jax.jit(jax.vmap(run))(jnp.ones((2, 0))), np.full((2, 5), expected))


@cuda.jit
def increment(acc, step, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] += step[()]


def test_an_alias_is_updated_in_place_and_the_input_is_kept():
    run = numba_cuda_kernel(increment, same, launch_dims=lambda x, _: x.size, input_output_aliases={0: 0})
    x = jnp.arange(5.0)
    assert_array_equal(jax.jit(run)(x, 2.0), np.arange(5) + 2)
    assert_array_equal(x, np.arange(5))


SLICES = [slice(0, -1), slice(1, None), slice(256, 512), slice(0, None, 2)]


@pytest.mark.parametrize("part", SLICES, ids=str)
@pytest.mark.parametrize("debug", [False, True])
def test_an_alias_of_a_part_of_another_array(part, debug):
    run = numba_cuda_kernel(increment, same, launch_dims=lambda x, _: x.size, input_output_aliases={0: 0})
    x = jnp.arange(2**14, dtype=jnp.float32)

    def program(x):
        whole = jnp.cumsum(x % 7)
        return whole, run(whole[part], 2.0)

    with debug_mode(debug):
        whole, found = jax.jit(program)(x)
    expected = np.cumsum(np.arange(2**14) % 7)
    assert_array_equal(whole, expected)
    assert_array_equal(found, expected[part] + 2)


def test_an_alias_whose_results_are_stacked():
    run = numba_cuda_kernel(increment, same, launch_dims=lambda x, _: x.size, input_output_aliases={0: 0})

    def step(x, _):
        after = run(x, 1.0)
        return after, after

    last, all_of_them = jax.jit(lambda x: jax.lax.scan(step, x, length=4))(jnp.arange(1024.0))
    expected = np.arange(1024) + 1 + np.arange(4)[:, None]
    assert_array_equal(all_of_them, expected)
    assert_array_equal(last, expected[-1])


def test_a_launch_of_no_threads_leaves_an_alias_as_it_is():
    run = numba_cuda_kernel(increment, same, launch_dims=0, input_output_aliases={0: 0})
    assert_array_equal(run(jnp.arange(5.0), 2.0), np.arange(5))


@cuda.jit
def scaled(factor, x, out, offset=0.5):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factor * x[i] + offset


@pytest.mark.parametrize("factor", [True, 3, np.int8(-3), np.uint16(3), 1.5, np.float32(1.5), 2**40])
def test_static_scalars_of_every_kind(factor):
    run = numba_cuda_kernel(scaled, same, launch_dims=lambda x: x.size)
    x = jnp.arange(4.0)
    assert_allclose(run(x, factor=factor), factor * np.arange(4.0) + 0.5)
    assert_allclose(jax.jit(lambda x: run(x, offset=2, factor=factor))(x), factor * np.arange(4.0) + 2)


@cuda.jit
def reverse_in_shared_memory(x, out):
    block = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    while i < x.size:
        block[i] = x[i]
        i += cuda.blockDim.x
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < x.size:
        out[i] = block[x.size - 1 - i]
        i += cuda.blockDim.x


@pytest.mark.parametrize("kib", [1, 48, 49, 100, 200])
def test_dynamic_shared_memory_also_above_48_kib(kib):
    n = kib * 256
    run = numba_cuda_kernel(reverse_in_shared_memory, same, grid=1, block=256, shared_mem=n * 4)
    x = jnp.arange(n, dtype=jnp.float32)
    assert_array_equal(jax.jit(run)(x), x[::-1])
    assert_array_equal(jax.vmap(run)(jnp.stack([x, -x])), np.stack([x[::-1], -x[::-1]]))


@cuda.jit
def reverse_in_two_shared_arrays(x, out):
    first, second = cuda.shared.array(10_000, float32), cuda.shared.array(0, float32)
    i, n = cuda.threadIdx.x, x.size
    while i < n:
        if i < 10_000:
            first[i] = x[i]
        else:
            second[i - 10_000] = x[i]
        i += cuda.blockDim.x
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < n:
        j = n - 1 - i
        out[i] = first[j] if j < 10_000 else second[j - 10_000]
        i += cuda.blockDim.x


@pytest.mark.parametrize("debug", [False, True])
def test_shared_arrays_of_fixed_and_of_dynamic_size_are_above_48_kib_together(debug):
    run = numba_cuda_kernel(reverse_in_two_shared_arrays, same, grid=1, block=256, shared_mem=40_000)
    x = jnp.arange(20_000, dtype=jnp.float32)
    with debug_mode(debug):
        assert_array_equal(jax.jit(run)(x), x[::-1])


@cuda.jit
def sum_over_the_grid(x, partial, out):
    i = cuda.grid(1)
    cuda.atomic.add(partial, 0, x[i])
    cuda.cg.this_grid().sync()
    out[i] = partial[0]


def test_a_kernel_that_synchronises_its_grid_is_launched_cooperatively():
    run = numba_cuda_kernel(
        sum_over_the_grid, lambda x: (Struct((1,), x.dtype), x), grid=32, block=128, output_init=(0, None)
    )
    assert_array_equal(jax.jit(run)(jnp.ones(4096))[1], np.full(4096, 4096.0))


@cuda.jit
def sum_over_the_grid_by_shared_memory(x, partial, out):
    block = cuda.shared.array(0, float32)
    i = cuda.grid(1)
    block[cuda.threadIdx.x] = x[i]
    cuda.atomic.add(partial, 0, block[cuda.threadIdx.x])
    cuda.cg.this_grid().sync()
    out[i] = partial[0]


@cuda.jit
def sum_over_the_grid_by_two_shared_arrays(x, partial, out):
    values, block = cuda.shared.array(1024, float32), cuda.shared.array(0, float32)
    i = cuda.grid(1)
    block[cuda.threadIdx.x] = values[cuda.threadIdx.x] = x[i]
    cuda.atomic.add(partial, 0, np.float32(0.5) * (block[cuda.threadIdx.x] + values[cuda.threadIdx.x]))
    cuda.cg.this_grid().sync()
    out[i] = partial[0]


@pytest.mark.parametrize("kernel", [sum_over_the_grid_by_shared_memory, sum_over_the_grid_by_two_shared_arrays])
@pytest.mark.parametrize("kib", [44, 45, 48, 49, 146, 200])
def test_a_cooperative_kernel_with_dynamic_shared_memory_also_above_48_kib(kernel, kib):
    run = numba_cuda_kernel(
        kernel,
        lambda x: (Struct((1,), x.dtype), x),
        grid=32,
        block=128,
        shared_mem=kib * 1024,
        output_init=(0, None),
    )
    assert_array_equal(jax.jit(run)(jnp.ones(4096))[1], np.full(4096, 4096.0))


def test_two_kernels_of_one_program_see_each_others_results():
    run = numba_cuda_kernel(scaled, same, launch_dims=lambda x: x.size)
    twice = jax.jit(lambda x: run(run(x, factor=2), factor=3))
    assert_allclose(twice(jnp.arange(1000.0)), 3 * (2 * np.arange(1000.0) + 0.5) + 0.5)


def test_a_loop_on_the_device():
    run = numba_cuda_kernel(scaled, same, launch_dims=lambda x: x.size)
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, x: run(x, factor=1.0, offset=1.0), x))
    assert_array_equal(step(jnp.zeros(1000)), np.full(1000, 100.0))


def doubled(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_declared_signatures_do_not_matter(dtype):
    declared = cuda.jit("void(float32[:], float32[:])")(doubled)
    run = numba_cuda_kernel(declared, same, launch_dims=lambda x: x.size)
    assert_array_equal(run(jnp.arange(5, dtype=dtype)), 2 * np.arange(5))


FACTOR = 2.0


@cuda.jit
def by_a_global(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = FACTOR * x[i]


def test_a_global_that_changed_after_the_users_own_launch_is_seen(monkeypatch):
    own = cuda.device_array(4, np.float32)
    by_a_global[128, 32](own, own)  # fewer blocks would make Numba warn
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    run = numba_cuda_kernel(by_a_global, same, launch_dims=lambda x: x.size)
    assert_array_equal(run(jnp.ones(4)), np.full(4, 3.0))


def test_a_device_function_that_declares_writable_arrays_does_not_take_inputs():
    @cuda.jit("void(float32[::1])", device=True)
    def clear(x):
        x[0] = 0

    @cuda.jit
    def kernel(x, out):
        clear(x)

    with pytest.raises(ReadOnlyInputError, match=r"kernel.*writes to an input"):
        numba_cuda_kernel(kernel, same, launch_dims=1)(jnp.ones(3))
