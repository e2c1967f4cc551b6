"""Arrays of JAX's that calls leave unchanged, and globals that are read when a program is lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from jax.sharding import PartitionSpec as P

from xlakernel.core import debug_mode
from xlakernel.warp import jax_kernel, warp_kernel

X = np.arange(1, 5, dtype=np.float32)


@wp.func
def add_to(out: wp.array(dtype=float), hits: wp.array(dtype=int), i: int, value: float):
    wp.atomic_add(out, i, value)
    wp.atomic_add(hits, i, 1)


@wp.kernel
def one_and_twice(x: wp.array(dtype=float), out: wp.array(dtype=float), hits: wp.array(dtype=int)):
    i = wp.tid()
    out[i] = 1.0
    hits[i] = 0
    add_to(out, hits, i, 2.0 * x[i])


def helper_times(factor):
    @wp.func
    def helper(x: float):
        return x * factor

    return helper


helper = helper_times(2.0)


@wp.kernel
def with_helper(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = helper(x[i])


FACTOR = 2.0


@wp.kernel
def times_factor(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * FACTOR


@pytest.mark.parametrize("debug", [False, True])
def test_results_stay_as_they_are_when_the_adjoint_runs_functions_again(debug):
    run = jax_kernel(one_and_twice, num_outputs=2, enable_backward=True)
    with debug_mode(debug):
        (out, hits), pull = jax.vjp(lambda x: run(x), jnp.asarray(X))
        zero = np.zeros(4, jax.dtypes.float0)
        for _ in range(2):
            (gradient,) = pull([jnp.ones(4), zero])
            np.testing.assert_array_equal(gradient, np.full(4, 2))
            np.testing.assert_array_equal(out, 1 + 2 * X)
            np.testing.assert_array_equal(hits, np.ones(4))


def test_results_stay_as_they_are_in_one_program_and_in_a_batch():
    run = jax_kernel(one_and_twice, num_outputs=2, enable_backward=True)

    def program(x):
        (_, (out, hits)), gradient = jax.value_and_grad(lambda x: (lambda r: (r[0].sum(), r))(run(x)), has_aux=True)(x)
        return out, hits, gradient

    batch = np.stack([X, 2 * X])
    for x, f in ((X, jax.jit(program)), (batch, jax.jit(jax.vmap(program)))):
        out, hits, gradient = f(jnp.asarray(x))
        np.testing.assert_array_equal(out, 1 + 2 * x)
        np.testing.assert_array_equal(hits, np.ones_like(x))
        np.testing.assert_array_equal(gradient, np.full_like(x, 2))


def test_a_kernel_with_integer_results_has_gradients_inside_shard_map():
    run = jax_kernel(one_and_twice, num_outputs=2, enable_backward=True)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.shard_map(lambda x: run(x)[0], mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_array_equal(jax.grad(lambda x: split(x).sum())(jnp.asarray(X)), np.full(4, 2))


def test_a_constant_that_changed_is_seen_once_warp_compiles_anew(monkeypatch):
    run = warp_kernel(times_factor, lambda x: x)
    np.testing.assert_array_equal(run(X), 2 * X)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    times_factor.module.mark_modified()  # as the definition of another kernel does
    jax.clear_caches()
    np.testing.assert_array_equal(run(X), 3 * X)


def test_a_helper_that_is_defined_anew_is_part_of_what_is_lowered_from_then_on(monkeypatch):
    run = warp_kernel(with_helper, lambda x: x)
    program = jax.jit(lambda x: run(x) + 0)
    for f in (run, program):
        np.testing.assert_array_equal(f(X), 2 * X)
    monkeypatch.setattr(f"{__name__}.helper", helper_times(3.0))
    longer = np.arange(6, dtype=np.float32)
    for f in (run, program):
        np.testing.assert_array_equal(f(longer), 3 * longer)
        np.testing.assert_array_equal(f(X), 2 * X)  # as it was lowered
    both = jax.jit(lambda x: (run(x), run(x)))
    for out in both(X):
        np.testing.assert_array_equal(out, 3 * X)
