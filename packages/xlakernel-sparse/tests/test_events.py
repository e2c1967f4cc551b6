"""Event arrays: arrays to whoever asks, and what is active in them."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import BinaryArray, BitPackedArray, CompactArray, EventArray, WeightedArray

pytestmark = pytest.mark.usefixtures("plain_jax")

SPIKES = np.array([False, True, False, True, True])
kinds = pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray, CompactArray])
of_any_rank = pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray])


# As arrays do


@kinds
def test_it_has_what_arrays_have(kind):
    events = kind(SPIKES)
    assert isinstance(events, EventArray)
    assert (events.shape, events.ndim, events.size, len(events), events.dtype) == ((5,), 1, 5, 5, bool)
    assert_array_equal(events.value, SPIKES)
    assert repr(events) == f"{kind.__name__}(bool[5])"
    assert events.sum() == 3 and events.sum().dtype == jnp.int32
    assert events.sum(dtype="float32").dtype == jnp.float32
    assert_array_equal(events.astype("float16"), SPIKES.astype("float16"))
    assert events.astype("float16").dtype == jnp.float16


@kinds
def test_jax_and_numpy_take_it_for_an_array(kind):
    events = kind(SPIKES)
    assert_array_equal(jnp.asarray(events), SPIKES)
    assert_array_equal(jnp.array(events, "float32"), SPIKES.astype("float32"))
    assert jnp.sum(events) == 3 and jnp.any(events)
    assert_array_equal(jnp.where(events, 2.0, 0.0), 2.0 * SPIKES)
    assert_array_equal(np.asarray(events), SPIKES)
    assert np.asarray(events, "float64").dtype == np.float64
    mine = np.array(events)
    mine[:] = True  # a copy may be written to
    assert_array_equal(events, SPIKES)


@of_any_rank
def test_it_is_transposed(kind):
    x = np.array([[0.0, 2.0, np.nan], [1.0, 0.0, -3.0]], np.float32)
    events = kind(x)
    assert type(events.T) is kind and events.T.shape == (3, 2)
    assert_array_equal(events.T.value, np.asarray(events.value).T)
    one = kind(SPIKES)
    assert one.T is one
    if kind is not BitPackedArray:
        assert_array_equal(events.T.raw, x.T)


@kinds
def test_it_is_indexed(kind):
    events = kind(SPIKES)
    assert events[1] and events[-1] and not events[0] and events[1].shape == ()
    for index in (slice(1, 4), slice(None, None, -2), np.array([1, 3]), SPIKES, jnp.array([True] * 5)):
        part = events[index]
        assert type(part) is kind
        assert_array_equal(part, SPIKES[index])
    assert jax.jit(lambda i: events[i])(3)


@kinds
def test_it_is_iterated_over(kind):
    assert [bool(spike) for spike in kind(SPIKES)] == SPIKES.tolist()


@kinds
def test_it_is_computed_with(kind):
    events, x = kind(SPIKES), np.arange(5, dtype=np.float32)
    for other in (x, jnp.asarray(x), WeightedArray(x)):
        assert_array_equal(events + other, SPIKES + x)
        assert_array_equal(other * events, SPIKES * x)
        assert_array_equal(other - events, x - SPIKES)
        assert_array_equal(events / (other + 1), SPIKES / (x + 1))
        assert_array_equal(other < events, x < SPIKES)
        assert_array_equal(events == other, x == SPIKES)
    assert_array_equal(events * 2.5, 2.5 * SPIKES)
    assert_array_equal(1.0 - events, 1.0 - SPIKES)
    assert_array_equal(events != 0, SPIKES)
    assert_array_equal(events >= 1, SPIKES)
    assert_array_equal(~events, ~SPIKES)
    assert_array_equal(events & ~SPIKES, np.zeros(5, bool))
    assert_array_equal(np.ones(5, bool) ^ events, ~SPIKES)
    assert_array_equal(False | events, SPIKES)
    assert type(events + 1) is type(jnp.ones(1))


def test_numbers_are_computed_with():
    events = WeightedArray(np.array([0.0, -2.0, 3.0], np.float32))
    assert_array_equal(-events, [0, 2, -3])
    assert_array_equal(abs(events), [0, 2, 3])
    assert_array_equal(events**2, [0, 4, 9])
    assert_array_equal(2.0**events, [1, 0.25, 8])
    assert_array_equal(events // 2, [0, -1, 1])
    assert_array_equal(events % 2, [0, 0, 1])


@kinds
def test_it_is_multiplied_with_dense_matrices(kind):
    dense = np.arange(20, dtype=np.float32).reshape(5, 4)
    events = kind(SPIKES)
    for matrix in (dense, jnp.asarray(dense)):
        assert_array_equal(events @ matrix, SPIKES @ dense)
        assert_array_equal(matrix.T @ events, dense.T @ SPIKES)
    assert (events.astype(int) @ kind(SPIKES)) == 3


@kinds
def test_others_are_not_computed_with(kind):
    events = kind(SPIKES)
    for compute in (lambda: events + "text", lambda: None * events, lambda: events @ [1, 2], lambda: events < "text"):
        with pytest.raises(TypeError):
            compute()
    assert (events == "text") is False


@kinds
def test_whether_an_array_is_true_is_ambiguous(kind):
    with pytest.raises(ValueError, match="ambiguous"):
        bool(kind(SPIKES))
    assert bool(kind(SPIKES[1:2])) and not kind(SPIKES[:1])


def test_the_base_says_what_spikes_are_made_by():
    with pytest.raises(InputError, match=r"EventArray .* is not made itself\. Spikes are BinaryArray\(x\)"):
        EventArray(SPIKES)


@kinds
def test_it_is_immutable_and_not_hashable(kind):
    events = kind(SPIKES)
    with pytest.raises(AttributeError, match="immutable: value cannot be set"):
        events.value = SPIKES
    for name in (*kind.__slots__, "new"):
        with pytest.raises(AttributeError, match=f"immutable: {name} cannot be set"):
            setattr(events, name, SPIKES)
        with pytest.raises(AttributeError, match=f"immutable: {name} cannot be deleted"):
            delattr(events, name)
    with pytest.raises(TypeError, match="unhashable"):
        hash(events)


@kinds
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda events: pickle.loads(pickle.dumps(events))])
def test_it_is_copied_and_pickled(kind, duplicate):
    again = duplicate(kind(SPIKES))
    assert type(again) is kind
    assert_array_equal(again, SPIKES)


# Other ranks and sizes


@of_any_rank
@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 40), (0,), (0, 40), (3, 0), (0, 0)])
def test_ranks(kind, shape):
    value = np.arange(np.prod(shape)).reshape(shape) % 3 == 1
    events = kind(value)
    assert (events.shape, events.ndim, events.size) == (shape, len(shape), value.size)
    assert_array_equal(events, value)
    assert_array_equal(events.sum(axis=0), value.sum(axis=0))
    if shape[0]:
        assert type(events[0]) is (kind if value.ndim > 1 else type(events.value))
        assert_array_equal(events[0], value[0])


@pytest.mark.parametrize("kind", [BinaryArray, WeightedArray])
def test_a_scalar_has_no_dimension(kind):
    events = kind(np.float32(3))
    assert (events.shape, events.ndim, events.size) == ((), 0, 1)
    assert repr(events) == f"{kind.__name__}(float32[])"
    assert events.sum() == (1 if kind is BinaryArray else 3)
    assert bool(events)
    with pytest.raises(TypeError, match="len"):
        len(events)
    with pytest.raises(TypeError, match="len"):
        list(events)


def test_scalars_are_not_packed_and_matrices_not_compacted():
    with pytest.raises(ShapeError, match="BitPackedArray: value has no dimension"):
        BitPackedArray(1.0)
    for value in (np.float32(1), np.ones((2, 3))):
        with pytest.raises(ShapeError, match=r"CompactArray: value has the shape .*; expected a vector"):
            CompactArray(value)


# What is active


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", [BinaryArray, BitPackedArray, CompactArray])
def test_what_is_not_zero_is_active_and_counts_as_1(kind, dtype):
    value = jnp.array([0, 1, 2, 0, 100], dtype)
    events = kind(value)
    assert events.dtype == (value.dtype if kind is BinaryArray else bool)
    assert_array_equal(jnp.asarray(events).astype(int), [0, 1, 1, 0, 1])
    assert events.sum() == 3
    assert events[2] == 1 and events[2].dtype == events.dtype
    assert [int(spike) for spike in events] == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("kind", [BinaryArray, BitPackedArray, CompactArray])
def test_nan_and_infinity_are_active_and_the_negative_zero_is_not(kind):
    events = kind(np.array([np.nan, -0.0, np.inf, -1.0, 0.0], np.float32))
    assert_array_equal(jnp.asarray(events).astype(int), [1, 0, 1, 1, 0])
    assert events[0] == 1


def test_values_of_weighted_arrays_count():
    value = np.array([0, np.nan, -2.5], np.float32)
    assert_array_equal(WeightedArray(value), value)
    assert_array_equal(WeightedArray(value.astype("complex64")), value.astype("complex64"))
    assert WeightedArray(SPIKES).dtype == bool


def test_one_kind_is_made_of_another():
    for one in (BinaryArray, BitPackedArray, CompactArray):
        for other in (BinaryArray, WeightedArray, BitPackedArray, CompactArray):
            assert_array_equal(one(other(SPIKES)), SPIKES)


@pytest.mark.parametrize("kind", [BinaryArray, BitPackedArray, CompactArray])
def test_complex_spikes_are_refused(kind):
    with pytest.raises(DtypeError, match=r"value is of dtype complex64; expected bool, integers or real numbers"):
        kind(np.ones(3, "complex64"))


@kinds
def test_what_is_no_array_is_refused(kind):
    for value in ("text", None, object()):
        with pytest.raises(InputError, match="expected an array"):
            kind(value)
    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        kind(jnp.ones(3, "float8_e4m3fn"))


# A pytree


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


# Packed bits


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
    for shape, size in [((2,), 3), ((1,), 33), ((), 3), ((1,), -1), ((3, 2), 32)]:
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
    indices = np.array([4, 1, 3] if count is None else [4, 1, 3, 99, -7])
    events = CompactArray.from_indices(indices, 5, count)
    assert events.count == 3
    assert_array_equal(events, SPIKES)
    assert events.sum() == 3


def test_numbers_are_checked():
    make = CompactArray.from_indices
    with pytest.raises(StructureError, match="the number 5 is out of range; an array of 5 has 0 to 4"):
        make(np.array([1, 5]), 5)
    with pytest.raises(StructureError, match="the number -1 is out of range"):
        make(np.array([1, -1]), 5)
    with pytest.raises(StructureError, match="a number is there more than once"):
        make(np.array([1, 2, 1]), 5)
    for count in (3, -1):
        with pytest.raises(ShapeError, match=f"count is {count}; there are 2 indices"):
            make(np.array([1, 2]), 5, count)
    for count in (1.0, np.ones(2, int)):
        with pytest.raises(DtypeError, match="expected one integer"):
            make(np.array([1, 2]), 5, count)
    with pytest.raises(DtypeError, match="expected int32 or int64"):
        make(np.array([1.0]), 5)
    with pytest.raises(ShapeError, match="expected one dimension"):
        make(np.array([[1]]), 5)


@pytest.mark.parametrize("count", [4, 99, 2, 0, -3])
def test_traced_numbers_out_of_range_are_left_out(count):
    """They cannot be checked, and kernels read the rows that they say."""
    indices = np.array([1, -1, 5, 3], np.int32)

    @jax.jit
    def make(indices, count):
        return CompactArray.from_indices(indices, 5, count)

    events = make(indices, count)
    expected = [i for i in indices[: max(count, 0)].tolist() if 0 <= i < 5]
    assert events.count == len(expected)
    assert events.indices[: len(expected)].tolist() == expected
    assert_array_equal(np.flatnonzero(events), expected)


def test_products_are_given_what_is_there():
    raw = jnp.array([0.0, 2.0, 3.0])
    assert_array_equal(BinaryArray(raw).operand_array(), raw)  # kernels look for what is not zero themselves
    assert_array_equal(WeightedArray(raw).operand_array(), raw)
    assert_array_equal(BitPackedArray(SPIKES).operand_array(), SPIKES)
