"""Functions that are equal and differ: objects with an ``__eq__`` are no keys of caches, unlike the same function."""

import jax
import jax.numpy as jnp
import pytest
import warp as wp
from numpy.testing import assert_array_equal

from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

X = jnp.ones((2, 3))


@wp.kernel
def scaled(x: wp.array(dtype=float), factor: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = factor * x[i]


class Equal:
    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return type(other) is type(self)

    def __hash__(self):
        return 1


class Launches(Equal):
    __name__ = "launches"
    __module__ = __name__

    def __call__(self, x: wp.array(dtype=float), out: wp.array(dtype=float)):
        wp.launch(scaled, dim=x.shape, inputs=[x, float(self.factor)], outputs=[out], device="cpu")

    def method(self, x: wp.array(dtype=float), out: wp.array(dtype=float)):
        self(x, out)


class Batch(Equal):
    def __call__(self, x, factor):
        return [jnp.full_like(x, self.factor)]


def check(functions):
    """Check that the functions have the factors 2 and 3, each in a program of its own and both in one."""
    for found in ([f(X) for f in functions], jax.jit(lambda x: [f(x) for f in functions])(X)):
        for (result,), factor in zip(found, (2, 3), strict=True):
            assert_array_equal(result, factor * X)


@pytest.mark.parametrize("access", [lambda launches: launches, lambda launches: launches.method])
def test_functions_of_jax_callable(access):
    launches = [Launches(factor) for factor in (2, 3)]
    functions = [jax_callable(access(one)) for one in launches]
    assert functions[0] is not functions[1]
    assert jax_callable(access(launches[0])) is functions[0]
    check([jax.vmap(function) for function in functions])


def test_batch_functions_of_jax_kernel():
    batches = [Batch(factor) for factor in (2, 3)]
    functions = [jax_kernel(scaled, vmap_method=batch) for batch in batches]
    assert jax_kernel(scaled, vmap_method=batches[0]) is functions[0]
    check([jax.vmap(lambda x, f=f: f(x, 1.0)) for f in functions])
    of_calls = jax_kernel(scaled)
    check([jax.vmap(lambda x, batch=batch: of_calls(x, 1.0, vmap_method=batch)) for batch in batches])


def test_batch_functions_of_jax_callable():
    launches = Launches(1)

    class Batch(Equal):
        def __call__(self, x):
            return [jnp.full_like(x, self.factor)]

    check([jax.vmap(jax_callable(launches, vmap_method=Batch(factor))) for factor in (2, 3)])


def test_batch_functions_of_warp_kernel():
    functions = [warp_kernel(scaled, lambda x: [x], vmap_method=Batch(factor)) for factor in (2, 3)]
    check([jax.vmap(lambda x, f=f: f(x, factor=1.0)) for f in functions])
