"""The contents of event arrays: words of packed bits, and indices of active elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DtypeError, ShapeError, StructureError
from xlakernel.sparse import COO, CSC, CSR, BitPackedArray, CompactArray

pytestmark = pytest.mark.usefixtures("plain_jax")

SPIKES = np.array([False, True, False, True, True])


# Packed bits


def test_packed_bits_are_not_mapped_over():
    """`jax.vmap` would map over words instead of elements."""
    with pytest.raises(ShapeError, match=r"words has the shape \(64,\); 64 bits take.*cannot be mapped over"):
        jax.vmap(lambda events: events.value, in_axes=1)(BitPackedArray(np.ones((64, 64), bool)))
    rows = jax.vmap(lambda events: events.value)(BitPackedArray(np.ones((3, 64), bool)))
    assert_array_equal(rows, np.ones((3, 64)))


@given(st.lists(st.booleans(), max_size=3), st.sampled_from([0, 1, 31, 32, 33, 70]))
def test_bits_are_packed_by_words(spikes, size):
    value = np.resize(np.array([*spikes, True]), size)
    events = BitPackedArray(value)
    assert events.words.dtype == jnp.uint32 and events.words.shape == (-(-size // 32),)
    expected = np.unpackbits(np.asarray(events.words).view(np.uint8), bitorder="little")[:size]
    assert_array_equal(expected, value)
    assert_array_equal(events, value)
    assert_array_equal(BitPackedArray.from_words(events.words, size), value)


def test_bits_behind_the_end_are_ignored():
    events = BitPackedArray.from_words(np.array([2**32 - 1], np.uint32), 3)
    assert events.shape == (3,) and events.sum() == 3


def test_words_are_checked():
    with pytest.raises(DtypeError, match="words is of dtype int32; expected uint32"):
        BitPackedArray.from_words(np.ones(1, np.int32), 3)
    for size in (-1, 3.0, "3", True, np.array(3.0), np.array([3, 4])):
        with pytest.raises(ShapeError, match=r"size is .*; expected an integer of at least 0"):
            BitPackedArray.from_words(np.ones(1, np.uint32), size)
    for shape, size in [((2,), 3), ((1,), 33), ((), 3), ((3, 2), 32)]:
        with pytest.raises(ShapeError, match=r"words has the shape .* bits take"):
            BitPackedArray.from_words(np.ones(shape, np.uint32), size)


# Numbers of active elements


def test_compact_arrays_hold_the_active_numbers():
    events = CompactArray(SPIKES)
    assert events.count == 3 and events.indices.dtype == jnp.int32
    assert events.indices[:3].tolist() == [1, 3, 4]
    assert CompactArray(np.zeros(5)).count == 0
    assert CompactArray(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("count", [None, 3, np.int8(3), jnp.array(3)])
def test_compact_arrays_are_made_of_numbers(count):
    indices = np.array([4, 1, 3, 1] if count is None else [4, 1, 3, 99, -7])
    events = CompactArray.from_indices(indices, 5, count)
    assert events.count == 3
    assert_array_equal(events, SPIKES)
    assert events.sum() == 3


def test_indices_are_checked():
    make = CompactArray.from_indices
    with pytest.raises(StructureError, match="the index 5 is out of range; an array of 5 has 0 to 4"):
        make(np.array([1, 5]), 5)
    with pytest.raises(StructureError, match="the index -1 is out of range"):
        make(np.array([1, -1]), 5)
    for size in (-1, 3.0):
        with pytest.raises(ShapeError, match=r"from_indices: size is .*; expected an integer of at least 0"):
            make(np.array([1]), size)
    assert make([], 5).sum() == 0
    for count in (1.0, np.ones(2, int)):
        with pytest.raises(DtypeError, match="expected one integer"):
            make(np.array([1, 2]), 5, count)
    with pytest.raises(DtypeError, match="expected int32 or int64"):
        make(np.array([1.0]), 5)
    with pytest.raises(ShapeError, match="expected one dimension"):
        make(np.array([[1]]), 5)


def test_known_indices_are_checked_inside_of_jit():
    for indices in (np.array([1, 7]), [1, 7], jnp.array([1, 7])):
        with pytest.raises(StructureError, match="out of range"):
            jax.jit(lambda w, indices=indices: CompactArray.from_indices(indices, 5).sum() * w)(1)


def test_traced_repetitions_count_once():
    """Kernels would add their rows again, and other operations would not."""
    events = jax.jit(lambda indices: CompactArray.from_indices(indices, 5))(jnp.array([4, 1, 4, 9, 1, 0]))
    assert events.count == 3 and events.indices[:3].tolist() == [4, 1, 0]
    dense = np.arange(10, dtype=np.float32).reshape(5, 2)
    for matrix in (CSR.from_dense(dense), CSC.from_dense(dense), COO.from_dense(dense)):
        assert_array_equal(events @ matrix, dense[[4, 1, 0]].sum(0))
    batch = jnp.array([[1, 1], [2, 3]])
    assert_array_equal(jax.vmap(lambda indices: CompactArray.from_indices(indices, 5).count)(batch), [1, 2])
    assert jax.jit(lambda indices: CompactArray.from_indices(indices, 0))(jnp.zeros(3, int)).count == 0


def test_several_compact_arrays_are_not_taken_for_one():
    spikes = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]], np.float32)
    several = jax.vmap(CompactArray)(spikes)
    assert repr(several) == "CompactArray(bool[4], batch=(4,))"
    matrix = CSR.from_dense(np.eye(4, dtype=np.float32))
    looks = (lambda e: e.value, lambda e: e.sum(), lambda e: e * 2, lambda e: e @ matrix, lambda e: matrix @ e)
    for look in (*looks, lambda e: e @ matrix.tocsc(), lambda e: e @ matrix.tocoo(), lambda e: np.asarray(e)):
        with pytest.raises(ShapeError, match=r"a batch of arrays, with indices of shape \(4, 4\).*jax\.vmap"):
            look(several)
    assert_array_equal(jax.vmap(lambda events: events @ matrix)(several), spikes)


@pytest.mark.parametrize("count", [4, 99, 2, 0, -3])
def test_traced_indices_out_of_range_are_left_out(count):
    """They cannot be checked, and kernels read the rows of these indices."""
    indices = np.array([1, -1, 5, 3], np.int32)

    @jax.jit
    def make(indices, count):
        return CompactArray.from_indices(indices, 5, count)

    events = make(indices, count)
    expected = sorted(i for i in indices[: max(count, 0)].tolist() if 0 <= i < 5)
    assert events.count == len(expected)
    assert events.indices[: len(expected)].tolist() == expected
    assert_array_equal(np.flatnonzero(events), expected)
