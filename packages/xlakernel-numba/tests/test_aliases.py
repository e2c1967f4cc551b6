"""Kernels that update in place: the inputs that share their memory, and those that never change."""

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import AliasError
from xlakernel.numba import numba_kernel

X = np.arange(5, dtype=np.float32)
Struct = jax.ShapeDtypeStruct


def test_a_donated_input_keeps_its_memory(run_add_into):
    acc, x = jnp.zeros(1000), jnp.ones(1000)
    pointer = acc.unsafe_buffer_pointer()
    out = jax.jit(run_add_into, donate_argnums=0)(acc, x)
    assert out.unsafe_buffer_pointer() == pointer
    assert acc.is_deleted()
    assert_array_equal(out, np.ones(1000))


def test_an_alias_never_changes_an_array_that_is_still_in_use(run_add_into):
    acc = jnp.zeros(5)
    assert_array_equal(run_add_into(acc, X), X)
    assert_array_equal(run_add_into(acc, X), X)
    assert_array_equal(acc, np.zeros(5))
    both, old = jax.jit(lambda a: (run_add_into(a, a), a + 1))(jnp.asarray(X))
    assert_array_equal(both, 2 * X)
    assert_array_equal(old, X + 1)
    constant = jax.jit(lambda: run_add_into(jnp.ones(5), X))  # a constant of the program
    assert_array_equal(constant(), constant())
    assert_array_equal(constant(), 1 + X)


@numba.njit
def swap(a, b, first, second):
    """For aliases 0: 1 and 1: 0, read through the outputs only."""
    for i in range(first.size):
        first[i] += 1
    for i in range(second.size):
        second[i] += 2


def test_two_aliases_cross():
    run = numba_kernel(swap, outs=lambda a, b: (b, a), input_output_aliases={0: 1, 1: 0})
    first, second = run(jnp.zeros(3), jnp.full(4, 10.0))
    assert_array_equal(first, [11] * 4)
    assert_array_equal(second, [2] * 3)


def test_only_a_donated_input_shares_its_memory(run_add_into):
    program = jax.jit(run_add_into, donate_argnums=0)
    kept = jax.jit(run_add_into)
    for size in (1, 1000):
        acc, x = jnp.zeros(size) + 1, jnp.ones(size)
        pointer = acc.unsafe_buffer_pointer()
        assert kept(acc, x).unsafe_buffer_pointer() != pointer
        assert_array_equal(acc, np.ones(size))
        for i in range(3):
            acc = program(acc, x)
            assert acc.unsafe_buffer_pointer() == pointer
            assert_array_equal(acc, np.full(size, 2 + i))


def test_a_carry_is_updated_in_one_place(run_add_into):
    """The body of the loop contains no copy."""
    x = jnp.ones(1000)
    program = jax.jit(lambda acc: jax.lax.fori_loop(0, 5, lambda _, a: run_add_into(a, x), acc), donate_argnums=0)
    acc = jnp.zeros(1000) + 0
    text = program.lower(acc).compile().as_text()
    body = next(part for part in text.split("\n\n") if "custom-call" in part)
    assert not [line for line in body.splitlines() if " copy(" in line and "f32[1000]" in line]
    assert_array_equal(program(acc), np.full(1000, 5))


def test_an_alias_under_each_transformation(run_add_into):
    rows = np.stack([X, X + 1])
    assert_array_equal(jax.vmap(run_add_into)(rows, rows), 2 * rows)
    assert_array_equal(jax.vmap(run_add_into, (None, 0))(X, rows), X + rows)
    kept = jnp.asarray(X)
    assert_array_equal(jax.vmap(run_add_into, (None, 0))(kept, rows), X + rows)
    assert_array_equal(kept, X)
    donated = jnp.asarray(rows) + 0
    pointer = donated.unsafe_buffer_pointer()
    out = jax.jit(jax.vmap(run_add_into), donate_argnums=0)(donated, rows)
    assert out.unsafe_buffer_pointer() == pointer
    for flag in (True, False):
        out = jax.jit(lambda f, x: (jax.lax.cond(f, run_add_into, lambda a, b: a, x, x), x))(flag, X)
        assert_array_equal(out, [X + X * flag, X])
    assert_array_equal(jax.checkpoint(run_add_into)(X, X), 2 * X)


def test_an_alias_and_a_derivative(make_add_into):
    run = make_add_into(reference=lambda acc, x: acc + x * x)
    acc = jnp.asarray(X)
    value, gradient = jax.value_and_grad(lambda a, x: (run(a, x) * a).sum(), (0, 1))(acc, X)
    assert_array_equal(value, ((X + X) * X).sum())
    assert_allclose(gradient[0], X + X + X)
    assert_allclose(gradient[1], 2 * X * X)
    assert_array_equal(acc, X)


def test_an_alias_of_other_types_is_an_error(make_add_into):
    with pytest.raises(AliasError, match="share memory"):
        jax.eval_shape(make_add_into(outs=lambda acc, x: Struct((6,), acc.dtype)), X, X)
