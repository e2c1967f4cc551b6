"""Faults that `check_kernel` finds in other processes and on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.slow

X = np.linspace(0.5, 2.5, 5, dtype=np.float32)
Y = np.linspace(-1, 1, 5, dtype=np.float32)


def test_a_kernel_that_cannot_be_exported(assert_caught, assert_passes):
    def fn(x):
        return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert_caught("export", "raised ", fn, X)
    assert_passes("export", jnp.sin, X)


def test_an_artifact_with_other_results(assert_caught):
    def fn(x):
        return x.at[1].add(1) if isinstance(x, jax.core.Tracer) else x

    assert_caught("export", "element (1,)", fn, X)


def test_results_whose_type_does_not_vary(new_primitive, assert_caught, assert_passes):
    assert_caught("shard_map", "the inputs vary over the mesh axes ['devices']", new_primitive(lambda axis: axis), X)
    assert_passes("shard_map", lambda x: 2 * x, X)


def test_results_whose_type_does_not_vary_and_that_are_equal_by_chance(new_primitive, assert_caught):
    primitive = new_primitive(lambda axis: axis)
    assert_caught("shard_map", "the type of result 0 varies over []", lambda x: primitive(jnp.isfinite(x) * 1.0), X)


def test_results_that_depend_on_some_of_the_inputs(assert_passes):
    assert_passes("shard_map", lambda x, y: (jnp.sin(x), jnp.cos(y), x + y), np.arange(4.0), np.arange(4.0))


def test_fewer_results_than_expected(assert_caught):
    assert_caught("shard_map", "1 outputs, expected 2", lambda x: x, X, reference=lambda x: (x, x))


def test_a_kernel_that_is_wrong_on_one_of_several_devices(assert_caught, assert_passes):
    def wrong_on_the_third(x, y):
        try:
            return x + y + (jax.lax.axis_index("devices") == 2)
        except NameError:  # not inside shard_map
            return x + y

    place = "Auto axes, all sharded: output (float32[4, 5]): slice 2 of the batch, element (0,)"
    assert_caught("shard_map", place, wrong_on_the_third, X, Y)
    assert_passes("shard_map", lambda x, y: x + y, X, Y)
