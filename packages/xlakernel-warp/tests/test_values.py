"""What kernels compute: dtypes, ranks, vectors and matrices, outputs of every shape, scalars, and where they begin."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.warp import jaxtype_to_warptype, warp_kernel, warptype_to_jaxtype

wp.set_module_options({"enable_backward": False})

pytestmark = [pytest.mark.usefixtures("platform"), pytest.mark.usefixtures("x64")]

Struct = jax.ShapeDtypeStruct
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16")
DTYPES += ("float32", "float64")
F32 = jnp.float32


def same(x, *_):
    return x


def numbers(dtype, shape):
    """Return small different numbers, which every dtype has."""
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(jnp.dtype(dtype))


# Dtypes and ranks


def make_copy(dtype, ndim):
    dtype = jaxtype_to_warptype(dtype)

    @wp.kernel
    def copy1(x: wp.array(dtype=dtype), out: wp.array(dtype=dtype)):
        i = wp.tid()
        out[i] = x[i]

    @wp.kernel
    def copy2(x: wp.array2d(dtype=dtype), out: wp.array2d(dtype=dtype)):
        i, j = wp.tid()
        out[i, j] = x[i, j]

    @wp.kernel
    def copy3(x: wp.array3d(dtype=dtype), out: wp.array3d(dtype=dtype)):
        i, j, k = wp.tid()
        out[i, j, k] = x[i, j, k]

    @wp.kernel
    def copy4(x: wp.array4d(dtype=dtype), out: wp.array4d(dtype=dtype)):
        i, j, k, m = wp.tid()
        out[i, j, k, m] = x[i, j, k, m]

    return (copy1, copy2, copy3, copy4)[ndim - 1]


COPIES = {(dtype, ndim): make_copy(dtype, ndim) for dtype in DTYPES for ndim in (1, 2, 3, 4)}
SHAPES = [(5,), (0,), (2, 3), (2, 0), (0, 3), (2, 1, 3), (2, 0, 3), (2, 3, 1, 2), (0, 2, 1, 3)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_rank_arrives(dtype):
    xs = [numbers(dtype, shape) for shape in SHAPES]
    runs = [warp_kernel(COPIES[dtype, x.ndim], same) for x in xs]
    outs = jax.jit(lambda *xs: [run(x) for run, x in zip(runs, xs, strict=True)])(*xs)
    for x, out in zip(xs, outs, strict=True):
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        assert_array_equal(out, x)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_0d_array_is_one_of_a_single_element(dtype):
    run = warp_kernel(COPIES[dtype, 1], same)
    x = numbers(dtype, ())
    assert run(x).shape == ()
    assert_array_equal(run(x), x)
    assert_array_equal(jax.vmap(run)(numbers(dtype, (4,))), numbers(dtype, (4,)))


def test_python_numbers_are_arrays_too():
    with jax.numpy_dtype_promotion("strict"):
        assert_array_equal(warp_kernel(COPIES["float64", 1], same)(2.5), 2.5)


# Vectors, matrices, quaternions, transformations

ELEMENTS = {
    "vec2": wp.vec2,
    "vec3d": wp.vec3d,
    "vec4h": wp.vec4h,
    "vec3i": wp.vec3i,
    "vec4ub": wp.vec4ub,
    "five int16": wp.types.vector(length=5, dtype=wp.int16),
    "three bfloat16": wp.types.vector(length=3, dtype=wp.bfloat16),
    "mat22": wp.mat22,
    "mat33d": wp.mat33d,
    "mat44h": wp.mat44h,
    "2 x 3": wp.types.matrix(shape=(2, 3), dtype=wp.float64),
    "quat": wp.quat,
    "quatd": wp.quatd,
    "transform": wp.transform,
    "spatial_vector": wp.spatial_vector,
    "spatial_matrix": wp.spatial_matrix,
}


def make_copy_of(kind):
    @wp.kernel
    def copy_elements(x: wp.array2d(dtype=kind), out: wp.array2d(dtype=kind)):
        i, j = wp.tid()
        out[i, j] = x[i, j]

    return copy_elements


COPIES_OF = {name: make_copy_of(kind) for name, kind in ELEMENTS.items()}


@pytest.mark.parametrize("name", ELEMENTS)
def test_dimensions_of_elements_come_last_and_threads_are_those_of_the_array(name):
    run = warp_kernel(COPIES_OF[name], same)
    inner = tuple(ELEMENTS[name]._shape_)
    x = numbers(warptype_to_jaxtype(ELEMENTS[name]), (2, 3, *inner))
    assert_array_equal(run(x), x)
    assert run(x[:, :0]).shape == (2, 0, *inner)
    assert_array_equal(jax.vmap(run, 1, 1)(np.stack([x, -x], 1)), np.stack([x, -x], 1))


@wp.kernel
def rotate(q: wp.array(dtype=wp.quat), m: wp.array(dtype=wp.mat33), v: wp.array(dtype=wp.vec3), out: wp.array2d[float]):
    i = wp.tid()
    rotated = m[i] * wp.quat_rotate(q[i], v[i])
    out[i, 0] = rotated[0]
    out[i, 1] = rotated[1]
    out[i, 2] = rotated[2]


def test_elements_are_laid_out_as_warp_has_them():
    """By rows, and a quaternion's real part last."""
    rng = np.random.default_rng(0)
    m, v = rng.normal(size=(5, 3, 3)), rng.normal(size=(5, 3))
    axis, angle = rng.normal(size=(5, 3)), rng.uniform(0, 3, 5)
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    q = np.concatenate([axis * np.sin(angle / 2)[:, None], np.cos(angle / 2)[:, None]], 1)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    rotated = v * c + np.cross(axis, v) * s + axis * np.sum(axis * v, 1, keepdims=True) * (1 - c)
    run = warp_kernel(rotate, lambda q, m, v: v)
    assert_allclose(
        run(*(x.astype("f4") for x in (q, m, v))), np.einsum("nij,nj->ni", m, rotated), rtol=1e-5, atol=1e-6
    )


