"""`jax.vmap` of the products over every argument, alone and with derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.sparse import BinaryArray, CompactArray, csr_sddmm, csr_transpose, csrmv

FORMATS = ["csr", "prepared csc"]
KINDS = ["dense", "binary", "weighted"]


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def name_of(name, kind):
    prefix = "" if kind == "dense" else f"{kind}_"
    return {"csr": f"{prefix}csrmm", "prepared csc": f"prepared_{prefix}csrmm"}[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_of_operands_is_one_product_of_matrices(make, calls, op_by_op, name, kind):
    """The matrix is read once: for vectors, for matrices, and for batches of batches."""
    example = make(name)
    sparse, dense = example.product(kind, "right")
    w, x = example.matrix.data, example.operand("right", 2, 3)
    of_vectors = jax.vmap(sparse, (None, 0))
    assert calls(of_vectors, w, x[0]) == [name_of(name, kind)]
    assert_close(of_vectors(w, x[0]), dense(w, x[0]))
    for function in (of_vectors, jax.vmap(of_vectors, (None, 0))):  # the first is of matrices here
        assert calls(function, w, x) == [name_of(name, kind)]
        assert_close(function(w, x), dense(w, x))


@pytest.mark.parametrize("name", ["csr"])
def test_the_kernels_of_the_cpu_take_batches(make, name):
    example = make(name)
    sparse, dense = example.product("dense", "left")
    w, x = example.matrix.data, example.operand("left", 3)
    assert_close(jax.vmap(sparse, (None, 1), 1)(w, x), dense(w, x))
    ws = jnp.stack([w, 2 * w, -w])
    assert_close(jax.vmap(sparse, (0, 1), 1)(ws, x), dense(w, x) * jnp.array([1, 2, -1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_of_weights(make, op_by_op, name, kind):
    for homogeneous in (False, True):
        example = make(name, homogeneous=homogeneous)
        sparse, dense = example.product(kind, "left")
        w, x = example.matrix.data, example.operand("left", 3)
        ws = jnp.stack([w, 2 * w, -w], axis=1)
        scales = jnp.array([1, 2, -1])
        assert_close(jax.vmap(sparse, (1, None))(ws, x[:, 0]), dense(w, x[:, 0]) * scales[:, None])
        assert_close(jax.vmap(sparse, (1, 1), 1)(ws, x), dense(w, x) * scales)


def test_axes_may_be_anywhere(make, op_by_op):
    example = make("csr")
    sparse, dense = example.product("dense", "left")
    w, x = example.matrix.data, example.operand("left", 3)
    for axis, out in ((0, 0), (1, 0), (-1, 1), (0, -1)):
        found = jax.vmap(sparse, (None, axis), out)(w, jnp.moveaxis(x, 1, axis))
        assert_close(found, jnp.moveaxis(dense(w, x), 1, out))


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("name", FORMATS)
def test_batches_of_none_and_of_one(make, op_by_op, name, size):
    example = make(name)
    sparse, dense = example.product("binary", "left")
    w, x = example.matrix.data, example.operand("left", size)
    assert_close(jax.vmap(sparse, (None, 1))(w, x), dense(w, x).T)
    ws = jnp.tile(w, (size, 1))
    assert_close(jax.vmap(sparse, (0, 1))(ws, x), dense(w, x).T)
    gradient = jax.grad(lambda w: jax.vmap(sparse, (None, 1))(w, x).sum())(w)
    assert_close(gradient, jax.grad(lambda w: dense(w, x).sum())(w))


def test_a_batch_of_structures(csr, to_dense, make_weights, op_by_op):
    """Over the indices, over where rows begin, and over everything."""
    w, x = make_weights(), jnp.arange(7.0)
    indices = jnp.stack([csr["indices"], (csr["indices"] + 1) % 7])
    indptr = jnp.stack([csr["indptr"], jnp.array([0, 0, 3, 5, 6, 10], jnp.int32)])
    product = lambda w, indices, indptr, x: csrmv(w, indices, indptr, x, shape=(5, 7))  # noqa: E731
    A = to_dense(w)
    moved = jnp.roll(A, 1, axis=1)
    found = jax.vmap(product, (None, 0, None, None))(w, indices, csr["indptr"], x)
    assert_close(found, jnp.stack([A @ x, moved @ x]))
    swapped = A[jnp.array([1, 0, 2, 3, 4])]
    found = jax.vmap(product, (None, None, 0, None))(w, csr["indices"], indptr, x)
    assert_close(found, jnp.stack([A @ x, swapped @ x]))
    found = jax.vmap(product)(jnp.stack([w, 2 * w]), indices, indptr[:1].repeat(2, 0), jnp.stack([x, x]))
    assert_close(found, jnp.stack([A @ x, 2 * moved @ x]))


def test_a_batch_of_matrices(make, op_by_op):
    """A matrix is a pytree: a map over it maps its arrays."""
    for name in FORMATS:
        example = make(name)
        w, x = example.matrix.data, example.operand("left")
        matrices = jax.vmap(example.matrix.with_data)(jnp.stack([w, 2 * w]))
        y = example.dense(w) @ x
        assert_close(jax.vmap(lambda A, x=x: A @ x)(matrices), jnp.stack([y, 2 * y]))


@pytest.mark.parametrize("kind", ["dense", "binary"])
@pytest.mark.parametrize("name", FORMATS)
def test_gradients_of_batches_and_batches_of_gradients(make, op_by_op, name, kind):
    example = make(name)
    functions = example.product(kind, "right")
    w, x = example.matrix.data, example.operand("right", 3)
    ws = jnp.stack([w, 2 * w, -w])

    def each(f):
        loss = lambda w, x: jnp.sin(f(w, x)).sum()  # noqa: E731
        gradient = jax.grad(loss, argnums=(0, 1))
        yield from jax.vmap(gradient, (None, 0))(w, x)
        yield from jax.vmap(gradient)(ws, x)
        yield from jax.vmap(gradient, (0, None))(ws, x[0])
        yield from jax.grad(lambda w, x: jax.vmap(loss, (None, 0))(w, x).sum(), argnums=(0, 1))(w, x)
        yield from jax.grad(lambda w, x: jax.vmap(loss, (0, None))(w, x).sum(), argnums=(0, 1))(ws, x[0])

    for found, expected in zip(*map(each, functions), strict=True):
        assert_close(found, expected)


def test_the_gradient_of_a_batch_is_one_kernel_for_the_weights(make, calls, plain_jax):
    example = make("csr")
    sparse, _ = example.product("dense", "left")
    w, x = example.matrix.data, example.operand("left", 3)
    loss = lambda w: jnp.sin(jax.vmap(sparse, (None, 1))(w, x)).sum()  # noqa: E731
    assert calls(jax.grad(loss), w) == ["csrmm", "csr_sddmm"]
    # Likewise for Jacobians: their columns are a batch.
    assert calls(jax.jacfwd(lambda x: sparse(w, x)), x[:, 0]) == ["csrmv", "csrmm"]
    assert calls(jax.jacrev(lambda x: sparse(w, x)), x[:, 0]) == ["csrmv", "csrmm"]


def test_batches_of_events(make, op_by_op):
    for name in FORMATS:
        example = make(name)
        A, x = example.matrix, example.operand("right", 3)
        expected = (x != 0) @ example.dense(A.data)
        for make_events in (BinaryArray, CompactArray):
            found = jax.vmap(lambda x, A=A, make_events=make_events: make_events(x) @ A)(x)
            assert_close(found, expected)
        assert_close(jax.vmap(lambda e, A=A: e @ A)(BinaryArray(x)), expected)


def test_batches_of_the_other_operators(csr, op_by_op):
    rng = np.random.default_rng(0)
    u, v = jnp.asarray(rng.normal(size=(3, 5)), "float32"), jnp.asarray(rng.normal(size=(3, 7)), "float32")
    sample = lambda u, v: csr_sddmm(csr["indices"], csr["indptr"], u, v, shape=(5, 7))  # noqa: E731
    assert_close(jax.vmap(sample)(u, v), jnp.stack([sample(*pair) for pair in zip(u, v, strict=True)]))
    indices = jnp.stack([csr["indices"], (csr["indices"] + 1) % 7])
    convert = lambda indices: csr_transpose(indices, csr["indptr"], shape=(5, 7))  # noqa: E731
    for found, *expected in zip(jax.vmap(convert)(indices), *map(convert, indices), strict=True):
        assert found.tolist() == jnp.stack(expected).tolist()
