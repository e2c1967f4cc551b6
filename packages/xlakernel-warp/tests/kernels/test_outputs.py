"""Outputs: several of them, initial values, and outputs in an input's memory."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.warp import jaxtype_to_warptype, warp_kernel

wp.set_module_options({"enable_backward": False})

pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.usefixtures("x64")]

Struct = jax.ShapeDtypeStruct
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16")
DTYPES += ("float32", "float64")
F32 = jnp.float32


def same(x, *_):
    return x


# Several outputs


@wp.kernel
def statistics(
    x: wp.array2d(dtype=float),
    mean: wp.array(dtype=wp.float64),
    positive: wp.array2d(dtype=wp.bool),
    extremes: wp.array(dtype=wp.vec2),
    count: wp.array(dtype=wp.int64),
):
    i = wp.tid()
    n = x.shape[1]
    total, low, high = wp.float64(0.0), float(x[i, 0]), float(x[i, 0])
    for j in range(n):
        total += wp.float64(x[i, j])
        low, high = wp.min(low, x[i, j]), wp.max(high, x[i, j])
        positive[i, j] = x[i, j] > 0.0
    mean[i] = total / wp.float64(n)
    extremes[i] = wp.vec2(low, high)
    wp.atomic_add(count, 0, wp.int64(n))


class Statistics(NamedTuple):
    mean: Any
    positive: Any
    extremes: Any
    count: Any


def outs_of_statistics(x):
    rows, _ = x.shape
    return (
        Struct((rows,), jnp.float64),
        Struct(x.shape, jnp.bool_),
        Struct((rows, 2), F32),
        Struct((), jnp.int64),
    )


def test_several_outputs_of_other_shapes_and_dtypes():
    x = np.random.default_rng(1).normal(size=(4, 7)).astype("f4")
    run = warp_kernel(
        statistics, outs_of_statistics, launch_dims=lambda x: x.shape[0], output_init=(None, None, None, 0)
    )
    mean, positive, extremes, count = jax.jit(run)(x)
    assert_allclose(mean, x.astype("f8").mean(1), rtol=1e-13)
    assert_array_equal(positive, x > 0)
    assert_array_equal(extremes, np.stack([x.min(1), x.max(1)], 1))
    assert (count.shape, int(count)) == ((), 28)


STRUCTURES = {
    "a tuple": (lambda *outs: outs, lambda got: got),
    "a list": (lambda *outs: list(outs), lambda got: got),
    "a named tuple": (Statistics, lambda got: (got.mean, got.positive, got.extremes, got.count)),
    "a dict, by name": (
        lambda mean, positive, extremes, count: {
            "count": count,
            "mean": mean,
            "extremes": extremes,
            "positive": positive,
        },
        lambda got: (got["mean"], got["positive"], got["extremes"], got["count"]),
    ),
    "nested": (
        lambda mean, positive, extremes, count: (mean, [[positive, extremes]], (), count),
        lambda got: (got[0], *got[1][0], got[3]),
    ),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("fixed", [False, True], ids=["a function", "structs"])
def test_results_have_the_structure_of_outs(name, fixed):
    build, take = STRUCTURES[name]
    x = np.ones((2, 3), "f4")
    outs = build(*outs_of_statistics(x)) if fixed else lambda x: build(*outs_of_statistics(x))
    got = warp_kernel(statistics, outs, launch_dims=2, output_init=0)(x)
    assert jax.tree.structure(got) == jax.tree.structure(build(*outs_of_statistics(x)))
    for result, wanted in zip(take(got), ([1, 1], np.ones((2, 3)), np.ones((2, 2)), 6), strict=True):
        assert_array_equal(result, wanted)


# What outputs begin with


def test_output_init_by_name():
    """*positive* is written nowhere but where the kernel writes it; *count* is added to."""
    build, take = STRUCTURES["a dict, by name"]
    run = warp_kernel(
        statistics,
        lambda x: build(*outs_of_statistics(x)),
        launch_dims=2,
        output_init={"positive": None, "count": 100, "mean": None, "extremes": None},
    )
    assert int(take(run(np.ones((2, 3), "f4")))[3]) == 106


def make_leave(dtype):
    @wp.kernel
    def leave(out: wp.array(dtype=dtype)):
        i = wp.tid()
        if i < 0:
            out[0] = dtype(0)

    return leave


LEAVES = {dtype: make_leave(jaxtype_to_warptype(dtype)) for dtype in DTYPES}


@settings(max_examples=15)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), size=st.sampled_from([0, 1, 3, 257]), threads=st.integers(0, 1))
def test_output_init_of_any_value(data, dtype, size, threads):
    kind = jnp.dtype(dtype)
    bits = data.draw(st.binary(min_size=kind.itemsize, max_size=kind.itemsize), label="bits")
    value = np.frombuffer(bits if dtype != "bool" else bytes([bits[0] % 2]), kind)[0]
    run = warp_kernel(LEAVES[dtype], Struct((size,), kind), launch_dims=threads, output_init=value)
    got = np.asarray(run())
    wanted = np.full(size, value)
    if kind.kind in "biu" or not np.isnan(value):
        assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))
    else:
        assert np.isnan(got).all()


@wp.kernel
def add_up(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(out, i % out.shape[0], x[i])


@pytest.mark.parametrize("init", [0, 0.5, [0.5], (-2,)])
def test_a_kernel_that_accumulates_begins_anew_each_time(init):
    run = warp_kernel(add_up, Struct((2,), F32), output_init=init)
    expected = np.full(2, 500 + np.ravel(init)[0])
    for _ in range(3):
        assert_array_equal(jax.jit(run)(np.ones(1000, "f4")), expected)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, total: total + run(x), jnp.zeros(2, F32)))
    assert_array_equal(loop(np.ones(1000, "f4")), 5 * expected)


@pytest.mark.parametrize(("options", "expected"), [({}, 0), ({"output_init": 7}, 7), ({"output_init": (None,)}, 0)])
@pytest.mark.parametrize("dims", [None, 0, (0,), lambda x: x.size])
def test_a_launch_of_no_threads_gives_defined_outputs(options, expected, dims):
    run = warp_kernel(add_up, lambda x: Struct((5,), F32), launch_dims=dims, **options)
    assert_array_equal(jax.jit(run)(np.ones(0, "f4")), np.full(5, expected))
    assert_array_equal(jax.jit(jax.vmap(run))(np.ones((2, 0), "f4")), np.full((2, 5), expected))


# In place


@wp.kernel
def increment(acc: wp.array(dtype=float), step: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] += step[0]


run_increment = warp_kernel(increment, same, input_output_aliases={0: 0})


def test_an_alias_is_updated_in_place_and_the_input_is_kept():
    x, step = jnp.arange(5.0, dtype=F32), np.float32(2)
    assert_array_equal(jax.jit(run_increment)(x, step), np.arange(5) + 2)
    assert_array_equal(x, np.arange(5))
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: run_increment(x, step), x))
    assert_array_equal(loop(x), np.arange(5) + 20)


@pytest.mark.parametrize("part", [slice(0, -1), slice(256, 512)], ids=str)
def test_an_alias_of_a_part_of_another_array(part):
    def program(x):
        whole = jnp.cumsum(x)
        return whole, run_increment(whole[part], np.float32(2))

    x = jnp.arange(2**14, dtype=F32) % 7
    expected = np.cumsum(np.asarray(x, np.float64))
    whole, found = jax.jit(program)(x)
    assert_array_equal(whole, expected)
    assert_array_equal(found, expected[part] + 2)


def test_a_donated_alias_keeps_its_memory():
    x = jnp.arange(1000.0, dtype=F32)
    before = x.unsafe_buffer_pointer()
    out = jax.jit(run_increment, donate_argnums=0)(x, np.float32(1))
    assert out.unsafe_buffer_pointer() == before
    assert_array_equal(out, np.arange(1000) + 1)


def test_a_launch_of_no_threads_leaves_an_alias_as_it_is():
    run = warp_kernel(increment, same, launch_dims=0, input_output_aliases={0: 0})
    assert_array_equal(run(np.arange(5, dtype="f4"), np.float32(2)), np.arange(5))


@wp.kernel
def swap(a: wp.array(dtype=float), b: wp.array(dtype=float), one: wp.array(dtype=float), other: wp.array(dtype=float)):
    i = wp.tid()
    one[i] += 1.0
    other[i] += 2.0


def test_two_aliases_cross_and_outputs_beside_them_may_begin_with_a_value():
    run = warp_kernel(swap, lambda a, b: (b, a), launch_dims=3, input_output_aliases={0: 1, 1: 0})
    one, other = run(np.zeros(3, "f4"), np.full(4, 10, "f4"))
    assert_array_equal(one, [11, 11, 11, 10])
    assert_array_equal(other, [2, 2, 2])
    run = warp_kernel(swap, lambda a, b: (b, a), input_output_aliases={1: 0}, output_init=(None, 5))
    assert_array_equal(run(np.zeros(3, "f4"), np.full(3, 10, "f4")), [[11] * 3, [7] * 3])
