"""A rule of the operator's own for jax.vmap, in place of mapping the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose


def random(*shape):
    return np.random.default_rng(sum(shape)).uniform(0.5, 2.0, shape).astype(np.float32)


@pytest.fixture
def sorting(new_operator):
    """An operator that sorts, with a batching rule that sorts all slices at once, and the list of the rule's axes."""
    op, seen = new_operator(), []
    op.def_jax_kernel(lambda outs: lambda x, y: jnp.sort(x) + y)

    def rule(ins, axes, *, outs, **params):
        seen.append(axes)
        x, y = (v if a is None else jnp.moveaxis(v, a, 0) for v, a in zip(ins, axes, strict=True))
        return [(jnp.sort(x, axis=-1) + y).T], [1]

    op.def_batching_rule(rule)
    return lambda x, y: op(x, y, outs=x), seen


@pytest.mark.parametrize("axes", [(0, 0), (1, None), (-1, 0)], ids=str)
def test_a_batching_rule_is_used_in_place_of_the_mapping(sorting, axes):
    f, seen = sorting
    x, y = (random(3) if axis is None else random(3, 3) for axis in axes)
    assert_allclose(jax.vmap(f, axes)(x, y), jax.vmap(lambda x, y: jnp.sort(x) + y, axes)(x, y))
    ((first, second),) = seen
    assert (first, second) == (axes[0] % 2, axes[1])


def test_a_batching_rule_is_not_used_without_a_batch(sorting):
    f, seen = sorting
    assert_allclose(f(random(3), random(3)), np.sort(random(3)) + random(3))
    assert seen == []


def test_a_batching_rule_may_call_the_operator_again(new_operator):
    op, seen = new_operator(lambda x: jnp.cumsum(x, -1)), []

    def rule(ins, axes, **params):
        (x,), (axis,) = ins, axes
        seen.append(x.shape)
        x = jnp.moveaxis(x, axis, 0)
        return [op(x, outs=x)], [0]

    op.def_batching_rule(rule)
    x = random(4, 3, 5)
    found = jax.vmap(jax.vmap(lambda x: op(x, outs=x), 1))(x)
    assert_allclose(found, np.cumsum(x.transpose(0, 2, 1), -1))
    assert len(seen) == 2


def test_a_call_mapped_before_the_rule_was_set(new_operator):
    op = new_operator(jnp.cumsum)
    x = random(2, 4, 3)
    mapped = jax.make_jaxpr(jax.vmap(lambda x: op(x, outs=x)))(x[0])
    op.def_batching_rule(lambda *_, **__: pytest.fail("knows nothing of the call's own axes"))
    found = jax.vmap(lambda x: jax.core.eval_jaxpr(mapped.jaxpr, mapped.consts, x)[0])(x)
    assert_allclose(found, np.cumsum(x, -1))
