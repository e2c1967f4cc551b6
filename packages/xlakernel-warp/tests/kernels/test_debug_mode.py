"""Debug mode: unwritten outputs, and writes to inputs and beside arrays."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.core import debug_mode
from xlakernel.warp import warp_kernel

wp.set_module_options({"enable_backward": False})

pytestmark = pytest.mark.usefixtures("platform")

# JAX raises a ValueError where the program ran in the calling thread, and its own error where it did not.
RAISED = (jax.errors.JaxRuntimeError, ValueError)
Struct = jax.ShapeDtypeStruct


@pytest.fixture(autouse=True)
def _debug():
    with debug_mode():
        yield


def message_of(run, *inputs, **static):
    with pytest.raises(RAISED) as caught:
        jax.block_until_ready(run(*inputs, **static))
    return str(caught.value)


def same(x, *_):
    return x


@wp.kernel
def copies_but_one(x: wp.array2d(dtype=float), skipped: wp.array(dtype=int), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    if i * x.shape[1] + j != skipped[0]:
        out[i, j] = x[i, j]


run_but_one = warp_kernel(copies_but_one, same)
X = np.arange(6, dtype="f4").reshape(2, 3)


def test_an_unwritten_element_is_named():
    line = copies_but_one.func.__code__.co_firstlineno
    for skipped in (0, 4):
        message = message_of(run_but_one, X, np.int32(skipped))
        assert f"kernel 'copies_but_one' of {__file__}:{line} did not write element " in message
        assert f"({skipped // 3}, {skipped % 3}) of output 0 (float32[2,3]). Every element must be written" in message
    assert_array_equal(run_but_one(X, np.int32(-1)), X)


def test_an_unwritten_element_of_a_batch_is_named_with_its_slice():
    xs, skipped = np.stack([X, X, X]), np.int32([-1, -1, 5])
    mapped = jax.vmap(run_but_one)
    assert "element (1, 2) of output 0 (float32[2,3]), in slice (2,) of a batch of (3,)." in message_of(
        mapped, xs, skipped
    )
    assert_array_equal(mapped(xs, np.full(3, -1, "i4")), xs)
    nested = jax.vmap(jax.vmap(run_but_one, (None, 0)), (0, None))
    assert "in slice (0, 2) of a batch of (3, 3), and 2 more." in message_of(nested, xs, skipped)


def test_fewer_threads_than_elements():
    run = warp_kernel(copies_but_one, same, launch_dims=(2, 2))
    assert "element (0, 2) of output 0 (float32[2,3]), and 1 more." in message_of(run, X, np.int32(-1))


def test_what_begins_with_a_value_is_written():
    run = warp_kernel(copies_but_one, same, output_init=9)
    assert_array_equal(run(X, np.int32(1)), np.where(X == 1, 9, X))
    for dims in (0, (2, 0)):
        assert_array_equal(warp_kernel(copies_but_one, same, launch_dims=dims)(X, np.int32(1)), np.zeros((2, 3)))
    assert run(X[:0], np.int32(1)).shape == (0, 3)
    assert jax.vmap(run)(np.zeros((0, 2, 3), "f4"), np.zeros(0, "i4")).shape == (0, 2, 3)


def make_partial(dtype, ndim):
    @wp.kernel
    def partial(out: wp.array(dtype=dtype), written: int):
        i = wp.tid()
        if i < written:
            out[i] = dtype(1)

    return partial


DTYPES = {"bool": wp.bool, "int8": wp.int8, "uint16": wp.uint16, "bfloat16": wp.bfloat16, "int32": wp.int32}
PARTIAL = {name: make_partial(kind, 1) for name, kind in DTYPES.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unwritten_element_is_found_whatever_its_dtype(dtype):
    run = warp_kernel(PARTIAL[dtype], Struct((5,), jnp.dtype(dtype)), launch_dims=5)
    assert f"did not write element (3,) of output 0 ({dtype}[5]), and 1 more." in message_of(run, written=3)
    assert_array_equal(run(written=5), np.ones(5))


@wp.kernel
def splits(x: wp.array(dtype=wp.vec3), lengths: wp.array(dtype=float), parts: wp.array(dtype=wp.vec2), last: int):
    i = wp.tid()
    lengths[i] = wp.length(x[i])
    if i < last:
        parts[i] = wp.vec2(x[i][0], x[i][1])


def test_the_right_one_of_several_outputs_is_named():
    run = warp_kernel(splits, lambda x: (Struct(x.shape[:1], x.dtype), Struct((*x.shape[:1], 2), x.dtype)))
    x = np.ones((4, 3), "f4")
    assert "did not write element (3, 0) of output 1 (float32[4,2]), and 1 more." in message_of(run, x, last=3)
    assert_array_equal(run(x, last=4)[1], np.ones((4, 2)))


@wp.kernel
def writes_beside(x: wp.array(dtype=float), index: wp.array(dtype=int), out: wp.array(dtype=float)):
    for i in range(x.shape[0]):
        out[i] = x[i]
    out[index[0]] = 9.0


@pytest.mark.parametrize("index", [-5, 4, 15])
def test_a_write_beside_an_array_is_found(index):
    run = warp_kernel(writes_beside, same, launch_dims=1)
    message = message_of(run, np.ones(4, "f4"), np.int32(index))
    assert "wrote out of bounds, beside output 0 (float32[4])" in message
    assert "Threads that have no element must not write: compare their index with the array's extents." in message
    assert_array_equal(run(np.float32([5, 6, 7, 8]), np.int32(3)), [5, 6, 7, 9])


@wp.kernel
def writes_to_its_input(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i]
    if i == 1:
        x[i] = 9.0


def test_a_write_to_an_input_leaves_the_callers_array_as_it_was():
    run, x = warp_kernel(writes_to_its_input, same), jnp.arange(4.0)
    for call in (run, jax.jit(run)):
        message = message_of(call, x)
        assert "changed element (1,) of input 0 (float32[4]): 1.0 became 9.0. Inputs are read-only" in message
        assert "input_output_aliases" in message
        assert_array_equal(x, range(4))
    run = warp_kernel(writes_to_its_input, same, input_output_aliases={0: 0})
    assert_array_equal(run(x), [0, 9, 2, 3])  # it may write to what is the output's


@wp.kernel
def adds(
    total: wp.array(dtype=int),
    x: wp.array(dtype=wp.uint8),
    sum: wp.array(dtype=int),
    out: wp.array(dtype=wp.uint8),
):
    i = wp.tid()
    sum[i] += int(x[i])
    out[i] = x[i]


def test_an_update_in_place_happens_once_though_the_kernel_runs_again():
    """Bytes may be written with any value, so that only several runs tell."""
    run = warp_kernel(adds, lambda total, x: (total, x), input_output_aliases={0: 0})
    total, x = jnp.full(256, 1000, jnp.int32), np.arange(256, dtype="u1")
    for _ in range(2):
        sums, out = run(total, x)
        assert_array_equal(sums, 1000 + np.arange(256))
        assert_array_equal(out, x)
        assert_array_equal(total, np.full(256, 1000))
    assert_array_equal(jax.vmap(run, (None, 0))(total, np.stack([x, x]))[0], [1000 + np.arange(256)] * 2)


@wp.kernel
def prints(out: wp.array(dtype=float)):
    wp.printf("one run\n")


def test_a_kernel_with_a_side_effect_runs_once(capfd):
    run = warp_kernel(prints, Struct((3,), jnp.float32), launch_dims=1, has_side_effect=True)
    message = message_of(run)
    wp.synchronize()
    assert "did not write element (0,)" in message and "with has_side_effect it runs only once" in message
    assert capfd.readouterr().out.count("one run") == 1


TILE = 16


@wp.kernel
def tile_product(x: wp.array2d(dtype=float), skip: int, out: wp.array2d(dtype=float)):
    a = wp.tile_load(x, shape=(TILE, TILE), storage="shared")
    if skip == 0:
        wp.tile_store(out, wp.tile_matmul(a, a))


def test_kernels_with_tiles_in_several_threads():
    run = warp_kernel(tile_product, same, launch_dims=(1, 64), block_dim=64)
    x = np.random.default_rng(0).integers(-3, 4, (TILE, TILE)).astype("f4")

    def work(number):
        with debug_mode():  # it holds for one thread
            for _ in range(5):
                assert_array_equal(run(x + number, skip=0), (x + number) @ (x + number))
                assert "did not write element (0, 0) of output 0 (float32[16,16]), and 255 more" in message_of(
                    run, x, skip=1
                )

    run(x, skip=0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_inside_a_program_with_control_flow():
    program = jax.jit(lambda x, skipped: jax.lax.scan(lambda c, s: (run_but_one(c, s) + 1, s), x, skipped)[0])
    assert_array_equal(program(X, np.full(4, -1, "i4")), X + 4)
    assert "did not write element (0, 2)" in message_of(program, X, np.int32([-1, -1, 2]))


def test_what_was_compiled_without_it_is_compiled_again():
    with debug_mode(False):
        run_but_one(X, np.int32(2)).block_until_ready()
    assert "did not write element (0, 2)" in message_of(run_but_one, X, np.int32(2))
    with debug_mode(False):
        run_but_one(X, np.int32(2)).block_until_ready()
