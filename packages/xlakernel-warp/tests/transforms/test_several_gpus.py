"""Kernels and functions on several GPUs: split by a rule, in `jax.shard_map`, and on one after the other."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import RecordingWarning
from xlakernel.warp import jax_callable, jax_kernel, warp_kernel

pytestmark = pytest.mark.gpu

N = 4096
X = np.arange(N, dtype=np.float32)
Y = X[::-1].copy()
Floats = wp.array(dtype=float)


@wp.kernel
def add_twice(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + 2.0 * y[i]


@wp.kernel
def sum_rows(x: wp.array2d(dtype=float), out: wp.array(dtype=float)):
    i, j = wp.tid()
    wp.atomic_add(out, i, x[i, j])


@wp.kernel
def square(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * x[i]


def first(x, *_):
    return x


added = warp_kernel(add_twice, first, sharding_rule="i, i -> i", reference=lambda x, y: x + 2 * y)
summed = warp_kernel(
    sum_rows, lambda x: jax.ShapeDtypeStruct(x.shape[:1], x.dtype), output_init=0, sharding_rule="i j -> i"
)


def squared(x):
    return jax_kernel(square, enable_backward=True)(x)[0]


@pytest.fixture(scope="module")
def mesh():
    count = jax.device_count("cuda")
    if count < 2:
        pytest.skip("needs two GPUs")
    return jax.make_mesh((count,), ("d",), axis_types=(AxisType.Auto,))


def split(mesh, spec, *arrays):
    return jax.device_put(arrays, NamedSharding(mesh, spec))


def mapped(mesh, function, inputs):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(P("d"),) * inputs, out_specs=P("d")))


def test_a_rule_keeps_a_call_split(mesh):
    result = jax.jit(added)(*split(mesh, P("d"), X, Y))
    assert result.sharding.spec == P("d")
    assert_array_equal(result, X + 2 * Y)


def test_a_gradient_is_split_too(mesh):
    gradient = jax.jit(jax.grad(lambda x, y: (added(x, y) ** 2).sum(), 1))(*split(mesh, P("d"), X, Y))
    assert gradient.sharding.spec == P("d")
    assert_allclose(gradient, 4 * (X + 2 * Y), rtol=1e-6)


@pytest.mark.parametrize(("spec", "result"), [(P("d", None), P("d")), (P(None, "d"), P())])
def test_what_the_output_lacks_is_summed_over_the_gpus(mesh, spec, result):
    matrix = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    (split_matrix,) = split(mesh, spec, matrix)
    sums = jax.jit(summed)(split_matrix)
    assert sums.sharding.is_equivalent_to(NamedSharding(mesh, result), 1)
    assert_array_equal(sums, matrix.sum(axis=1))


def test_each_gpu_makes_a_call_of_its_own_in_shard_map(mesh):
    x, y = split(mesh, P("d"), X, Y)
    assert_array_equal(mapped(mesh, added, 2)(x, y), X + 2 * Y)
    looped = mapped(mesh, lambda x, y: jax.lax.fori_loop(0, 50, lambda _, v: added(v, y), x), 2)
    assert_array_equal(looped(x, y), X + 100 * Y)


def test_adjoints_run_on_the_gpu_of_their_arrays(mesh):
    (x,) = split(mesh, P("d"), X)
    gradient = jax.grad(lambda x: squared(x).sum())
    assert_array_equal(mapped(mesh, gradient, 1)(x), 2 * X)
    for device in jax.devices("cuda"):
        found = jax.jit(gradient)(jax.device_put(X, device))
        assert found.devices() == {device}
        assert_array_equal(found, 2 * X)


def through_a_temporary(x: Floats, out: Floats):
    between = wp.empty_like(x)
    wp.launch(add_twice, dim=x.shape, inputs=[x, x], outputs=[between])
    wp.launch(add_twice, dim=x.shape, inputs=[between, x], outputs=[out])


def test_temporaries_are_on_the_gpu_that_runs(mesh):
    (x,) = split(mesh, P("d"), X)
    run = jax_callable(through_a_temporary)
    assert_array_equal(mapped(mesh, lambda x: run(x)[0], 1)(x), 5 * X)
    for device in jax.devices("cuda"):
        (result,) = jax.jit(run)(jax.device_put(X, device))
        assert result.devices() == {device}
        assert_array_equal(result, 5 * X)


@pytest.mark.parametrize("number", [0, 1])
def test_an_eager_call_and_a_batch_run_where_the_arrays_are(mesh, number):
    device = jax.devices("cuda")[number]
    x, y = jax.device_put((X, Y), device)
    assert added(x, y).devices() == {device}
    batch = jax.vmap(added, (0, None))(jnp.stack([x, y]), y)
    assert batch.devices() == {device}
    assert_array_equal(batch, np.stack([X, Y]) + 2 * Y)


def test_an_array_that_a_function_closes_over_binds_it_to_its_gpu(mesh):
    here, there = jax.devices("cuda")[:2]
    table = wp.array(X, dtype=float, device=wp.device_from_jax(here))

    def closed(x: Floats, out: Floats):
        wp.launch(add_twice, dim=x.shape, inputs=[x, table], outputs=[out])

    run = jax.jit(jax_callable(closed))
    assert_array_equal(run(jax.device_put(Y, here))[0], Y + 2 * X)
    with pytest.raises((ValueError, RuntimeError)):
        jax.block_until_ready(run(jax.device_put(Y, there)))
    assert_array_equal(run(jax.device_put(Y, here))[0], Y + 2 * X)


def test_what_cannot_be_recorded_runs_on_each_gpu(mesh):
    def through_the_host(x: Floats, out: Floats):
        wp.copy(out, wp.array(2 * x.numpy(), dtype=float, device=x.device))

    run = jax.jit(jax_callable(through_the_host))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordingWarning)
        for device in jax.devices("cuda"):
            (result,) = run(jax.device_put(X, device))
            assert result.devices() == {device}
            assert_array_equal(result, 2 * X)