@wp.kernel
def lengths(v: wp.array(dtype=wp.vec3), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = wp.length(v[i])


def test_a_0d_array_of_vectors_is_one_vector():
    run = warp_kernel(lengths, lambda v: Struct(v.shape[:-1], F32))
    assert_allclose(run(np.float32([2, 3, 6])), 7)
    assert run(np.zeros((0, 3), "f4")).shape == (0,)


# Generic kernels: compiled for what comes, each time in a module of their own


@wp.kernel(module="unique", enable_backward=False)
def any_sum(x: wp.array(dtype=Any), y: wp.array(dtype=Any), scale: Any, out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] * x.dtype(scale) + x.dtype(y[i])


def test_a_generic_kernel_takes_what_comes():
    run = warp_kernel(any_sum, same)
    x, y = np.arange(4), np.arange(4) % 2
    assert_array_equal(run(x.astype("f4"), y.astype("f4"), scale=1.5), x * 1.5 + y)
    assert_array_equal(run(x.astype("i2"), y.astype("?"), scale=3), x * 3 + y)
    assert run(x.astype("i2"), y.astype("?"), scale=3).dtype == np.int16
    both = jax.jit(lambda x, y: (run(x, y, scale=np.int16(2)), run(y, x, scale=2.0)))  # in one program
    for got, wanted in zip(both(x.astype("i2"), y.astype("f4")), (2 * x + y, 2 * y + x), strict=True):
        assert_array_equal(got, wanted)


def test_an_overload_is_a_kernel():
    kinds = wp.array(dtype=wp.float16)
    run = warp_kernel(wp.overload(any_sum, [kinds, kinds, wp.float16, kinds]), same)
    x = np.arange(4, dtype="f2")
    assert_array_equal(run(x, x, scale=0.5), 1.5 * x)


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
    "a dict, in the order of its keys": (
        lambda mean, positive, extremes, count: {"d": count, "a": mean, "c": extremes, "b": positive},
        lambda got: (got["a"], got["b"], got["c"], got["d"]),
    ),
    "nested": (
        lambda mean, positive, extremes, count: (mean, {"p": [positive, extremes]}, (), count),
        lambda got: (got[0], *got[1]["p"], got[3]),
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


# Static scalars


def make_echo(dtype):
    @wp.kernel
    def echo(x: wp.array(dtype=float), value: dtype, out: wp.array(dtype=dtype), times: wp.int32):
        i = wp.tid()
        if i < times:
            out[i] = value

    return echo


ECHOES = {dtype: make_echo(jaxtype_to_warptype(dtype)) for dtype in DTYPES}


def echoed(dtype, value):
    outs = Struct((2,), jnp.dtype(dtype))
    return warp_kernel(ECHOES[dtype], outs, launch_dims=2)(np.zeros(3, "f4"), value=value, times=2)


@st.composite
def scalars(draw):
    """Draw a dtype, and a number that it has or can round to."""
    dtype = draw(st.sampled_from(DTYPES))
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return dtype, draw(st.sampled_from([True, False, 0, 1, np.True_]))
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        value = draw(st.integers(limits.min, min(limits.max, 2**63 - 1)) | st.sampled_from([0, limits.min, -1, 1]))
        value = max(value, limits.min)
        return dtype, draw(st.sampled_from([value, kind.type(value)]))
    limit = float(jnp.finfo(kind).max)
    finite = st.floats(-limit, limit) | st.integers(-(2**15), 2**15)
    return dtype, draw(finite | st.sampled_from([-0.0, float("inf"), float("-inf"), float("nan"), 2**15, True]))


@given(scalars())
@example(("float16", 2049))  # between two numbers: NumPy rounds to the even one
@example(("bfloat16", 257))
@example(("float16", 2049 + 2**-20))
def test_any_scalar_arrives_as_its_type_has_it(drawn):
    dtype, value = drawn
    with np.errstate(all="ignore"):
        wanted = np.full(2, np.asarray(value).astype(jnp.dtype(dtype)))
    got = np.asarray(echoed(dtype, value))
    if wanted.dtype.kind in "biu" or not np.isnan(wanted[0]):
        assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))  # the sign of zero too
    else:
        assert np.isnan(got).all()


