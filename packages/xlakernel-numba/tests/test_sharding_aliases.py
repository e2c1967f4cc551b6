"""Calls that are split over devices and update in place."""

import jax
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ShardingRuleError
from xlakernel.numba import numba_kernel

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 12)).astype(np.float32)
V = RANDOM.normal(size=16).astype(np.float32)


@pytest.mark.parametrize("spec", [(), ("a",)], ids=str)
def test_a_donated_input_keeps_the_memory_of_each_part(make_mesh, put, make_add_into, spec):
    run = make_add_into(sharding_rule="i, i -> i")
    mesh = make_mesh(a=4)
    x = put(mesh, np.arange(4096, dtype=np.float32), *spec)
    acc = jax.jit(lambda x: 0 * x + 1)(x)  # memory of JAX's own: what NumPy lent is never donated
    before = [shard.data.unsafe_buffer_pointer() for shard in acc.addressable_shards]
    out = jax.jit(run, donate_argnums=0)(acc, x)
    assert_array_equal(out, np.arange(4096) + 1)
    assert acc.is_deleted()
    assert [shard.data.unsafe_buffer_pointer() for shard in out.addressable_shards] == before


def test_an_alias_never_changes_a_split_array_that_is_still_in_use(make_mesh, put, make_add_into):
    run = make_add_into(sharding_rule="i, i -> i")
    acc = put(make_mesh(a=4), V, "a")
    assert_array_equal(run(acc, acc), 2 * V)
    assert_array_equal(jax.jit(lambda a: (run(a, a), a))(acc), [2 * V, V])
    assert_array_equal(acc, V)


def test_a_sum_cannot_start_from_the_content_of_an_alias(make_mesh, put):
    """Each device would add the content."""

    @numba.njit
    def add_rows(acc, x, out):
        for i in range(x.shape[0]):
            out[i] += x[i].sum()

    options = {"outs": lambda acc, x: acc, "input_output_aliases": {0: 0}}
    with pytest.raises(ShardingRuleError, match=r"add_rows: .*sums output 0 over \['j'\].*begin with input 0"):
        numba_kernel(add_rows, **options, sharding_rule="i, i j -> i")(np.zeros(8, np.float32), X)
    run = numba_kernel(add_rows, **options, sharding_rule="i, i [j] -> i")
    mesh = make_mesh(a=2, b=2)
    out = jax.jit(run)(put(mesh, np.ones(8, np.float32), "a"), put(mesh, X, None, "b"))
    assert_allclose(out, 1 + X.sum(axis=1), rtol=1e-5, atol=1e-5)
