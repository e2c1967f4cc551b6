"""Settings of JAX inside a jitted function also apply to kernels and rules, which are traced later."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core import XLACustomKernel
from xlakernel.core._compat import context_of_jax

X = jnp.ones((4, 4), jnp.float32)


def precisions(f):
    """Return the precisions of the products in a lowered program."""
    return set(re.findall(r"precision = \[(\w+), \w+\]", jax.jit(f).lower(X).as_text()))


def product(name, **derivative):
    op = XLACustomKernel(name, replace=True)
    op.def_jax_kernel(lambda outs: lambda a: a @ a)
    for declare, function in derivative.items():
        getattr(op, f"def_{declare}")(function)
    return op


DERIVATIVES = {
    "reference": {"reference": lambda a: a @ a},
    "jvp and vjp": {"jvp": lambda p, t: t[0] @ p[0] + p[0] @ t[0], "vjp": lambda p, r, ct: [ct @ p[0].T + p[0].T @ ct]},
    "reference and vjp": {"reference": lambda a: a @ a, "vjp": lambda p, r, ct: [ct @ p[0].T + p[0].T @ ct]},
}


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_the_precision_of_products(derivative):
    op = product("product_of_a_precision", **derivative)

    @jax.jit
    def layer(x):
        with jax.default_matmul_precision("highest"):
            return op(x, outs=x)

    assert precisions(layer) == {"HIGHEST"}
    assert precisions(lambda x: jax.jvp(layer, (x,), (x,))[1]) == {"HIGHEST"}
    assert precisions(jax.grad(lambda x: layer(x).sum())) == {"HIGHEST"}
    assert precisions(lambda x: op(x, outs=x)) == {"DEFAULT"}


def test_numbers_of_64_bits():
    op = XLACustomKernel("with_a_wide_table", replace=True)
    op.def_jax_kernel(lambda outs: lambda x: (x + jnp.asarray(np.array(1 + 2**-30)) * 2**30 - 2**30).astype(x.dtype))
    wide = XLACustomKernel("of_wide_results", replace=True)
    wide.def_jax_kernel(lambda outs: lambda x: 2 * x.astype("float64"))

    def f(x):
        with context_of_jax("enable_x64")(True):
            doubled = wide(x, outs=jax.ShapeDtypeStruct(x.shape, "float64"))
            return op(x, outs=x), doubled.astype("float32")

    x = jnp.zeros(3, jnp.float32)
    for found in (f(x), jax.jit(f)(x), jax.jit(f).trace(x).lower().compile()(x)):
        np.testing.assert_array_equal(found, [[1, 1, 1], [0, 0, 0]])


def test_the_random_numbers_of_a_key():
    op = XLACustomKernel("draws_numbers", replace=True)
    op.def_jax_kernel(lambda outs: lambda x: x + jax.random.uniform(jax.random.key(0), x.shape))

    @jax.default_prng_impl("rbg")
    def f(x):
        return op(x, outs=x)

    np.testing.assert_array_equal(jax.jit(f)(X), f(X))


def test_promotion_of_dtypes():
    op = XLACustomKernel("promotes_dtypes", replace=True)
    op.def_jax_kernel(lambda outs: lambda x: x * jnp.arange(4, dtype=jnp.int32))

    def f(x):
        with jax.numpy_dtype_promotion("standard"):
            return op(x, outs=x)

    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(jax.jit(f)(X)[0], [0, 1, 2, 3])
