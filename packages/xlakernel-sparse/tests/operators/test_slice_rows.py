"""`csr_slice_rows`, diagonals and sums at places: values, derivatives, batches and arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import CSC, CSR, csr_slice_rows

ROWS = jnp.array([4, 0, 4, 1])


def sliced(w, csr, rows=ROWS, **options):
    return csr_slice_rows(w, csr["indices"], csr["indptr"], rows, shape=csr["shape"], **options)


@pytest.mark.parametrize("backend", [None, "jax"])
@pytest.mark.parametrize("homogeneous", [False, True], ids=["weights", "homogeneous"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_csr_slice_rows(csr, make_weights, to_dense, backend, homogeneous, dtype):
    w = make_weights(dtype=dtype, homogeneous=homogeneous)
    found = sliced(w, csr, backend=backend)
    assert found.dtype == w.dtype
    assert_allclose(
        np.asarray(found, np.complex128), np.asarray(to_dense(w)[ROWS], np.complex128), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("backend", [None, "jax"])
def test_rows_out_of_range_are_zeros(csr, make_weights, backend):
    found = jax.jit(lambda rows: sliced(make_weights(), csr, rows, backend=backend))(jnp.array([-1, 5, 2**31 - 1]))
    assert_array_equal(found, np.zeros((3, 7)))


@pytest.mark.parametrize("homogeneous", [False, True], ids=["weights", "homogeneous"])
def test_derivatives(csr, make_weights, to_dense, homogeneous):
    w = make_weights(homogeneous=homogeneous)
    g = jnp.asarray(np.random.default_rng(3).normal(size=(4, 7)), jnp.float32)

    def loss(w):
        return jnp.sum(jnp.sin(sliced(w, csr)) * g)

    def plain(w):
        return jnp.sum(jnp.sin(to_dense(w)[ROWS]) * g)

    assert_allclose(jax.grad(loss)(w), jax.grad(plain)(w), rtol=1e-4, atol=1e-5)
    assert_allclose(jax.hessian(loss)(w), jax.hessian(plain)(w), rtol=1e-4, atol=1e-5)
    tangent = jnp.cos(w)
    assert_allclose(jax.jvp(loss, (w,), (tangent,))[1], jax.jvp(plain, (w,), (tangent,))[1], rtol=1e-4)


def test_batches(csr, make_weights, to_dense):
    w = make_weights()
    rows = jnp.array([[0, 1], [4, 2], [3, 3]])
    assert_allclose(jax.vmap(lambda rows: sliced(w, csr, rows))(rows), to_dense(w)[rows], rtol=1e-6)
    assert_allclose(
        jax.vmap(lambda rows: sliced(w, csr, rows), in_axes=1, out_axes=2)(rows),
        jnp.moveaxis(to_dense(w)[rows.T], 0, 2),
        rtol=1e-6,
    )
    weights = jnp.stack([w, 2 * w, -w])
    expected = jax.vmap(lambda w, rows: to_dense(w)[rows])(weights, rows)
    assert_allclose(jax.vmap(lambda w, rows: sliced(w, csr, rows))(weights, rows), expected, rtol=1e-6)
    assert_allclose(jax.vmap(lambda w: sliced(w, csr))(weights), jax.vmap(to_dense)(weights)[:, ROWS], rtol=1e-6)


def test_the_calls_of_a_batch_are_one(csr, make_weights, calls):
    A = CSR((make_weights(), csr["indices"], csr["indptr"]), csr["shape"])
    assert calls(jax.vmap(lambda i: A[i]), jnp.arange(3)) == ["csr_slice_rows"]
    assert calls(lambda: A.T[:, 2]) == ["csr_slice_rows"]


def test_arguments(csr, make_weights):
    w = make_weights()
    for rows, error, text in (
        (jnp.ones((2, 2), int), ShapeError, r"rows has the shape \(2, 2\); expected one dimension"),
        (jnp.ones(2), DtypeError, "rows is of dtype float32; expected integers"),
        (object(), InputError, "rows is <object"),
    ):
        with pytest.raises(error, match=text):
            sliced(w, csr, rows)


@pytest.mark.parametrize("kind", [CSR, CSC])
@pytest.mark.parametrize("offset", [0, 2, -1, 9])
def test_derivatives_of_a_diagonal(csr, make_weights, to_dense, kind, offset):
    arrays, shape = (csr["indices"], csr["indptr"]), csr["shape"]

    def diagonal(w):
        return kind((w, *arrays), shape if kind is CSR else shape[::-1]).diagonal(offset)

    def plain(w):
        dense = to_dense(w) if kind is CSR else to_dense(w).T
        return jnp.diagonal(dense, offset)

    for w in (make_weights(), make_weights(homogeneous=True)):
        assert_allclose(diagonal(w), plain(w), rtol=1e-6)
        found, expected = (jax.grad(lambda w, f=f: jnp.sum(jnp.sin(f(w))))(w) for f in (diagonal, plain))
        assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        batch = jnp.stack([w, 2 * w])
        assert_allclose(jax.vmap(diagonal)(batch), jax.vmap(plain)(batch), rtol=1e-6)


@pytest.mark.parametrize("function", [abs, lambda A: A**2, lambda A: A**0.5], ids=["abs", "square", "root"])
def test_functions_of_elements_in_a_batch_of_structures(csr, make_weights, to_dense, function):
    """Under vmap both branches are computed, that for distinct places and that for sums."""
    A = CSR((jnp.abs(make_weights()) + 0.1, csr["indices"], csr["indptr"]), csr["shape"])
    distinct = CSR((A.data, jnp.arange(12) % 6, A.indptr), A.shape)  # no place of it has two entries
    batch = jax.tree.map(lambda *x: jnp.stack(x), A, distinct)
    expected = [function(np.asarray(one.todense(), np.float64)) for one in (A, distinct)]
    assert_allclose(jax.vmap(lambda one: function(one).todense())(batch), expected, rtol=1e-5, atol=1e-6)

    def loss(w, one):
        return jnp.sum(function(one.with_data(w)).todense() ** 2)

    found = jax.vmap(jax.grad(loss))(batch.data, batch)
    for gradient, one in zip(found, (A, distinct), strict=True):
        assert_allclose(gradient, jax.grad(loss)(one.data, one), rtol=1e-5, atol=1e-6)
        assert np.isfinite(gradient).all()
