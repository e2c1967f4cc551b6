"""Sparse matrices as Python objects: sums, comparisons, hashes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import InputError
from xlakernel.sparse import COO, CSR, BinaryArray

pytestmark = pytest.mark.usefixtures("plain_jax")


def test_sum_begins_with_zero(matrix, known):
    assert_array_equal(sum([matrix, matrix, 2 * matrix]).todense(), sum([known, known, 2 * known]).toarray())


@pytest.mark.parametrize("zero", [0, 0.0, False, np.int8(0), 0j], ids=repr)
def test_zero_may_be_added(matrix, dense, zero):
    assert matrix + zero is matrix and zero + matrix is matrix and matrix - zero is matrix
    assert_array_equal((zero - matrix).todense(), -dense)
    assert +matrix is matrix


def test_a_matrix_has_no_length(matrix, known):
    for one in (matrix, known):
        assert one.ndim == 2
        with pytest.raises(TypeError):
            len(one)


def test_matrices_are_not_compared(matrix, kind, build, odd):
    others = (matrix, build(kind, odd), build(COO if kind is CSR else CSR, odd), np.ones((5, 4)), jnp.ones((5, 4)), 0)
    for other in (*others, np.float32(1), BinaryArray(np.ones(4))):
        for compare in (lambda x: matrix == x, lambda x: x == matrix, lambda x: matrix != x, lambda x: x != matrix):
            with pytest.raises(InputError, match=r"A\.todense\(\) [!=]= B\.todense\(\).*A\.data [!=]= B\.data.*A is B"):
                compare(other)


def test_a_matrix_is_no_other_thing(matrix):
    for other in (None, "matrix", (), object()):
        assert matrix != other and other != matrix
        assert (matrix == other) is (other == matrix) is False


def test_matrices_are_arguments_and_no_static_ones(matrix, dense):
    with pytest.raises(TypeError, match="unhashable"):
        hash(matrix)
    with pytest.raises(ValueError, match="on-hashable static arguments"):
        jax.jit(lambda matrix: matrix.todense(), static_argnums=0)(matrix)
    # Methods are hashed by the object that they belong to.
    assert_array_equal(jax.jit(matrix.todense)(), dense)
