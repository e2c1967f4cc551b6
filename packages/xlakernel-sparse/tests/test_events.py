"""Event arrays as arrays, and their active elements."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import CSR, BinaryArray, BitPackedArray, CompactArray, EventArray, WeightedArray

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("plain_jax")]

SPIKES = np.array([False, True, False, True, True])
kinds = pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray, CompactArray])
of_any_rank = pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray])


# The interface of arrays


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
    assert np.sum(events) == 3 and np.mean(events) == pytest.approx(0.6)
    assert np.sum(events, axis=0, keepdims=True).shape == (1,)
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


@of_any_rank
def test_it_is_transposed_as_arrays_are(kind):
    x = np.arange(24).reshape(2, 3, 4) % 3
    events, value = kind(x), np.asarray(kind(x).value)
    for axes in ((), (None,), ((1, 2, 0),), (1, 2, 0), (-1, 0, 1), (np.int64(2), 0, 1)):
        found = events.transpose(*axes)
        assert type(found) is kind
        assert_array_equal(found.value, value.transpose(*axes))
    assert_array_equal(np.transpose(events), value.T)


def test_a_vector_is_its_own_transpose():
    for kind in (BinaryArray, CompactArray):
        assert_array_equal(kind(SPIKES).transpose(), SPIKES)
        assert_array_equal(kind(SPIKES).transpose(0), SPIKES)


@kinds
def test_it_is_indexed(kind):
    events = kind(SPIKES)
    assert events[1] and events[-1] and not events[0] and events[1].shape == ()
    for index in (slice(1, 4), slice(None, None, -2), np.array([1, 3]), SPIKES, jnp.array([True] * 5)):
        part = events[index]
        assert type(part) is kind
        assert_array_equal(part, SPIKES[index])
    assert_array_equal(events[None], SPIKES[None])
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
@pytest.mark.parametrize("dense", [(4,), (4, 2), (3, 4, 2), ()], ids=str)
def test_a_product_with_a_dense_array_of_another_shape_is_refused(kind, dense):
    events, x = kind(SPIKES), np.ones(dense, np.float32)
    expected = rf"x has the shape {re.escape(str(dense))}; with events of shape \(5,\) it must be \(5,\) or \(\.\.\., "
    for array in (x, jnp.asarray(x)):
        with pytest.raises(ShapeError, match=rf"{kind.__name__} @ x: {expected}5, k\)\.$"):
            events @ array
    with pytest.raises(ShapeError, match=rf"x @ {kind.__name__}: {expected}k, 5\)\.$"):
        x @ events


@of_any_rank
@pytest.mark.parametrize(
    ("events", "dense", "expected"),
    [
        ((2, 5), (2,), r"\(5,\) or \(\.\.\., 5, k\)\.$"),
        ((3, 2, 5), (4, 5, 2), r"\(5,\) or \(\.\.\., 5, k\), with leading dimensions that broadcast to \(3,\)\.$"),
    ],
    ids=str,
)
def test_a_product_of_events_of_higher_rank_is_refused(kind, events, dense, expected):
    with pytest.raises(ShapeError, match=rf"with events of shape {re.escape(str(events))} it must be {expected}"):
        kind(np.ones(events, bool)) @ np.ones(dense, np.float32)
    with pytest.raises(ShapeError, match=rf"{kind.__name__}: x has the shape .* it must be \(2,\) or \(\.\.\., k, 2\)"):
        np.ones((3, 4), np.float32) @ kind(np.ones((2, 5), bool))


def test_an_event_without_dimensions_has_no_product():
    with pytest.raises(
        ShapeError, match=r"BinaryArray @ x: events of shape \(\) have no product with x; write events \* x"
    ):
        BinaryArray(True) @ np.ones(3)


@pytest.mark.parametrize("promotion", ["raise", "warn"])
@kinds
def test_no_rank_is_promoted(kind, promotion):
    with jax.numpy_rank_promotion(promotion):
        events = kind(SPIKES)
        assert_array_equal(events.value, SPIKES)
        assert_array_equal(events @ np.ones((5, 2), np.float32), SPIKES @ np.ones((5, 2)))
        if kind is not CompactArray:
            assert_array_equal(kind(np.stack([SPIKES] * 2)).value, [SPIKES] * 2)


@kinds
def test_no_dtype_is_promoted(kind):
    with jax.numpy_dtype_promotion("strict"):
        assert_array_equal(kind(SPIKES).value, SPIKES)
        assert_array_equal(kind(SPIKES.astype(np.float32)).value, SPIKES)


@kinds
def test_others_are_not_computed_with(kind):
    events = kind(SPIKES)
    for compute in (lambda: events + "text", lambda: None * events, lambda: events @ [1, 2], lambda: events < "text"):
        with pytest.raises(TypeError):
            compute()
    assert (events == "text") is False


@kinds
def test_the_truth_of_an_array_is_ambiguous(kind):
    with pytest.raises(ValueError, match="ambiguous"):
        bool(kind(SPIKES))
    assert bool(kind(SPIKES[1:2])) and not kind(SPIKES[:1])


def test_the_abstract_base_names_its_subclasses():
    with pytest.raises(InputError, match=r"EventArray is an abstract base class\. Spikes are BinaryArray\(x\)"):
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


# Active elements


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", [BinaryArray, BitPackedArray, CompactArray])
def test_values_other_than_zero_are_active_and_count_as_1(kind, dtype):
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
def test_other_types_are_refused(kind):
    for value in ("text", None, object()):
        with pytest.raises(InputError, match="expected an array"):
            kind(value)
    with pytest.raises(DtypeError, match="float8_e4m3fn"):
        kind(jnp.ones(3, "float8_e4m3fn"))


def test_operand_array_of_products():
    raw = jnp.array([0.0, 2.0, 3.0])
    assert_array_equal(BinaryArray(raw).operand_array(), raw)  # products test for zeros themselves
    assert_array_equal(WeightedArray(raw).operand_array(), raw)
    assert_array_equal(BitPackedArray(SPIKES).operand_array(), SPIKES)


@pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray, CompactArray])
@pytest.mark.parametrize("byte", [2, 4, 255])
def test_masks_of_bytes_other_than_one(kind, byte):
    mask = np.frombuffer(bytes([byte, 0] * 50), bool)
    matrix = CSR.random(jax.random.key(0), (100, 20), per_row=5)
    np.testing.assert_allclose(kind(mask) @ matrix, (np.arange(100) % 2 == 0) @ np.asarray(matrix.todense()), rtol=1e-5)


def test_no_more_elements_are_active_than_there_are():
    mask = np.frombuffer(bytes([127] * 7), bool)
    events = jax.jit(CompactArray)(mask)
    assert int(events.count) <= 7
