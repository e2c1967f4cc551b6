"""bfloat16 and float16 in kernels: computed in float32, rounded to nearest even when stored."""

import jax
import ml_dtypes
import numba
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.numba import numba_kernel

# NumPy notes the NaNs and infinities of its reference values.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
LOW = pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)


def every_value(dtype):
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def assert_same_bits(found, expected):
    """Compare bit for bit; NaNs of one sign are equal."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    nan = np.isnan(expected)
    assert_array_equal(np.isnan(found), nan)
    assert_array_equal(np.signbit(found), np.signbit(expected))
    assert_array_equal(found.view("u2")[~nan], expected.view("u2")[~nan])


def is_denormal(x):
    """XLA runs CPU code, including kernels, with float32 denormals flushed to zero."""
    return (x != 0) & (abs(x.astype(np.float32)) < np.finfo(np.float32).tiny)


@numba.njit
def copy(x, out):
    for i in range(x.size):
        out[i] = x[i]


def cast(x, dtype):
    return numba_kernel(copy, outs=lambda x: jax.ShapeDtypeStruct(x.shape, dtype))(x)


@LOW
def test_every_bit_pattern_survives_a_copy(dtype):
    x = every_value(dtype)
    assert_array_equal(np.asarray(cast(x, dtype)).view("u2"), x.view("u2"))


@LOW
def test_every_value_widens_exactly(dtype):
    x = every_value(dtype)
    assert_array_equal(cast(x, np.float32), x.astype(np.float32))


@LOW
@pytest.mark.parametrize("target", [BFLOAT16, FLOAT16, np.dtype(bool)], ids=str)
def test_every_value_assigned_to_another_type(dtype, target):
    x = every_value(dtype)
    if target.kind == "b":
        x = x[~is_denormal(x)]
        assert_array_equal(cast(x, target), x.astype(np.float32) != 0)
    else:
        assert_same_bits(cast(x, target), x.astype(np.float32).astype(target))


@LOW
@pytest.mark.parametrize("target", [np.int32, np.uint8, np.int64], ids=lambda t: t.__name__)
def test_integers_convert_both_ways(dtype, target, x64):
    whole = np.arange(256).astype(target)
    assert_array_equal(cast(whole.astype(dtype), target), whole.astype(dtype).astype(np.float32).astype(target))
    assert_same_bits(cast(whole, dtype), whole.astype(np.float32).astype(dtype))
    large = np.array([2**15 + 1, 2**16 - 17, 4097, 4099], np.int32)  # need rounding in either type
    assert_same_bits(cast(large, dtype), large.astype(np.float32).astype(dtype))


def halfway(dtype):
    """Return float32 values at, just above and just below the middle between any two neighbours."""
    finite = np.arange(2**16, dtype=np.uint16).view(dtype)
    finite = np.sort(finite[np.isfinite(finite)].astype(np.float64))
    middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    return np.concatenate([middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))])


@LOW
def test_float32_rounds_to_nearest_even(dtype):
    beyond = np.array([np.finfo(np.float32).max, 65519.9, 65520, 65536, np.inf, -np.inf, np.nan, -np.nan, 1e-45], "f4")
    x = np.concatenate([halfway(dtype), beyond, -beyond])
    assert_same_bits(cast(x, dtype), x.astype(dtype))


def neighbours(dtype):
    """Return float64 values at, and next to, each value of *dtype* and the middle between any two, zero included."""
    finite = every_value(dtype)
    finite = np.sort(finite[np.isfinite(finite)].astype(np.float64))
    most = finite[-1] + (finite[-1] - finite[-2]) / 2  # from where on the nearest is infinity
    at = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, [most, -most]])
    return np.concatenate([at, np.nextafter(at, np.inf), np.nextafter(at, -np.inf)])


@LOW
def test_float64_rounds_once_to_nearest_even(dtype, x64):
    beyond = np.array([1e300, 1e-300, 5e-324, np.inf, np.nan, 0.0])
    x = np.concatenate([neighbours(dtype), beyond, -beyond])
    found = np.asarray(cast(x, dtype))
    assert_same_bits(found, rounded_once(x, dtype))


def rounded_once(x, dtype):
    """Round float64 to nearest even by comparison with the two nearest values; ml_dtypes rounds through float32."""
    if dtype == FLOAT16:
        return x.astype(dtype)
    table = np.arange(0x7F81, dtype=np.uint16).view(dtype).astype(np.float64)
    table[-1] = 2.0**128  # infinity: the half-way point is rounded up
    magnitude = np.where(np.isnan(x), 0, abs(x))
    above = np.clip(np.searchsorted(table, magnitude), 1, 0x7F80)
    low, high = magnitude - table[above - 1], table[above] - magnitude  # exact, where they are close
    up = (high < low) | ((high == low) & (above % 2 == 0)) | ~np.isfinite(magnitude)
    bits = np.where(np.isnan(x), 0x7FC0, above - 1 + up) | (np.signbit(x) << 15)
    return bits.astype(np.uint16).view(dtype)


@LOW
@pytest.mark.parametrize("source", [np.int32, np.uint32, np.int64, np.uint64], ids=lambda t: t.__name__)
def test_large_integers_round_once_to_nearest_even(dtype, source, x64):
    info = np.iinfo(source)
    ties = [sign * (1 << k) * m // 256 for k in range(8, info.bits + 1) for m in range(256, 520) for sign in (-1, 1)]
    near = sorted({n + d for n in ties for d in (-1, 0, 1) if info.min <= n + d <= info.max} | {info.min, info.max})
    exact = np.array([float_above_middle(n) for n in near])
    assert_same_bits(cast(np.array(near, source), dtype), rounded_once(exact, dtype))


def float_above_middle(number):
    """Return a float64 that rounds as the integer does: the nearest one, or the next one at a half-way point."""
    nearest = float(number)
    if int(nearest) == number:
        return nearest
    return float(np.nextafter(nearest, np.inf if number > int(nearest) else -np.inf))


@numba.njit
def arithmetic(x, y, out):
    for i in range(x.size):
        out[0, i] = x[i] + y[i]
        out[1, i] = x[i] - y[i]
        out[2, i] = x[i] * y[i]
        out[3, i] = -x[i]
        out[4, i] = abs(x[i])
        out[5, i] = x[i] * y[i] + x[i] - np.float32(2)  # a plain 2 is an int64, and the result a float64
        out[6, i] = x[i] if x[i] < y[i] else y[i]
        out[7, i] = (x[i] < y[i]) + 2 * (x[i] == y[i]) + 4 * (x[i] >= y[i]) + 8 * (x[i] != y[i])


def reference(x, y, wide):
    """The same in a wider type on both sides; the caller rounds."""
    x, y = x.astype(wide), y.astype(wide)
    compared = (x < y) + 2 * (x == y) + 4 * (x >= y) + 8 * (x != y)
    return np.stack([x + y, x - y, x * y, -x, abs(x), x * y + x - 2, np.where(x < y, x, y), compared])


@pytest.mark.parametrize(
    ("left", "right", "wide"),
    [
        (BFLOAT16, BFLOAT16, np.float32),
        (FLOAT16, FLOAT16, np.float32),
        (BFLOAT16, np.float32, np.float32),
        (BFLOAT16, FLOAT16, np.float32),
        (FLOAT16, np.int32, np.float64),  # as float32 with int32, in Numba and in NumPy
    ],
    ids=lambda dtype: np.dtype(dtype).name,
)
def test_arithmetic_and_comparisons_are_those_of_a_wider_type(left, right, wide):
    rng = np.random.default_rng(0)
    x = rng.permutation(every_value(left))
    bits = rng.permutation(2**16).astype(np.uint16)
    y = bits.astype(np.int32) - 2**15 if right is np.int32 else bits.view(FLOAT16).astype(right)
    x[:100] = y[:100] = np.arange(100)  # some are equal
    x, y = (v[~is_denormal(x) & ~is_denormal(y)] for v in (x, y))
    run = numba_kernel(arithmetic, outs=lambda x, y: jax.ShapeDtypeStruct((8, *x.shape), x.dtype))
    found, exact = np.asarray(run(x, y)), reference(x, y, wide)
    expected = rounded_once(exact.astype(np.float64), left)
    assert_array_equal(np.isnan(found), np.isnan(expected))
    number = ~np.isnan(expected) & ~is_denormal(exact)
    assert_array_equal(found.view("u2")[number], expected.view("u2")[number])


@numba.njit
def accumulate(x, stored, out):
    stored[()] = 0
    total = x[0]
    for i in range(1, x.size):
        stored[()] += x[i]
        total = total + x[i]
    out[()] = total


@LOW
def test_accumulation_rounds_when_stored_and_only_then(dtype):
    x = np.random.default_rng(1).normal(size=200).astype(dtype)
    run = numba_kernel(accumulate, outs=(jax.ShapeDtypeStruct((), dtype),) * 2)
    stored, out = run(x)
    total, wide = dtype.type(0), np.float32(x[0])
    for value in x[1:]:
        total = (np.float32(total) + np.float32(value)).astype(dtype)
        wide = np.float32(wide + np.float32(value))
    assert (stored, out) == (total, wide.astype(dtype))


@numba.njit
def functions(x, out):
    for i in range(x.size):
        out[i] = np.sqrt(x[i]) + np.exp(x[i]) * 0.5 + min(x[i], 1.0) + x[i] ** 2 + x[i] / 2 + float(x[i])


@LOW
def test_functions_and_literals(dtype):
    x = np.linspace(0, 2, 9).astype(dtype)
    wide = x.astype(np.float64)
    expected = np.sqrt(wide) + np.exp(wide) * 0.5 + np.minimum(wide, 1) + wide**2 + wide / 2 + wide
    out = np.asarray(numba_kernel(functions, outs=lambda x: x)(x))
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=float(ml_dtypes.finfo(dtype).eps))


@LOW
def test_a_batch_and_a_mapped_kernel(dtype, run_cumsum):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    assert_array_equal(np.asarray(jax.vmap(run_cumsum)(x)), np.cumsum(x.astype(np.float32), axis=1).astype(dtype))
