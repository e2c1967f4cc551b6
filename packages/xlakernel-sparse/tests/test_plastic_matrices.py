"""Updates of matrices: their weights, and the copies of a prepared matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.core.errors import DifferentiationError, ShapeError
from xlakernel.sparse import CSC, CSR, BinaryArray

pytestmark = pytest.mark.usefixtures("plain_jax")

FORMATS = [(kind, is_prepared) for kind in (CSR, CSC) for is_prepared in (False, True)]
each_format = pytest.mark.parametrize(
    ("kind", "is_prepared"), FORMATS, ids=[f"{'prepared ' * prepared}{kind.__name__}" for kind, prepared in FORMATS]
)
each_method = pytest.mark.parametrize("method", ["update_on_pre", "update_on_post"])


@pytest.fixture
def A(kind, is_prepared, build, odd):
    matrix = build(kind, odd)
    return matrix.prepare(blocks=True) if is_prepared else matrix


def arguments(A, method):
    rows, columns = A.shape
    pre, post = jnp.arange(rows), jnp.arange(columns)
    return (pre % 2 == 0, 0.5 * post - 1) if method == "update_on_pre" else (0.5 * pre - 1, post % 2 == 1)


def expected_data(A, method, lower=-np.inf, upper=np.inf):
    row, column = (np.asarray(x) for x in A.coordinates())
    first, second = (np.asarray(x) for x in arguments(A, method))
    line, place = (row, column) if method == "update_on_pre" else (column, row)
    spikes, trace = (first, second) if method == "update_on_pre" else (second, first)
    moved = np.clip(A.data + np.append(trace, 0)[place], lower, upper)
    return np.where(np.append(spikes, False)[line], moved, A.data)


@each_format
@each_method
def test_updates(A, method):
    for limits in ((), (-0.5, 0.75)):
        found = getattr(A, method)(*arguments(A, method), *limits)
        assert type(found) is type(A)
        np.testing.assert_allclose(found.data, expected_data(A, method, *limits), rtol=1e-6)


@each_format
@each_method
def test_copies_of_weights_follow(A, method):
    """Products of both sides, by the blocks and by the mirror, are those of the new weights."""
    found = getattr(A, method)(*arguments(A, method))
    plain = type(A)((found.data, *found.structure), shape=A.shape).todense()
    left, right = jnp.arange(1.0, A.shape[0] + 1), jnp.arange(1.0, A.shape[1] + 1)
    for one, other in (
        (found @ right, plain @ right),
        (left @ found, left @ plain),
        (found @ BinaryArray(right > 2), plain @ (right > 2)),
        (BinaryArray(left > 2) @ found, (left > 2) @ plain),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert (found.prepared is None) == (A.prepared is None)


@pytest.mark.parametrize(("kind", "is_prepared"), [(CSR, True)])
def test_copies_that_are_not_used_cost_nothing(A):
    """A program that carries the weights, and multiplies in the order of the rows, moves no copies."""

    def step(data, _):
        B = A.with_data(data)
        B = B.update_on_post(*arguments(A, "update_on_post"))
        return B.data, BinaryArray(jnp.ones(A.shape[0])) @ B

    text = jax.jit(lambda data: jax.lax.scan(step, data, length=3)).lower(A.data).compile().as_text()
    whole = jax.jit(lambda A: A.update_on_post(*arguments(A, "update_on_post"))).lower(A).compile().as_text()

    def gathers(text):
        return text.count(" gather(")

    assert gathers(whole) > gathers(text)


@each_format
@each_method
def test_gradients(A, method):
    first, second = (x.astype("float32") for x in arguments(A, method))
    trace, spikes = (second, first) if method == "update_on_pre" else (first, second)

    def loss(data, trace):
        given = (spikes, trace) if method == "update_on_pre" else (trace, spikes)
        return jnp.sum(getattr(A.with_data(data), method)(*given).data[:7] ** 2)

    of_data, of_trace = jax.grad(loss, (0, 1))(A.data, trace)
    new = expected_data(A, method)
    np.testing.assert_allclose(of_data[:7], 2 * new[:7], rtol=1e-5)
    row, column = (np.asarray(x)[:7] for x in A.coordinates())
    line, place = (row, column) if method == "update_on_pre" else (column, row)
    expected = np.bincount(place, 2 * new[:7] * np.asarray(spikes)[line], trace.size)
    np.testing.assert_allclose(of_trace, expected, rtol=1e-5)
    if A.prepared is not None:
        with pytest.raises(DifferentiationError, match="stores its weights twice"):
            jax.grad(lambda A: (A @ jnp.ones(A.shape[1])).sum(), allow_int=True)(A)


@pytest.mark.parametrize(("kind", "is_prepared"), [(CSR, False), (CSC, True)])
@each_method
def test_vmap(A, method):
    data = jnp.stack([A.data, 2 * A.data])
    found = jax.vmap(lambda data: getattr(A.with_data(data), method)(*arguments(A, method)).data)(data)
    for one, weights in zip(found, data, strict=True):
        np.testing.assert_allclose(one, expected_data(A.with_data(weights), method), rtol=1e-6)


@pytest.mark.parametrize(("kind", "is_prepared"), [(CSR, False)])
def test_errors(A):
    equal = A.with_data(jnp.ones(1))
    with pytest.raises(ShapeError, match=r"CSR.update_on_pre: weight has the shape \(1,\); .*jnp.full\(nnz, weight\)"):
        equal.update_on_pre(*arguments(A, "update_on_pre"))
    with pytest.raises(ShapeError, match=r"CSR.update_on_post: pre_trace has the shape \(4,\)"):
        A.update_on_post(jnp.ones(4), jnp.ones(4))
    with pytest.raises(ShapeError, match=r"CSR\.apply_on_post: edge_state has a leaf"):
        equal.apply_on_post(lambda w, *_: w, jnp.ones(4))
    batch = jax.vmap(A.with_data)(jnp.stack([A.data, A.data]))
    with pytest.raises(ShapeError, match="this is a batch of matrices"):
        batch.update_on_pre(jnp.ones(5), jnp.ones(4))
