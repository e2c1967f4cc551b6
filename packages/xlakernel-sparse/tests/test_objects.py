"""Sparse matrices and events as Python objects: sums, comparisons, hashes, transposition, checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import ArgumentError, InputError, ShapeError
from xlakernel.sparse import COO, CSR, BinaryArray, CompactArray

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


@pytest.mark.parametrize("axes", [(), (None,), ((1, 0),), (1, 0)])
def test_transposition_as_in_jax_and_scipy(axes):
    matrix = CSR.from_dense(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(matrix.transpose(*axes, copy=True).todense(), matrix.T.todense())


@pytest.mark.parametrize("axes", [(0, 1), ((0, 1),), (0,), (2, 0)])
def test_other_axes_are_refused(axes):
    with pytest.raises(ArgumentError, match=r"CSR.transpose: axes are .*allowed: none"):
        CSR.from_dense(np.ones((2, 3), np.float32)).transpose(*axes)


def test_axes_of_a_vector_of_events_are_checked():
    with pytest.raises((ValueError, TypeError)):
        BinaryArray(np.ones(3)).transpose(5)


def test_a_check_of_traced_indices_is_an_error():
    matrix = CSR.from_dense(np.eye(2, dtype=np.float32))

    def make(indices, check):
        return CSR((matrix.data, indices, matrix.indptr), shape=matrix.shape, check=check).data

    with pytest.raises(ArgumentError, match="the indices are traced"):
        jax.jit(lambda indices: make(indices, True))(matrix.indices)
    jax.jit(lambda indices: make(indices, None))(matrix.indices)
    with pytest.raises(ArgumentError, match="check is 'no'; allowed: True, False or None"):
        make(matrix.indices, "no")


@pytest.mark.parametrize("count", [-1, 3, np.int64(2**32 + 2)])
def test_a_count_beyond_the_indices_is_refused(count):
    with pytest.raises(ShapeError, match="there are 2 indices"):
        CompactArray.from_indices(np.array([0, 2]), 5, count)


def test_compact_events_take_the_memory_of_their_indices():
    events = jax.jit(lambda indices: CompactArray.from_indices(indices, 2**31 - 1))(np.array([5, 5, 2**31 - 2, -1]))
    assert events.indices.shape == (4,)
    assert (events.indices[: events.count] == np.array([5, 2**31 - 2])).all() and events.count == 2
