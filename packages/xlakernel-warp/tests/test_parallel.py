"""``warp_kernel(parallel=True)``: one launch split over XLA's threads on the CPU, and no difference on a GPU."""

import concurrent.futures
import ctypes
import functools
import os
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

import xlakernel.warp._cpu as on_the_cpu
from xlakernel.core import debug_mode
from xlakernel.core.errors import LaunchError
from xlakernel.warp import warp_kernel

wp.set_module_options({"enable_backward": False})

Struct = jax.ShapeDtypeStruct
BOTH = pytest.mark.usefixtures("platform")
ERRORS = (LaunchError, jax.errors.JaxRuntimeError, ValueError)


@wp.func
def rounds(x: float, count: int):
    """Some work, so that a launch of a few thousand threads is worth to be split."""
    for _ in range(count):
        x = wp.sin(x) + 0.5
    return x


@wp.kernel
def work(x: wp.array(dtype=float), count: int, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = rounds(x[i], count)


@wp.kernel
def neighbours(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float), where: wp.array2d(dtype=wp.vec2i)):
    """Reads what other threads read too, and says where it is."""
    i, j = wp.tid()
    left = x[i, wp.max(j - 1, 0)]
    out[i, j] = rounds(x[i, j] - left, 20)
    where[i, j] = wp.vec2i(i, j)


@wp.kernel
def four_dimensional(x: wp.array4d(dtype=float), out: wp.array4d(dtype=float)):
    i, j, k, m = wp.tid()
    out[i, j, k, m] = x[i, j, k, m] + float(1000 * i + 100 * j + 10 * k + m)


@wp.kernel
def add_work(acc: wp.array(dtype=float), x: wp.array(dtype=float), out: wp.array(dtype=float)):
    """For an alias of acc and out."""
    i = wp.tid()
    out[i] = out[i] + rounds(x[i], 20)


