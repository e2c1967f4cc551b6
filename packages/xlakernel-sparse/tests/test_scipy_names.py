"""Methods with SciPy's names and meanings: elements, means, products and copies."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ArgumentError, InputError, ShapeError
from xlakernel.sparse import COO, CSR, BinaryArray

pytestmark = pytest.mark.usefixtures("plain_jax")


def test_toarray(matrix, known):
    assert_array_equal(matrix.toarray(), known.toarray())
    assert isinstance(matrix.toarray(), jax.Array)


@pytest.mark.parametrize("other", [3, np.float32(3), np.arange(4.0), np.arange(8.0).reshape(4, 2)], ids=np.shape)
def test_dot(matrix, known, other):
    product, expected = matrix.dot(other), known.dot(other)
    dense = (product.toarray(), expected.toarray()) if np.ndim(other) == 0 else (product, expected)
    assert_array_equal(*dense)


def test_dot_takes_events(matrix, known):
    assert_array_equal(matrix.dot(BinaryArray(jnp.array([0.0, 2.0, 0.0, 1.0]))), known.dot([0, 1, 0, 1]))
    with pytest.raises(InputError, match="both are sparse"):
        matrix.dot(matrix.T)


# Elements


def test_absolute_values(matrix, known):
    assert_array_equal(abs(matrix).toarray(), abs(known).toarray())


@pytest.mark.parametrize("n", [1, 2, 3, 2.0, 0.5, np.int32(2)])
def test_powers(matrix, known, n):
    matrix, known = (abs(matrix), abs(known)) if n == 0.5 else (matrix, known)
    assert_allclose(matrix.power(n).toarray(), known.power(n).toarray(), rtol=1e-6)
    assert_array_equal((matrix**n).toarray(), matrix.power(n).toarray())
    assert_allclose(jax.jit(lambda matrix: matrix**n)(matrix).toarray(), known.power(n).toarray(), rtol=1e-6)


@settings(max_examples=8)
@given(data=st.data())
def test_duplicates_are_added_up_first(kind, build, dense_of, entries, data):
    found = data.draw(entries)
    expected = dense_of(found)
    matrix = build(kind, found)
    for result, elements in ((abs(matrix), abs(expected)), (matrix**2, expected**2)):
        assert type(result) is kind and result.structure[0] is matrix.structure[0]
        assert_array_equal(result.toarray(), elements)
        assert_array_equal(result @ np.arange(4.0), elements @ np.arange(4.0))


def test_elements_of_equal_weights(kind, build, odd, dense_of):
    matrix = build(kind, odd, equal=-3.0)
    expected = dense_of([(i, j, -3.0) for i, j, _ in odd])
    assert abs(matrix).homogeneous
    assert_array_equal(abs(matrix).toarray(), abs(expected))
    assert_array_equal((matrix**2).toarray(), expected**2)


@pytest.mark.parametrize(
    ("dtype", "size", "square"),
    [
        ("int8", "int8", "int8"),
        ("float16", "float16", "float16"),
        ("complex64", "float32", "complex64"),
    ],
)
def test_dtypes_of_elements(build, odd, dtype, size, square):
    matrix = build(CSR, odd, dtype=dtype)
    assert abs(matrix).dtype == size and (matrix**2).dtype == square
    assert_array_equal(abs(matrix).toarray(), jnp.abs(matrix.toarray()))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_elements_of_empty_matrices(kind, shape):
    for nnz in (0, 2):
        matrix = kind.from_dense(np.zeros(shape, np.float32), nnz=nnz)
        assert_array_equal(abs(matrix).toarray(), np.zeros(shape))
        assert_array_equal((matrix**2).toarray(), np.zeros(shape))


def test_derivatives_of_elements(kind, build, odd):
    """Duplicates share a derivative; an infinite derivative at 0 reaches no gradient."""
    matrix = build(kind, odd).with_data(jnp.arange(1.0, 11).at[7:].set(jnp.nan))
    row, column = matrix.coordinates()

    def dense(data):
        return jnp.zeros((5, 4)).at[row, column].add(data, mode="drop")

    def loss(data, elements):
        return (elements(matrix.with_data(data)).toarray() * jnp.arange(1.0, 21).reshape(5, 4)).sum()

    def expected(data, power):
        elements = jnp.where(dense(data) > 0, dense(data), 1) ** power
        return (jnp.where(dense(data) > 0, elements, 0) * jnp.arange(1.0, 21).reshape(5, 4)).sum()

    for elements, power in ((abs, 1), (lambda a: a**2, 2), (lambda a: a**0.5, 0.5)):
        gradient = jax.grad(loss)(matrix.data, elements)
        assert_allclose(gradient, jax.grad(expected)(matrix.data, power), rtol=1e-6)
        assert_array_equal(gradient[7:], 0)
        tangent = jnp.ones(10)
        _, along = jax.jvp(lambda data, f=elements: loss(data, f), (matrix.data,), (tangent,))
        assert_allclose(along, gradient.sum(), rtol=1e-6)


@pytest.mark.parametrize("n", [0, -1, -0.5, float("nan"), 1j, "2", None, np.ones((5, 4))], ids=str)
def test_powers_that_fill_the_matrix_are_refused(matrix, n):
    with pytest.raises(ArgumentError, match=r"expected a number above 0.*A\.todense\(\) \*\* n"):
        matrix**n
    with pytest.raises(ArgumentError, match="expected a number above 0"):
        matrix.power(matrix)


# Means


@pytest.mark.parametrize("axis", [0, 1, -1, -2, None])
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", "float16"])
def test_means(kind, build, odd, known, dtype, axis):
    matrix = build(kind, odd, dtype=dtype)
    mean = matrix.mean(axis)
    assert mean.dtype == jnp.mean(matrix.toarray(), axis).dtype
    assert_allclose(mean, known.mean(axis), rtol=1e-3 if dtype == "float16" else 1e-6)


def test_means_do_not_overflow(build):
    assert build(COO, [(0, j, 100) for j in range(4)], dtype="int8").mean(axis=1)[0] == 100
    assert build(COO, [(0, j, 60000) for j in range(4)], dtype="float16").mean(axis=1)[0] == 60000


def test_means_of_more_elements_than_integers_count(kind):
    entries = COO((jnp.ones(3), np.array([0, 1, 2]), np.array([0, 1, 2])), shape=(100_000, 100_000))
    assert_allclose(getattr(entries, f"to{kind.__name__.lower()}")().mean(), 3e-10)


def test_means_of_empty_matrices_and_of_invalid_axes(kind, matrix):
    assert jnp.isnan(kind.from_dense(np.zeros((0, 3), np.float32)).mean())
    with pytest.raises(ShapeError, match=r"mean: axis is 2"):
        matrix.mean(2)


# Copies


def test_a_copy_is_the_matrix_itself(matrix, dense):
    assert matrix.copy() is matrix
    assert_array_equal(copy.copy(matrix).toarray(), dense)
    assert_array_equal(copy.deepcopy(matrix).toarray(), dense)
