"""Sums and products of two sparse matrices of any structures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import COO, CSC, CSR

OPERATIONS = {
    "sum": (lambda a, b: a + b, lambda a, b: a + b),
    "difference": (lambda a, b: a - b, lambda a, b: a - b),
    "product of elements": (lambda a, b: a * b, lambda a, b: a * b),
    "product": (lambda a, b: a @ b.T, lambda a, b: a @ b.T),
}
each_operation = pytest.mark.parametrize("name", OPERATIONS)


@each_operation
@settings(max_examples=6)
@given(data=st.data(), other=st.sampled_from([CSR, CSC, COO]), is_equal=st.booleans())
def test_results_are_those_of_dense_matrices(kind, build, dense_of, entries, name, data, other, is_equal):
    """With duplicates, zeros and padding, whose weights are NaN."""
    of_a, of_b = data.draw(entries), data.draw(entries)
    a, b = build(kind, of_a), build(other, of_b, room=12, equal=3.0 if is_equal else None)
    operation, expected = OPERATIONS[name]
    found = operation(a, b)
    assert type(found) is kind
    dense_b = dense_of([(i, j, 3.0) for i, j, _ in of_b] if is_equal else of_b)
    assert_array_equal(found.to_scipy().toarray(), expected(dense_of(of_a), dense_b))  # compiles less than todense
    if kind is not COO:
        rows = found if kind is CSR else found.T
        line = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        assert (np.diff(line * rows.shape[1] + np.asarray(rows.indices)) > 0).all()  # sorted, without duplicates


@pytest.mark.parametrize("method", ["maximum", "minimum"])
@settings(max_examples=6)
@given(data=st.data(), other=st.sampled_from([CSR, CSC, COO]))
def test_extremes_of_two_matrices(kind, build, dense_of, entries, method, data, other):
    of_a, of_b = data.draw(entries), data.draw(entries)
    found = getattr(build(kind, of_a), method)(build(other, of_b, room=12))
    assert type(found) is kind
    assert_array_equal(found.to_scipy().toarray(), getattr(np, method)(dense_of(of_a), dense_of(of_b)))
    with pytest.raises(DtypeError, match=f"{method}: the matrix is of dtype complex64"):
        getattr(found, method)(found.astype("complex64"))


@each_operation
@pytest.mark.parametrize(
    "dtypes", [("float32", "int8"), ("float16", "float16"), ("int32", "complex64"), ("int8", "int8")]
)
def test_dtypes_are_those_of_jax(build, odd, name, dtypes):
    a, b = (build(kind, odd[:k], dtype=dtype) for kind, k, dtype in zip((CSR, CSC), (7, 6), dtypes, strict=True))
    operation, expected = OPERATIONS[name]
    found = operation(a, b)
    assert found.dtype == jnp.result_type(*dtypes)
    assert_allclose(found.todense().astype(complex), expected(a.todense(), b.todense()).astype(complex), rtol=1e-2)


@each_operation
def test_weights_may_be_traced_and_differentiated(kind, build, odd, smooth, name, x64):
    a, b = build(kind, odd, room=7, dtype="float64"), build(CSR, odd[2:], room=5, dtype="float64")
    operation, expected = OPERATIONS[name]

    @jax.jit
    def dense(of_a, of_b):
        return operation(a.with_data(of_a), b.with_data(of_b)).todense()

    assert_allclose(dense(a.data, b.data), expected(a.todense(), b.todense()))
    smooth(dense, a.data, b.data)
    batch = np.stack([a.data, 2 * a.data])
    found = jax.vmap(dense, (0, None))(batch, b.data)
    assert_allclose(found, np.stack([dense(each, b.data) for each in batch]))


def test_large_matrices():
    a, b = (CSR.random(jax.random.key(seed), (300, 300), per_row=20) for seed in (0, 1))
    b = b.tocsc()
    for operation, _ in OPERATIONS.values():
        expected = operation(a.to_scipy(), b.to_scipy()).toarray()
        assert_allclose(operation(a, b).todense(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty_matrices(kind, shape):
    a, b = kind.from_dense(np.zeros(shape, np.float32), nnz=2), kind.from_dense(np.zeros(shape, np.float32))
    for operation, expected in OPERATIONS.values():
        assert_array_equal(operation(a, b).to_scipy().toarray(), expected(np.zeros(shape), np.zeros(shape)))


def test_a_product_of_weights_that_are_not_finite(build):
    a, b = build(CSR, [(0, 0, np.inf), (1, 1, 1.0)]), build(CSR, [(0, 0, 0.0), (1, 1, np.nan), (2, 2, 1.0)])
    found = (a * b).todense()
    assert np.isnan(found[0, 0]) and np.isnan(found[1, 1]) and (jnp.nan_to_num(found) == 0).all()


def test_the_structure_must_be_known(matrix):
    other = CSR.from_dense(np.eye(5, 4, dtype=np.float32))
    for operation, _ in OPERATIONS.values():
        with pytest.raises(StructureError, match=r"places of the entries are traced.*only their weights arguments"):
            jax.jit(operation)(matrix, other)


def test_shapes_must_fit(kind, matrix):
    other = kind.from_dense(np.ones((3, 4), np.float32))
    for operate in (lambda: matrix + other, lambda: matrix * other):
        with pytest.raises(
            ShapeError, match=r"the shapes are \(5, 4\) and \(3, 4\); expected two matrices of one shape"
        ):
            operate()
    with pytest.raises(ShapeError, match=r"@ .*: the shapes are \(5, 4\) and \(3, 4\); expected as many columns"):
        matrix @ other


def test_shapes_of_dense_matrices_must_fit(matrix):
    for operate in (lambda x: matrix + x, lambda x: matrix - x, lambda x: x + matrix):
        with pytest.raises(ShapeError, match=r"x has the shape \(3, 4\); expected that of the matrix, \(5, 4\)"):
            operate(np.ones((3, 4), np.float32))


def test_structures_of_results_are_known_under_jit(kind, build, odd):
    a, b = build(kind, odd), build(CSR, odd[2:])
    c = kind.from_dense(np.arange(20, dtype=np.float32).reshape(5, 4))
    w = jnp.arange(1.0, 11)
    for operation in (lambda w: a.with_data(w) + b + c, lambda w: a.with_data(w) @ b.T @ c, lambda w: (a + b) * c):
        assert_allclose(jax.jit(lambda w, f=operation: f(w).todense())(w), operation(w).todense(), rtol=1e-6)
    scaled = jax.jit(lambda w: (c.with_data(w) * c).data)  # entries that are sorted, of one structure
    assert_array_equal(scaled(c.data), c.data**2)


def test_results_under_jit_have_the_structure_of_eager_ones():
    """Also where a sum of products, or a weight, is zero."""
    a = CSR.from_dense(np.array([[1, -1]], np.float32))
    b = CSR((jnp.array([1.0, 1.0, 0.0]), jnp.array([0, 0, 1]), jnp.array([0, 1, 3])), (2, 2))
    for dtype in ("float32", "float16", "int8"):
        product = a.astype(dtype) @ b.astype(dtype)
        assert product.indices.tolist() == [0, 1] and product.data.tolist() == [0, 0]
    traced = jax.jit(lambda w: (a.with_data(w) @ b).data)(a.data)
    assert_array_equal((a @ b).with_data(traced).todense(), [[0, 0]])


@each_operation
def test_batches_are_refused(kind, build, odd, name):
    a, b = build(kind, odd), build(CSR, odd[2:])
    for batch in (a._like(data=jnp.stack([a.data] * 3)), jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), a)):
        for operate in (lambda m=batch: OPERATIONS[name][0](m, b), lambda m=batch: OPERATIONS[name][0](b, m)):
            with pytest.raises(ShapeError, match=r"a batch of matrices, with data of shape \(3, 10\)"):
                operate()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_duplicates_of_half_precision_are_added_up_in_float32(dtype):
    many = CSR((jnp.ones(4096, dtype), jnp.zeros(4096, jnp.int32), jnp.array([0, 4096])), (1, 1))
    one = CSR.from_dense(np.zeros((1, 1)), nnz=1).astype(dtype)
    for found in (many + one, one - (-many), many @ CSR.from_dense(jnp.ones((1, 1), dtype))):
        assert found.dtype == dtype and found.todense()[0, 0] == 4096


def test_padding_reaches_no_derivative_of_a_product(kind, build):
    entries = [(0, 1, 2.0), (2, 3, 3.0)]
    a, b = build(kind, entries), build(kind, entries)
    b = b.with_data(b.data.at[2:].set(0))
    assert jax.grad(lambda s: (b.with_data(b.data * s) * a).sum())(2.0) == 13


@pytest.mark.parametrize("other", [np.ones((5, 4), np.longdouble), np.full((5, 4), "x")], ids=["wide", "text"])
def test_dense_operands_are_checked(matrix, other):
    with pytest.raises((DtypeError, InputError), match=r"\+ x: x is"):
        matrix + other


@pytest.mark.parametrize("kinds", [(CSR, CSR), (CSC, CSC), (CSR, CSC), (COO, CSR)])
def test_index_arrays_of_two_dtypes(kinds, build, odd, x64):
    a, b = build(kinds[0], odd), build(kinds[1], odd[2:], index="int64")
    for found, expected in ((a + b, a.todense() + b.todense()), (a.T @ b, a.todense().T @ b.todense())):
        assert {array.dtype.name for array in found.structure} == {"int64"}
        assert_allclose(found.todense(), expected)
