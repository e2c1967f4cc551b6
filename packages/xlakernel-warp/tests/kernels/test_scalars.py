"""Scalars of both wrappers: types, ranges and names; and generic types."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DtypeError, StaticArgumentError
from xlakernel.warp import jax_kernel, warp_kernel

Struct = jax.ShapeDtypeStruct
X = np.arange(3, dtype=np.float32)


@wp.kernel(module="unique")
def scale(x: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = s * x[i]


@wp.kernel(module="unique")
def halves(s: wp.uint64, out: wp.array(dtype=wp.uint32)):
    out[0] = wp.uint32(s >> wp.uint64(32))
    out[1] = wp.uint32(s)


HALVES = Struct((2,), jnp.uint32)
NUMBERS = [
    *(2, 2.0, np.float32(2), np.float16(2), ml_dtypes.bfloat16(2), np.int8(2)),
    *(np.array(2.0), np.array(2), np.array(2, "f2"), np.array(2, ml_dtypes.bfloat16)),
    *(jnp.float32(2), jnp.float16(2), jnp.bfloat16(2), jnp.asarray(2)),
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: f"{type(n).__name__} {getattr(n, 'dtype', '')}")
def test_numbers_of_every_kind_are_scalars(number):
    assert_array_equal(warp_kernel(scale, lambda x: x)(X, s=number), 2 * X)
    assert_array_equal(jax_kernel(scale)(X, number)[0], 2 * X)


def test_an_array_with_axes_is_no_scalar():
    with pytest.raises(StaticArgumentError, match=r"scale: 's' is an array, float32\[1\]"):
        warp_kernel(scale, lambda x: x)(X, s=jnp.ones(1))
    with pytest.raises(StaticArgumentError, match="scale: Argument 's' must be a static value, but is traced"):
        jax.jit(lambda s: warp_kernel(scale, lambda x: x)(X, s=s))(2.0)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, np.uint64(2**63 + 5), np.array(2**63 + 7, "u8")], ids=repr)
def test_unsigned_integers_of_64_bits(number):
    expected = [int(number) >> 32, int(number) & 0xFFFFFFFF]
    assert_array_equal(warp_kernel(halves, HALVES, launch_dims=1)(s=number), expected)
    assert_array_equal(jax_kernel(halves, launch_dims=1, output_dims=2)(number)[0], expected)
    with pytest.raises(StaticArgumentError, match=r"'s' is 18446744073709551616 .*below 2\*\*64"):
        warp_kernel(halves, HALVES, launch_dims=1)(s=2**64)


@wp.kernel(module="unique")
def doubled(x: wp.array(dtype=wp.Scalar), out: wp.array(dtype=wp.Scalar)):
    i = wp.tid()
    out[i] = x[i] + x[i]


@wp.kernel(module="unique")
def scaled(x: wp.array(dtype=wp.Float), s: wp.Float, out: wp.array(dtype=wp.Float)):
    i = wp.tid()
    out[i] = x.dtype(s) * x[i]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8"])
def test_generic_types_of_warp_are_those_of_the_arguments(dtype):
    x = X.astype(jnp.dtype(dtype))
    assert_array_equal(warp_kernel(doubled, lambda x: x)(x), 2 * x)
    assert_array_equal(jax_kernel(doubled)(x)[0], 2 * x)
    if "float" in dtype:
        assert_array_equal(warp_kernel(scaled, lambda x: x)(x, s=2.0), 2 * x)
        assert_array_equal(jax_kernel(scaled)(x, 2.0)[0], 2 * x)


def test_a_generic_type_excludes_others():
    run = warp_kernel(scaled, lambda x: x)
    with pytest.raises(DtypeError, match=r"scaled: input 0, 'x', is of Warp's type int32; .* allows float32, float16"):
        run(X.astype("i4"), s=2.0)
    with pytest.raises(DtypeError, match="scaled: output 0, 'out', is of Warp's type int32"):
        warp_kernel(scaled, lambda x: Struct(x.shape, jnp.int32))(X, s=2.0)
    with pytest.raises(StaticArgumentError, match="scaled: the static scalar 's', 2, is of Warp's type int32"):
        run(X, s=2)


@wp.kernel(module="unique")
def crowded(
    x: wp.array(dtype=float),
    args: float,
    attributes: float,
    call: float,
    ctx: float,
    inputs: float,
    outs: float,
    primals: float,
    self: float,
    out: wp.array(dtype=float),
):
    i = wp.tid()
    out[i] = x[i] * (args + attributes + call + ctx + inputs + outs + primals + self)


def test_a_scalar_may_have_any_name():
    """Functions that scalars pass through have parameters of their own, which may not meet them."""
    names = ["args", "attributes", "call", "ctx", "inputs", "outs", "primals", "self"]
    static = {name: 2.0**i for i, name in enumerate(names)}
    total = 2.0**8 - 1
    run = warp_kernel(crowded, lambda x: x, vjp=lambda p, r, c, /, **given: sum(given.values()) * c)
    assert_array_equal(run(X, **static), total * X)
    assert_array_equal(jax.grad(lambda x: run(x, **static).sum())(X), [total] * 3)
    compatible = jax_kernel(crowded, enable_backward=True)
    assert_array_equal(jax.grad(lambda x: compatible(x, *static.values())[0].sum())(X), [total] * 3)


def test_outs_may_name_a_scalar():
    @wp.kernel(module="unique")
    def ramp(x: wp.array(dtype=float), count: int, out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[0] + float(i) * float(count)

    run = warp_kernel(ramp, lambda x, count: Struct((count,), x.dtype), launch_dims=2)
    assert_array_equal(run(X, count=2), [0, 2])
