"""Values in kernels: dtypes, ranks, vectors, matrices, generic types, static scalars."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from hypothesis import example, given
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
