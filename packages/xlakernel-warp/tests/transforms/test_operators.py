"""Warp kernels as backends of an operator, whose generator makes a kernel each time that a program is lowered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax.test_util import check_grads
from numpy.testing import assert_array_equal

from xlakernel.core import XLACustomKernel, use_backend
from xlakernel.core.errors import BackendNotFoundError
from xlakernel.warp import jax_kernel, jaxinfo_to_warpinfo

pytestmark = pytest.mark.usefixtures("platform")

X = np.arange(5, dtype=np.float32)


def new_operator(platform, name, generator):
    """Return an operator with a Warp kernel on one platform, and one in plain JAX that adds 100."""
    operator = XLACustomKernel(f"test_transforms_{name}_{platform}", replace=True)
    if platform == "cuda":
        operator.def_warp_kernel(generator)
    else:
        operator.def_warp_kernel(generator, platform="cpu")
    operator.def_jax_kernel(lambda outs, **static: lambda a, b: [a * b + 100])
    return operator


def shifted_product(outs, shift=1, made=None):
    """Generate ``a * b + shift``: everything that the kernel is made of is the call's."""
    info = outs[0]
    kind, constant = jaxinfo_to_warpinfo(info), jaxinfo_to_warpinfo(info).dtype(shift)

    @wp.kernel(module="unique", enable_backward=False)
    def kernel(a: kind, b: kind, out: kind):
        i = wp.tid()
        out[i] = a[i] * b[i] + constant

    if made is not None:
        made.append(info)
    return lambda a, b: jax_kernel(kernel, launch_dims=info.shape, output_dims={"out": info.shape})(a, b)


def test_a_generator_makes_the_kernel_of_each_call(platform):
    made = []
    operator = new_operator(platform, "made", functools.partial(shifted_product, made=made))
    for dtype, shift in (("float32", 1), ("float32", 2), ("int32", 1), ("float32", 1)):
        x = X.astype(dtype)
        for _ in range(2):
            (result,) = operator(x, x, outs=[x], shift=shift)
            assert result.dtype == dtype
            assert_array_equal(result, x * x + shift)
    assert len(made) == 3
    assert operator.defaults["gpu" if platform == "cuda" else "cpu"] == "warp"


def test_an_operator_under_transformations(platform):
    operator = new_operator(platform, "transformed", shifted_product)

    def run(a, b):
        return operator(a, b, outs=[jax.ShapeDtypeStruct(a.shape, a.dtype)])[0]

    rows = np.stack([X, 2 * X])
    assert_array_equal(jax.jit(run)(X, X), X * X + 1)
    assert_array_equal(jax.vmap(run, (0, None))(rows, X), rows * X + 1)
    assert_array_equal(jax.lax.scan(lambda c, _: (run(c, jnp.ones(5)), None), X, length=7)[0], X + 7)
    assert_array_equal(jax.lax.while_loop(lambda c: c[0] < 7, lambda c: run(c, jnp.ones(5)), X), X + 7)
    assert_array_equal(jax.lax.cond(True, run, lambda a, b: a, X, X), X * X + 1)
    with jax.disable_jit():
        assert_array_equal(run(X, X), X * X + 1)


def test_switching_backends_reaches_what_is_jitted(platform):
    operator = new_operator(platform, "switched", shifted_product)
    jitted = jax.jit(lambda x: operator(x, x, outs=[jax.ShapeDtypeStruct(x.shape, x.dtype)])[0])
    for _ in range(2):
        assert_array_equal(jitted(X), X * X + 1)
        with use_backend("jax"):
            assert_array_equal(jitted(X), X * X + 100)
    assert_array_equal(operator(X, X, outs=[X], backend="jax")[0], X * X + 100)


def test_a_kernel_for_the_other_platform_only(platform):
    operator = XLACustomKernel(f"test_transforms_other_{platform}", replace=True)
    if platform == "cpu":
        operator.def_warp_kernel(shifted_product)
    else:
        operator.def_warp_kernel(shifted_product, platform="cpu")
    with pytest.raises(BackendNotFoundError, match=r"no kernel|registered"):
        operator(X, X, outs=[X])


def test_derivatives_of_an_operator(platform):
    operator = new_operator(platform, "reference", shifted_product)
    operator.def_reference(lambda a, b, outs: [a * b + 1])
    by_rules = new_operator(platform, "rules", shifted_product)

    def product(a, b):
        return by_rules(a, b, outs=[jax.ShapeDtypeStruct(a.shape, a.dtype)], shift=0)[0]

    custom = jax.custom_vjp(product)
    custom.defvjp(lambda a, b: (product(a, b), (a, b)), lambda r, ct: (product(r[1], ct), product(r[0], ct)))
    struct = jax.ShapeDtypeStruct(X.shape, X.dtype)
    for run in (lambda a, b: operator(a, b, outs=[struct])[0], custom):
        gradient = jax.grad(lambda a, b, run=run: run(a, b).sum(), (0, 1))
        assert_array_equal(jax.jit(gradient)(X, X + 1), [X + 1, X])
        assert_array_equal(jax.vmap(gradient, (0, None))(np.stack([X, -X]), X + 1)[1], [X, -X])
        check_grads(run, (X, X + 1), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)
