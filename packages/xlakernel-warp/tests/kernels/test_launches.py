"""Threads of launches, and calls among other operations of a program."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from xlakernel.warp import warp_kernel

wp.set_module_options({"enable_backward": False})

pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.usefixtures("x64")]

Struct = jax.ShapeDtypeStruct
F32 = jnp.float32


def same(x, *_):
    return x


# Threads


def make_count(rank):
    @wp.kernel
    def count1(out: wp.array4d(dtype=int)):
        i = wp.tid()
        wp.atomic_add(out, i, 0, 0, 0, 1)

    @wp.kernel
    def count2(out: wp.array4d(dtype=int)):
        i, j = wp.tid()
        wp.atomic_add(out, i, j, 0, 0, 1)

    @wp.kernel
    def count3(out: wp.array4d(dtype=int)):
        i, j, k = wp.tid()
        wp.atomic_add(out, i, j, k, 0, 1)

    @wp.kernel
    def count4(out: wp.array4d(dtype=int)):
        i, j, k, m = wp.tid()
        wp.atomic_add(out, i, j, k, m, 1)

    return (count1, count2, count3, count4)[rank - 1]


COUNTS = {rank: make_count(rank) for rank in (1, 2, 3, 4)}


@given(rank=st.integers(1, 4), dims=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple))
def test_threads_of_any_launch(rank, dims):
    """A kernel that asks for fewer coordinates has several threads at each; one that asks for more has zeros there."""
    expected = np.zeros((3, 3, 3, 3), int)
    for place in itertools.product(*map(range, dims)):
        expected[(*place, 0, 0, 0)[:rank] + (0,) * (4 - rank)] += 1
    out = Struct((3, 3, 3, 3), jnp.int32)
    for given_dims in (dims, lambda: dims, dims[0] if len(dims) == 1 else list(dims), tuple(map(np.int32, dims))):
        assert_array_equal(warp_kernel(COUNTS[rank], out, launch_dims=given_dims, output_init=0)(), expected)


@wp.kernel
def add(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + y[0]


@pytest.mark.parametrize(
    ("dims", "written"),
    [(None, 6), (6, 6), ((6,), 6), ((2, 3), 2), (lambda x, y: x.shape, 6), (lambda x, y: y.size, 1), (0, 0), (4, 4)],
    ids=["None", "6", "(6,)", "(2, 3)", "function", "function of 1", "0", "4"],
)
def test_launch_dims_of_every_form(dims, written):
    x, y = np.arange(6, dtype="f4"), np.full(1, 10, "f4")
    run = warp_kernel(add, same, launch_dims=dims, output_init=-1)
    assert_array_equal(run(x, y), np.where(np.arange(6) < written, x + 10, -1))


def test_a_function_for_launch_dims_is_asked_for_each_shape():
    run = warp_kernel(add, same, launch_dims=lambda x, y: x.shape[0] - 1, output_init=0)
    for size in (1, 2, 5):
        x = np.ones(size, "f4")
        assert_array_equal(run(x, x), 2.0 * (np.arange(size) < size - 1))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 100_000])
def test_sizes_around_those_of_blocks(size):
    x = np.arange(size, dtype="f4")
    assert_array_equal(warp_kernel(add, same)(x, np.ones(1, "f4")), x + 1)


TILE = 32


@wp.kernel
def tile_sums(x: wp.array2d(dtype=float), out: wp.array(dtype=float)):
    i, _ = wp.tid()
    tile = wp.tile_load(x[i], shape=TILE)
    wp.tile_store(out, wp.tile_sum(tile), offset=i)


@pytest.mark.parametrize("block_dim", [None, 32, 64])
def test_tiles_in_blocks_of_any_size(block_dim):
    x = np.random.default_rng(2).integers(-9, 9, (7, TILE)).astype("f4")
    threads = block_dim or 256
    run = warp_kernel(
        tile_sums, lambda x: Struct(x.shape[:1], x.dtype), launch_dims=lambda x: (len(x), threads), block_dim=block_dim
    )
    assert_array_equal(jax.jit(run)(x), x.sum(1))
    assert_array_equal(jax.vmap(run)(np.stack([x, -x])), [x.sum(1), -x.sum(1)])


# Programs


def test_two_kernels_of_one_program_see_each_others_results():
    run = warp_kernel(add, same)
    x, y = np.arange(1000, dtype="f4"), np.ones(1, "f4")
    assert_array_equal(jax.jit(lambda x: run(run(x, y), run(y, y)))(x), x + 3)
    assert_array_equal(jax.lax.cond(True, lambda: run(x, y), lambda: x), x + 1)
    assert_array_equal(jax.lax.scan(lambda c, s: (run(c, s), c[0]), x, np.ones((4, 1), "f4"))[1], range(4))


def test_a_derivative_comes_from_the_reference():
    run = warp_kernel(add, same, reference=lambda x, y: x + y[0])
    gradient = jax.grad(lambda x, y: jnp.sum(run(x, y) ** 2), (0, 1))(np.arange(3, dtype="f4"), np.ones(1, "f4"))
    assert_array_equal(gradient[0], [2, 4, 6])
    assert_array_equal(gradient[1], [12])


def test_a_call_with_a_side_effect_stays_in_the_program():
    x = np.ones(3, "f4")
    for kept in (True, False):
        run = warp_kernel(add, same, has_side_effect=kept)
        text = jax.jit(lambda x, run=run: (run(x, x), x + 1)[1]).lower(x).compile().as_text()
        assert ("custom-call" in text) == kept
        assert_array_equal(run(x, x), 2 * x)


@wp.kernel
def look(x: wp.array(dtype=float)):
    wp.printf("looked at %f\n", x[wp.tid()])


def test_a_kernel_without_outputs_runs_for_its_side_effect(capfd):
    run = warp_kernel(look, (), has_side_effect=True)
    assert run(np.float32([1.5, 2.5])) == ()
    jax.effects_barrier()
    wp.synchronize()
    jax.vmap(run)(np.float32([[3.5], [4.5]]))
    jax.effects_barrier()
    wp.synchronize()
    printed = [line for line in capfd.readouterr().out.splitlines() if "looked" in line]
    assert printed == [f"looked at {x}00000" for x in (1.5, 2.5, 3.5, 4.5)]
