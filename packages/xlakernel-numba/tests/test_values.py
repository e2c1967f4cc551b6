"""Results of kernels for every dtype, rank and size, and every structure of outputs."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from numba import objmode
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.ffi.abi import DATA_TYPES
from xlakernel.numba import numba_kernel

Struct = jax.ShapeDtypeStruct

SHAPES = [(), (5,), (2, 3), (2, 1, 3), (1, 2, 3, 2)]
EMPTY_SHAPES = [(), (0,), (0, 3), (2, 0, 3), (1, 2, 3, 0)]


@numba.njit
def all_ranks(x0, x1, x2, x3, x4, out0, out1, out2, out3, out4):
    out0[()] = x0[()] * x0[()] + x0[()]
    for i in range(x1.shape[0]):
        out1[i] = x1[i] * x1[i] + x1[i]
    for i in range(x2.shape[0]):
        for j in range(x2.shape[1]):
            out2[i, j] = x2[i, j] * x2[i, j] + x2[i, j]
    for i in range(x3.shape[0]):
        for j in range(x3.shape[1]):
            for k in range(x3.shape[2]):
                out3[i, j, k] = x3[i, j, k] * x3[i, j, k] + x3[i, j, k]
    for i in range(x4.shape[0]):
        for j in range(x4.shape[1]):
            for k in range(x4.shape[2]):
                for m in range(x4.shape[3]):
                    out4[i, j, k, m] = x4[i, j, k, m] * x4[i, j, k, m] + x4[i, j, k, m]


run_all_ranks = numba_kernel(all_ranks, outs=lambda *xs: xs)


def sample(rng, dtype, shape):
    """Draw from the whole range of the dtype, including extreme and special values."""
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        ends = rng.choice(np.array([info.min, info.max, 0, 1], dtype), shape)
        return np.where(rng.random(shape) < 0.3, ends, rng.integers(info.min, info.max, shape, dtype, endpoint=True))
    normal = rng.normal(size=shape) * 10.0
    if dtype.kind == "c":
        return np.asarray(normal + 1j * rng.normal(size=shape)).astype(dtype)
    ends = rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, float(ml_dtypes.finfo(dtype).tiny)]), shape)
    return np.where(rng.random(shape) < 0.3, ends, normal).astype(dtype)


def check_square_plus(x, out):
    """Compare with exact integers, or with NumPy in a wider type."""
    assert isinstance(out, jax.Array)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    out = np.asarray(out)
    with np.errstate(all="ignore"):
        if x.dtype == bool:
            assert_array_equal(out, x)
        elif x.dtype.kind in "iu":
            bits = 8 * x.dtype.itemsize
            exact = np.vectorize(lambda v: (v * v + v) % 2**bits, otypes=[object])(x.astype(object))
            wrapped = np.asarray(exact).astype(f"uint{bits}").view(x.dtype) if x.size else x
            assert_array_equal(out, wrapped.reshape(x.shape))
        elif x.dtype.itemsize == 2:  # both 16-bit floats: the product is exact in float32, the sum rounded there
            wide = x.astype(np.float32)
            assert_array_equal(out.view("u2"), (wide * wide + wide).astype(x.dtype).view("u2"))
        else:
            wide = x.astype({"f": np.longdouble, "c": np.clongdouble}[x.dtype.kind])
            expected = wide * wide + wide
            scale = np.max(np.abs(wide * wide), initial=1, where=np.isfinite(wide))
            tolerance = float(4 * np.finfo(x.dtype).eps * scale)
            assert_allclose(out.astype(expected.dtype), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DATA_TYPES)
@pytest.mark.parametrize("shapes", [SHAPES, EMPTY_SHAPES], ids=["sizes", "zero sizes"])
def test_every_dtype_and_rank(dtype, shapes, x64):
    rng = np.random.default_rng(0)
    xs = [sample(rng, dtype, shape) for shape in shapes]
    outs = run_all_ranks(*map(jnp.asarray, xs))
    for x, out in zip(xs, outs, strict=True):
        check_square_plus(x, out)


@given(
    dtype=st.sampled_from(sorted(DATA_TYPES)),
    shapes=st.tuples(*(array_shapes(min_dims=n, max_dims=n, min_side=0, max_side=4) for n in range(1, 5))),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_dtype_and_shape(enable_x64, dtype, shapes, seed):
    rng = np.random.default_rng(seed)
    with enable_x64():
        xs = [sample(rng, dtype, shape) for shape in ((), *shapes)]
        for x, out in zip(xs, run_all_ranks(*map(jnp.asarray, xs)), strict=True):
            check_square_plus(x, out)


@pytest.mark.parametrize("x", [3, 3.5, True, 2 - 1j, np.float32(3.5), np.int8(-3), np.array(2.5, "f4")], ids=repr)
def test_python_and_numpy_scalars_are_arrays_of_rank_0(run_square_plus, x):
    out = run_square_plus(x)
    assert (out.shape, out.dtype) == ((), jnp.asarray(x).dtype)
    assert out == jnp.asarray(x * x + x).astype(out.dtype)


@pytest.mark.parametrize(
    "view", [np.s_[::2], np.s_[::-1], np.s_[:, ::2], np.s_[1:, 1:]], ids=["rows", "reversed", "columns", "inner"]
)
def test_numpy_inputs_of_any_layout(run_square_plus, view):
    for base in (np.arange(12.0, dtype="f4").reshape(4, 3), np.asfortranarray(np.arange(12, dtype="i4").reshape(4, 3))):
        x = base[view]
        assert_array_equal(run_square_plus(x), x * x + x)


@numba.njit
def through_views(x, out):
    """Numba uses the strides of an array only for views of it."""
    for k in range(x.shape[2]):
        column = x[:, 1, k]
        for i in range(x.shape[0]):
            out.T[k, i] = column[i] + x.T[k, 0, i]


def test_views_of_inputs_and_outputs():
    run = numba_kernel(through_views, outs=lambda x: Struct((x.shape[0], x.shape[2]), x.dtype))
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    assert_array_equal(run(x), x[:, 1] + x[:, 0])
    assert_array_equal(jax.vmap(run)(np.stack([x, -x])), np.stack([x[:, 1] + x[:, 0], -x[:, 1] - x[:, 0]]))


def test_a_numpy_input_is_never_changed(run_add_into):
    for size in (3, 5000):  # JAX may use the memory of a large, aligned array as it is
        acc = np.zeros(size, np.float32)
        assert_array_equal(run_add_into(acc, np.ones(size, np.float32)), np.ones(size))
        assert_array_equal(acc, np.zeros(size))


def test_a_wrapper_serves_every_size_and_dtype(run_square_plus):
    for x in (jnp.arange(3), jnp.arange(300.0), jnp.ones((2, 2)), jnp.arange(3, dtype=jnp.uint8), jnp.arange(4)):
        assert_array_equal(run_square_plus(x), x * x + x)


@numba.njit
def ramp(out):
    for i in range(out.size):
        out[i] = i


def test_no_inputs():
    assert_array_equal(numba_kernel(ramp, outs=Struct((4,), jnp.float32))(), np.arange(4))
    assert_array_equal(jax.jit(numba_kernel(ramp, outs=lambda: Struct((3,), jnp.int32)))(), np.arange(3))


seen = []


@numba.njit
def record(x):
    value = x[()]
    with objmode():
        seen.append(value)


@numba.njit
def record_and_copy(x, out):
    record(x)
    out[()] = x[()]


def test_no_outputs():
    run = numba_kernel(record, outs=(), has_side_effect=True)
    seen.clear()
    assert run(jnp.float32(1)) == ()
    jax.jit(lambda x: (run(x), x + 1)[1])(2.0).block_until_ready()
    jax.lax.fori_loop(3, 6, lambda i, c: (run(jnp.float32(i)), c)[1], 0)
    jax.effects_barrier()
    assert sorted(seen) == [1, 2, 3, 4, 5]
    assert numba_kernel(record, outs={}, has_side_effect=True)(jnp.float32(6)) == {}


@pytest.mark.parametrize("has_side_effect", [True, False])
def test_unused_outputs_run_only_for_a_declared_side_effect(has_side_effect):
    run = numba_kernel(record_and_copy, outs=lambda x: x, has_side_effect=has_side_effect)
    seen.clear()
    jax.jit(lambda x: (run(x), x + 1)[1])(jnp.float32(2)).block_until_ready()
    assert seen == ([2.0] if has_side_effect else [])


@numba.njit
def two_outputs(x, first, second):
    for i in range(x.size):
        first[i] = x[i] + 1
        second[i] = x[i] + 2


A, B = Struct((2,), jnp.float32), Struct((2,), jnp.int32)


@pytest.mark.parametrize(
    "outs",
    [(A, B), [A, B], ([[A]], (B, ())), (jnp.ones(2), np.ones(2, "i4"))],
    ids=["tuple", "list", "nested", "arrays"],
)
@pytest.mark.parametrize("as_function", [False, True])
def test_outputs_come_back_in_the_structure_of_outs(outs, as_function):
    """The order of outputs is that of `jax.tree.leaves`, unless they are a dictionary (test_outs)."""
    run = numba_kernel(two_outputs, outs=(lambda x: outs) if as_function else outs)
    for result in (run(jnp.zeros(2)), jax.jit(run)(jnp.zeros(2))):
        assert jax.tree.structure(result) == jax.tree.structure(outs)
        first, second = jax.tree.leaves(result)
        assert (first.dtype, second.dtype) == (jnp.float32, jnp.int32)
        assert_array_equal(first, [1, 1])
        assert_array_equal(second, [2, 2])


def test_one_output_in_a_structure_stays_in_it():
    (alone,) = numba_kernel(ramp, outs=[A])()
    assert_array_equal(alone, [0, 1])
    assert_array_equal(numba_kernel(ramp, outs={"out": A})()["out"], [0, 1])


def test_64_bit_types_follow_the_setting(run_square_plus, enable_x64):
    assert run_square_plus(1.5).dtype == jnp.float32
    with enable_x64():
        assert run_square_plus(1.5).dtype == jnp.float64
        assert run_square_plus(2**40).item() == 2**80 % 2**64 + 2**40
    assert run_square_plus(1.5).dtype == jnp.float32


@numba.njit
def allocate_and_solve(a, b, out):
    for i in range(b.size):
        column = np.zeros(b.size, b.dtype)
        column[i] = b[i]
        out[:, i] = np.linalg.solve(a, column)


def test_kernels_may_allocate_and_use_linear_algebra():
    a, b = jnp.array([[4.0, 1.0], [2.0, 3.0]]), jnp.array([1.0, 2.0])
    out = numba_kernel(allocate_and_solve, outs=lambda a, b: a)(a, b)
    assert_allclose(out, np.linalg.inv(a) * np.asarray(b), rtol=1e-5)