@wp.kernel
def rotated(points: wp.array(dtype=wp.vec3), turn: wp.array(dtype=wp.mat33), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = turn[0] * points[i]


@wp.kernel
def leaves_some(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    if i != 700:
        out[i] = rounds(x[i], 20)


@wp.kernel
def add_up(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(out, 0, x[i])


@wp.kernel
def add_into_first(acc: wp.array(dtype=float), x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(out, 0, x[i])


@wp.kernel
def add_in_place(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    """Which Warp makes an atomic operation."""
    i = wp.tid()
    out[0] += x[i]


@wp.func
def add_at(out: wp.array(dtype=float), value: float):
    wp.atomic_max(out, 0, value)


@wp.kernel
def add_in_a_helper(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    add_at(out, x[i])


@wp.kernel
def by_tiles(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    tile = wp.tile_load(x, shape=4, offset=4 * i)
    wp.tile_store(out, tile, offset=4 * i)


@wp.kernel(module="unique", enable_backward=False)
def cube(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] * x[i] * x[i]


def same(x, *_):
    return x


def both(kernel, outs=same, **options):
    """Return a kernel as it is, and split."""
    return (warp_kernel(kernel, outs, parallel=parallel, **options) for parallel in (False, True))


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# Equal results, whatever is split


@BOTH
@pytest.mark.parametrize("size", [0, 1, 2, 7, 20_011])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_split_launch_computes_the_same(size, jit):
    whole, split = both(work)
    x = numbers(size)
    for count in (1, 50):
        assert_array_equal(jit(functools.partial(split, count=count))(x), jit(functools.partial(whole, count=count))(x))


@BOTH
def test_launches_of_several_dimensions():
    def outs(x):
        return x, Struct((*x.shape, 2), jnp.int32)

    whole, split = both(neighbours, outs)
    for shape in ((3, 5), (1, 4001), (4001, 1), (97, 101), (0, 3)):
        x = numbers(*shape)
        out, where = split(x)
        assert_array_equal(out, whole(x)[0])
        assert_array_equal(where, np.moveaxis(np.indices(shape), 0, -1))
    whole, split = both(four_dimensional)
    x = numbers(5, 7, 11, 13)
    assert_array_equal(split(x), whole(x))


@BOTH
@pytest.mark.parametrize("threads", [0, 1, 1234])
def test_fewer_threads_than_elements(threads):
    run = warp_kernel(add_work, same, launch_dims=threads, input_output_aliases={0: 0}, parallel=True)
    whole = warp_kernel(work, same)
    acc, x = numbers(5000), numbers(5000)
    expected = np.where(np.arange(5000) < threads, acc + whole(x, count=20), acc)
    kept = jnp.array(acc)
    assert_array_equal(jax.jit(run)(kept, x), expected)
    assert_array_equal(kept, acc)


@BOTH
def test_vectors_and_generic_kernels():
    whole, split = both(rotated)
    points, turn = numbers(5000, 3), numbers(1, 3, 3)
    assert_array_equal(split(points, turn), whole(points, turn))
    whole, split = both(cube)
    for dtype in ("float32", "int16"):
        x = (10 * numbers(5000)).astype(dtype)
        assert_array_equal(split(x), whole(x))


@BOTH
@pytest.mark.parametrize("method", ["native", "broadcast_all", "sequential"])
@pytest.mark.parametrize("size", [0, 1, 3, 300])
def test_a_batch_is_split_too(method, size):
    whole, split = both(neighbours, lambda x: (x, Struct((*x.shape, 2), jnp.int32)), vmap_method=method)
    x = numbers(size, 11, 13)
    for one, other in zip(jax.jit(jax.vmap(split))(x), jax.jit(jax.vmap(whole))(x), strict=True):
        assert_array_equal(one, other)


@BOTH
def test_nested_batches_and_inputs_that_slices_share():
    whole, split = both(add_work, input_output_aliases={0: 0})
    acc, x = numbers(3, 501), numbers(2, 501)
    for run in (lambda f: jax.vmap(f, (0, None))(acc, x[0]), lambda f: jax.vmap(f, (None, 0))(acc[0], x)):
        assert_array_equal(run(split), run(whole))
    nested = [jax.vmap(jax.vmap(f, (None, 0)), (0, None))(acc, x) for f in (split, whole)]
    assert_array_equal(*nested)


@BOTH
def test_loops_side_effects_and_several_calls_in_one_program():
    split = warp_kernel(work, same, parallel=True, has_side_effect=True)
    whole = warp_kernel(work, same)
    x = numbers(5000)

    def program(run):
        def step(_, x):
            return run(x, count=3) - run(x, count=2)

        return jax.jit(lambda x: jax.lax.fori_loop(0, 50, step, x))

    assert_array_equal(program(split)(x), program(whole)(x))
    rows = numbers(5, 3000)
    assert_array_equal(jax.vmap(lambda x: split(x, count=30))(rows), jax.vmap(lambda x: whole(x, count=30))(rows))


@BOTH
def test_several_threads_at_once():
    whole, split = both(work)
    inputs = [numbers(4000) + i for i in range(24)]
    expected = [whole(x, count=20) for x in inputs]
    run = jax.jit(functools.partial(split, count=20))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(run, inputs), expected, strict=True):
            assert_array_equal(found, wanted)


def test_several_devices_at_once():
    devices = jax.devices("cpu")[:4]
    mesh = jax.make_mesh((4,), ("a",), (AxisType.Auto,), devices=devices)
    x = jax.device_put(numbers(16_000), NamedSharding(mesh, PartitionSpec("a")))
    whole, split = both(work, sharding_rule="i -> i")
    found = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: split(x, count=20), x))(x)
    expected = jax.lax.fori_loop(0, 5, lambda _, x: whole(x, count=20), jax.device_get(x))
    assert_array_equal(found, expected)


@BOTH
def test_gradients():
    run = warp_kernel(
        cube,
        same,
        parallel=True,
        vjp=lambda inputs, _, cotangent: (3 * inputs[0] ** 2 * cotangent,),
    )
    referred = warp_kernel(cube, same, parallel=True, reference=lambda x: x**3)
    x = numbers(4000)
    for f in (run, referred):
        assert_allclose(jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(x), 3 * x * x, rtol=1e-5)
        assert_allclose(jax.vmap(jax.grad(lambda x, f=f: f(x).sum()))(x.reshape(4, -1)).ravel(), 3 * x * x, rtol=1e-5)


@BOTH
def test_debug_mode():
    whole, split = both(work)
    x = numbers(4000)
    expected = whole(x, count=20)
    with debug_mode():
        assert_array_equal(split(x, count=20), expected)
        assert_array_equal(jax.vmap(lambda x: split(x, count=20))(x.reshape(4, -1)).ravel(), expected)
        with pytest.raises(ERRORS, match=r"'leaves_some' .*did not write element \(700,\) of output 0"):
            jax.block_until_ready(warp_kernel(leaves_some, same, parallel=True)(x))


# How it is split


@pytest.fixture
def pieces(monkeypatch):
    """What each call of an entry was asked to run, and by which thread."""
    seen, kept, real = [], [], on_the_cpu.range_entry
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

    def watched(launch):
        entry = kind(real(launch))

        def run(bounds, arguments, begin, end):
            seen.append((begin, end, threading.get_ident()))
            time.sleep(0.001)  # so that other threads come
            entry(bounds, arguments, begin, end)

        kept.append(kind(run))
        return ctypes.cast(kept[-1], ctypes.c_void_p).value

    monkeypatch.setattr(on_the_cpu, "range_entry", watched)
    yield seen
    forever.extend(kept)  # what was registered stays


forever: list[Any] = []


def new_kernel():
    @wp.kernel(module="unique", enable_backward=False)
    def count_up(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + 1.0

    return count_up


def test_pieces_are_all_threads_once_and_on_several_threads(pieces):
    run = warp_kernel(new_kernel(), same, parallel=True)
    x = numbers(1000)
    for batch, program in ((1, run), (3, jax.vmap(run))):
        pieces.clear()
        given = x if batch == 1 else np.stack([x] * batch)
        assert_array_equal(program(given), given + 1)
        assert sorted(i for begin, end, _ in pieces for i in range(begin, end)) == sorted([*range(1000)] * batch)
        if (os.cpu_count() or 1) > 1:
            assert len({thread for *_, thread in pieces}) > 1


def test_without_parallel_nothing_is_split(pieces):
    run = warp_kernel(new_kernel(), same)
    assert_array_equal(run(numbers(1000)), numbers(1000) + 1)
    assert not pieces


# What is refused

REFUSED = {
    "an atomic": (add_up, Struct((1,), jnp.float32), r"add_up: parallel=True .*wp::atomic_add"),
    "one by Warp": (add_in_place, Struct((1,), jnp.float32), r"add_in_place: parallel=True .*out\[i\] = out\[i\] \+ x"),
    "one in a helper": (add_in_a_helper, Struct((1,), jnp.float32), r"add_in_a_helper: parallel=True .*in add_at"),
    "tiles": (by_tiles, same, "by_tiles: parallel=True .*tile"),
}


@pytest.mark.parametrize(("kernel", "outs", "text"), REFUSED.values(), ids=REFUSED)
def test_kernels_whose_threads_share_something_are_refused(kernel, outs, text):
    x = numbers(16)
    split = warp_kernel(kernel, outs, launch_dims=4, parallel=True)
    for run in (split, jax.jit(split)):
        with pytest.raises(LaunchError, match=text):
            run(x)
    warp_kernel(kernel, outs, launch_dims=4)(x)


def test_threads_of_equal_coordinates_are_refused():
    warp_kernel(work, same, parallel=True)(numbers(4), count=1)
    split = warp_kernel(work, same, launch_dims=(4, 2), parallel=True)
    with pytest.raises(LaunchError, match=r"work: .*equal coordinates"):
        split(numbers(4), count=1)


def test_an_output_that_begins_with_a_value_is_refused():
    for init in (0, 1.0, (0,)):
        with pytest.raises(LaunchError, match=r"work: parallel=True .*output_init"):
            warp_kernel(work, same, parallel=True, output_init=init)
    warp_kernel(work, same, parallel=True, output_init=None)


@pytest.mark.parametrize("wrong", [1, None, "yes", 2])
def test_parallel_is_true_or_false(wrong):
    with pytest.raises(LaunchError, match="work: parallel is"):
        warp_kernel(work, same, parallel=wrong)


@pytest.mark.gpu
def test_a_gpu_runs_threads_at_the_same_time_anyway():
    run = warp_kernel(
        add_into_first, Struct((1,), jnp.float32), launch_dims=16, input_output_aliases={0: 0}, parallel=True
    )
    assert_array_equal(run(jnp.ones(1), jnp.ones(16)), [17])
