"""Event arrays as pytrees: in jit, scan and vmap, and what gradients in them are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.sparse import CSR, BinaryArray, BitPackedArray, CompactArray, WeightedArray

pytestmark = pytest.mark.usefixtures("plain_jax")

SPIKES = np.array([False, True, False, True, True])
kinds = pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray, CompactArray])


@kinds
def test_it_goes_through_transformations(kind):
    events = kind(SPIKES)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(events))
    through = jax.jit(lambda events: events)(events)
    assert type(through) is kind
    assert_array_equal(through, SPIKES)
    assert jax.jit(lambda events: events.sum())(events) == 3
    _, history = jax.lax.scan(lambda events, _: (events, events.value), events, length=2)
    assert_array_equal(history, [SPIKES, SPIKES])
    made = jax.jit(lambda spikes: kind(spikes))(SPIKES)
    assert_array_equal(made, SPIKES)


@kinds
def test_two_share_a_compiled_function(kind):
    traced = []

    @jax.jit
    def count(events):
        traced.append(events)
        return events.sum()

    assert [count(kind(SPIKES)), count(kind(~SPIKES)), count(kind(np.zeros(5, bool)))] == [3, 2, 0]
    assert len(traced) == 1


@kinds
def test_many_at_once(kind):
    batch = np.stack([SPIKES, ~SPIKES, SPIKES])
    events = jax.vmap(kind)(batch)
    assert_array_equal(jax.vmap(lambda events: events.value)(events), batch)
    assert_array_equal(jax.vmap(lambda events: events.sum())(events), [3, 2, 3])


@kinds
def test_repr_of_what_jax_puts_into_pytrees(kind):
    events = kind(SPIKES)
    assert repr(jax.tree.map(lambda leaf: None, events)).startswith(f"{kind.__name__}(None")
    assert repr(jax.eval_shape(lambda events: events, events)) == repr(events)


@pytest.mark.parametrize("kind", [BinaryArray, WeightedArray])
def test_gradients_pass_as_if_it_were_dense(kind):
    value = jnp.array([0.0, 2.0, -3.0])
    weights = jnp.array([5.0, 6.0, 7.0])
    gradient = jax.grad(lambda value: (jnp.asarray(kind(value)) * weights).sum())
    assert_array_equal(gradient(value), weights)
    assert_array_equal(jax.jit(gradient)(value), weights)
    assert_array_equal(jax.grad(lambda value: 3 * kind(value)[1])(value), [0, 3, 0])


@pytest.mark.parametrize("spikes", [BinaryArray, WeightedArray])
def test_a_gradient_in_events_is_read_as_raw(matrix, dense, spikes):
    events = spikes(jnp.array([0.0, 1.0, 0.0, 2.0, 0.0]))
    assert_array_equal(events.raw, [0, 1, 0, 2, 0])
    for gradient_of in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        gradient = gradient_of(lambda events: (events @ matrix).sum())(events)
        assert type(gradient) is spikes
        assert_array_equal(gradient.raw, dense.sum(axis=1))
        assert_array_equal(jax.tree.map(lambda a, b: a - b, events, gradient).raw, events.raw - dense.sum(axis=1))
    gradient = jax.grad(lambda events: jnp.sum(jnp.asarray(events) * jnp.arange(5.0)))(events)
    assert_array_equal(gradient.raw, jnp.arange(5.0))


def test_a_gradient_in_events_of_bool_is_of_no_dtype(matrix):
    gradient = jax.grad(lambda events: (events @ matrix).sum(), allow_int=True)(BinaryArray(SPIKES))
    assert gradient.raw.dtype == jax.dtypes.float0 and gradient.raw.shape == (5,)


WEIGHTS = np.arange(1.0, 17).reshape(4, 4) / 8
OF_EVENTS = {
    "value": lambda spikes, matrix: WEIGHTS @ BinaryArray(spikes).value,
    "element": lambda spikes, matrix: WEIGHTS[0] * BinaryArray(spikes)[2],
    "dense product": lambda spikes, matrix: jnp.asarray(WEIGHTS) @ BinaryArray(spikes),
    "product": lambda spikes, matrix: matrix @ BinaryArray(spikes),
    "weights": lambda spikes, matrix: matrix.with_data(spikes.sum() * matrix.data) @ BinaryArray(spikes),
    "equal weights": lambda spikes, matrix: (
        CSR((spikes.sum()[None], matrix.indices, matrix.indptr), shape=matrix.shape) @ BinaryArray(spikes)
    ),
}


# A product with the events, and one with the spikes in the weights too; an element and a dense product are functions of
# the value.
@pytest.mark.parametrize(
    "product", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("value", "weights"))) for name in OF_EVENTS]
)
def test_derivatives_of_a_loop_are_those_of_its_steps(product, x64):
    """JAX drops the rule of a `jax.custom_jvp` in a loop that it has taken the gradient of (jax < 0.12)."""
    product, matrix, scales = OF_EVENTS[product], CSR.from_dense(jnp.asarray(WEIGHTS)), np.array([1.0, 0.5])
    spikes, tangent = jnp.array([1.0, 0.0, 2.0, 0.0]), jnp.array([1.0, -2.0, 0.5, 3.0])

    def of_step(spikes, scale):
        return (product(scale * spikes, matrix) ** 3).sum()

    def unrolled(spikes):
        return sum(of_step(spikes, scale) for scale in scales)

    def loop(spikes):
        return jax.lax.scan(lambda total, scale: (total + of_step(spikes, scale), None), 0.0, scales)[0]

    def derivatives(f):
        first = jax.grad(f)
        second = jax.grad(lambda spikes: first(spikes) @ tangent)
        return jax.jvp(first, (spikes,), (tangent,)), second(spikes), jax.grad(lambda x: second(x) @ tangent)(spikes)

    jax.tree.map(functools.partial(assert_allclose, rtol=1e-12), derivatives(loop), derivatives(unrolled))
