"""Methods with SciPy's names and meanings: means, products and copies."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ShapeError
from xlakernel.sparse import COO, BinaryArray

pytestmark = pytest.mark.usefixtures("plain_jax")


def test_toarray(matrix, known):
    assert_array_equal(matrix.toarray(), known.toarray())
    assert isinstance(matrix.toarray(), jax.Array)


def test_the_transpose_has_three_names(matrix, dense):
    for transposed in (matrix.T, matrix.mT, matrix.transpose()):
        assert_array_equal(transposed.toarray(), dense.T)


@pytest.mark.parametrize("other", [3, np.float32(3), np.arange(4.0), np.arange(8.0).reshape(4, 2)], ids=np.shape)
def test_dot(matrix, known, other):
    product, expected = matrix.dot(other), known.dot(other)
    dense = (product.toarray(), expected.toarray()) if np.ndim(other) == 0 else (product, expected)
    assert_array_equal(*dense)


def test_dot_takes_events(matrix, known):
    assert_array_equal(matrix.dot(BinaryArray(jnp.array([0.0, 2.0, 0.0, 1.0]))), known.dot([0, 1, 0, 1]))
    assert_array_equal(matrix.dot(matrix.T).toarray(), known @ known.toarray().T)


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
