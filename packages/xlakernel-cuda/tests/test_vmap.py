"""Batches: a launch for each slice, or one launch for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

from xlakernel.core.errors import LaunchError
from xlakernel.cuda import numba_cuda_kernel

pytestmark = pytest.mark.gpu


def same(x, *_):
    return x


@cuda.jit
def outer_plus(x, y, out):
    """out[i] = x[i] + sum of y: coupled, so that a mixed-up slice shows."""
    i = cuda.grid(1)
    if i < out.size:
        total = x[i]
        for j in range(y.size):
            total += y[j]
        out[i] = total


@cuda.jit
def outer_plus_in_batches(x, y, out):
    """The same, with the slices of a batch along y of the grid."""
    i, b = cuda.grid(1), cuda.blockIdx.y
    if i < out.shape[1]:
        total = x[b, i]
        for j in range(y.shape[1]):
            total += y[b, j]
        out[b, i] = total


def expected(x, y):
    return x + np.sum(y, axis=-1, keepdims=True)


RUNS = {
    "a launch for each": lambda **options: numba_cuda_kernel(
        outer_plus, same, launch_dims=lambda x, y: x.size, **options
    ),
    "one launch": lambda **options: numba_cuda_kernel(
        outer_plus_in_batches, same, launch_dims=lambda x, y: x.size, batch_axis="y", **options
    ),
}

X, Y = np.arange(300.0, dtype=np.float32), np.arange(4.0, dtype=np.float32)
XS, YS = (np.stack([v * (k + 1) for k in range(5)]) for v in (X, Y))


@pytest.fixture(params=RUNS)
def make(request):
    return RUNS[request.param]


def test_without_a_batch(make):
    assert_array_equal(make()(X, Y), expected(X, Y))


@pytest.mark.parametrize(("axes", "inputs"), [((0, 0), (XS, YS)), ((0, None), (XS, Y)), ((None, 0), (X, YS))])
@pytest.mark.parametrize("method", ["native", "broadcast_all", "sequential"])
def test_each_input_alone_or_shared(make, axes, inputs, method):
    run = make(vmap_method=method)
    assert_array_equal(jax.jit(jax.vmap(run, axes))(*inputs), expected(*inputs))


@cuda.jit
def add_gain(x, y, out, gain=1.0):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + gain * y[()]


@cuda.jit
def add_gain_to_rows(x, y, out, gain=1.0):
    i, b = cuda.grid(1), cuda.blockIdx.y
    if i < out.shape[1]:
        out[b, i] = x[b, i] + gain * y[b]


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("gain", [2.0, np.float32(2)])
def test_a_function_computes_the_whole_batch(axes, gain):
    """Of one level or of two, with a scalar by keyword."""
    rows = numba_cuda_kernel(add_gain_to_rows, same, grid=lambda x, y: (-(-x.shape[1] // 128), x.shape[0]), block=128)
    run = numba_cuda_kernel(add_gain, same, launch_dims=lambda x, y: x.size, vmap_method=rows)
    x, y = X if axes[0] is None else XS, YS[:, 1] if axes[1] == 0 else YS[1, 1]
    batch = jax.vmap(lambda x, y: run(x, y, gain=gain), axes)
    reference = jax.vmap(lambda x, y: x + gain * y, axes)
    assert_array_equal(jax.jit(batch)(x, y), reference(x, y))
    assert "add_gain_to_rows" in jax.jit(batch).lower(x, y).as_text()
    assert_array_equal(jax.vmap(batch, (None, 0))(x, y[None]), jax.vmap(reference, (None, 0))(x, y[None]))


def test_an_inner_axis_is_moved(make):
    assert_array_equal(jax.vmap(make(), (1, 0))(XS.T, YS), expected(XS, YS))
    assert_array_equal(jax.vmap(make(), (0, 0), 1)(XS, YS), expected(XS, YS).T)


@pytest.mark.parametrize(
    ("inner", "outer"), [((0, None), (None, 0)), ((None, 0), (0, None)), ((0, 0), (0, None)), ((0, None), (0, 0))]
)
def test_nested_batches(make, inner, outer):
    def shape(value, axes):
        return np.stack([value * (k + 2) for k in range(3)]) if axes == 0 else value

    x, y = (shape(s if i == 0 else v, o) for v, s, i, o in zip((X, Y), (XS, YS), inner, outer, strict=True))
    got = jax.vmap(jax.vmap(make(), inner), outer)(x, y)
    reference = jax.vmap(jax.vmap(lambda x, y: x + jnp.sum(y), inner), outer)(x, y)
    assert_array_equal(got, reference)


@pytest.mark.parametrize("size", [0, 1])
def test_batches_of_none_and_of_one(make, size):
    assert_array_equal(jax.vmap(make())(XS[:size], YS[:size]), expected(XS[:size], YS[:size]))


def test_one_launch_is_what_a_batch_axis_makes():
    run = RUNS["one launch"]()
    text = jax.jit(jax.vmap(run)).lower(XS, YS).as_text()
    assert "grid (2, 5, 1)" in text
    assert text.count("custom_call") == 1


def test_a_batch_too_large_for_its_axis_is_refused():
    many = jnp.zeros((65536, 1))
    with pytest.raises(LaunchError, match="batch of 65536 slices"):
        jax.vmap(RUNS["one launch"]())(many, many)


def test_many_slices():
    many = jnp.arange(2000.0).reshape(1000, 2)
    assert_array_equal(jax.vmap(RUNS["a launch for each"]())(many, many), expected(np.asarray(many), np.asarray(many)))


def test_gradients_of_a_batch(make):
    run = make(reference=lambda x, y: x + jnp.sum(y))
    grad = jax.vmap(jax.grad(lambda x, y: jnp.sum(run(x, y) ** 2), (0, 1)))
    reference = jax.vmap(jax.grad(lambda x, y: jnp.sum((x + jnp.sum(y)) ** 2), (0, 1)))
    for got, wanted in zip(grad(XS, YS), reference(XS, YS), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
