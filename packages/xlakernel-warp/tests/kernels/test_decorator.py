"""Warp's wrappers as decorators."""

import jax
import jax.numpy as jnp
import numpy as np
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

X = np.arange(3, dtype=np.float32)


@warp_kernel(outs=lambda x: x)
@wp.kernel(module="unique")
def double(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = 2.0 * x[i]


@jax_kernel(num_outputs=2, enable_backward=True)
@wp.kernel(module="unique")
def both(x: wp.array(dtype=float), out: wp.array(dtype=float), other: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = 2.0 * x[i]
    other[i] = 3.0 * x[i]


@jax_callable(output_dims=3)
def ones(out: wp.array(dtype=float)):
    out.fill_(1.0)


def test_decorated_kernels_are_functions_of_arrays():
    assert_array_equal(jax.jit(double)(X), 2 * X)
    assert_array_equal(both(X)[1], 3 * X)
    assert_array_equal(jax.grad(lambda x: jnp.sum(both(x)[0] + both(x)[1]))(X), [5, 5, 5])
    assert_array_equal(ones()[0], [1, 1, 1])