@wp.kernel
def polynomial(a: float, x: wp.array(dtype=float), n: int, out: wp.array(dtype=float), shift: wp.float64, odd: bool):
    i = wp.tid()
    result = a - a  # a variable, which the loop may change
    for _ in range(n):
        result = result * x[i] + a
    if odd:
        result *= x[i]
    out[i] = result + float(shift)


def test_scalars_stand_anywhere_among_the_parameters():
    run = warp_kernel(polynomial, same)
    x = np.linspace(-1, 1, 5, dtype="f4")
    for a, n, shift, odd in [(1.5, 3, 0.25, True), (-2, 0, 1, False), (np.float32(0.5), np.int8(2), True, 0)]:
        wanted = a * sum(np.float64(x) ** k for k in range(n)) * (x if odd else 1) + float(shift)
        assert_allclose(run(x, a=a, n=n, shift=shift, odd=odd), wanted, rtol=1e-6, atol=1e-6)


def test_scalars_are_static_arguments_of_a_jitted_function():
    run = jax.jit(warp_kernel(polynomial, same), static_argnames=["a", "n", "shift", "odd"])
    x = np.ones(3, "f4")
    for n in (1, 2, 5):
        assert_array_equal(run(x, a=2.0, n=n, shift=0.5, odd=False), np.full(3, 2 * n + 0.5))


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


# What outputs begin with


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


# Against Warp's own launch


@wp.func
def walk(state: wp.uint32, steps: int):
    place = wp.vec3()
    for _ in range(steps):
        place += wp.normalize(wp.vec3(wp.randn(state), wp.randn(state), wp.randn(state)))
    return place


@wp.kernel
def walks(seeds: wp.array(dtype=int), steps: int, out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = walk(wp.rand_init(seeds[i], i), steps)


def test_the_same_bits_as_warps_own_launch(platform):
    device = "cpu" if platform == "cpu" else "cuda:0"
    seeds = np.arange(100, dtype=np.int32) // 3
    with wp.ScopedDevice(device):
        own = wp.zeros(100, dtype=wp.vec3)
        wp.launch(walks, dim=100, inputs=[wp.array(seeds, dtype=int), 20], outputs=[own])
        expected = own.numpy()
    run = warp_kernel(walks, lambda seeds: Struct((*seeds.shape, 3), F32))
    assert_array_equal(run(seeds, steps=20), expected)
    assert len(np.unique(expected[:, 0])) == 100
