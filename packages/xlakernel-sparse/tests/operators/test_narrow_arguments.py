"""Arguments of plastic updates, deliveries and matrices that JAX's conversions would change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError
from xlakernel.sparse import (
    CSR,
    ProceduralMatrix,
    csr_apply_on_pre,
    csr_delay_deliver,
    csr_slice_rows,
    update_csr_on_binary_pre,
    update_dense_on_binary_pre,
)

INDICES, INDPTR = jnp.array([0, 1, 2], jnp.int32), jnp.array([0, 3], jnp.int32)
each_backend = pytest.mark.parametrize("backend", [None, "jax"])


def deliver(slots, delays, t, data=(1.0, 2.0, 3.0), backend=None):
    ring, spikes = jnp.zeros((slots, 3)), jnp.array([True])
    return csr_delay_deliver(ring, spikes, jnp.array(data), INDICES, INDPTR, delays, t, shape=(1, 3), backend=backend)


@each_backend
@pytest.mark.parametrize("t", [np.int8(100), jnp.int8(100), np.uint8(100), np.int16(100), jnp.uint32(100), -200])
def test_a_time_of_any_integer_dtype(t, backend):
    expected = np.zeros((300, 3))
    for column, slot in enumerate((101, 102, 103)):
        expected[slot, column] = column + 1
    delays = jnp.array([1, 2, 3], jnp.int8)
    assert_array_equal(deliver(300, delays, t, backend=backend), expected)


@pytest.mark.parametrize(
    "delays",
    [[1, 1, 99], (1, 1, 0), np.array([2**32 + 1, 1, 1]), 2**32 + 1, np.full(3, 2**33), np.int64(2**32 + 1), 7],
    ids=str,
)
def test_known_delays_out_of_range(delays):
    with pytest.raises(ArgumentError, match="a ring of 3 slots allows 1 to 2"):
        deliver(3, delays, 0)


def test_delays_in_a_list():
    assert_array_equal(deliver(3, [1, 2, 1], 0), deliver(3, jnp.array([1, 2, 1]), 0))


def test_weights_of_another_rank_are_refused():
    with pytest.raises(ShapeError, match=r"data has the shape \(3, 1\)"):
        deliver(3, 1, 0, data=((1.0,), (2.0,), (3.0,)))


@each_backend
def test_no_rows(backend):
    indptr = jnp.zeros(1, jnp.int32)

    def total(data):
        ring = csr_delay_deliver(
            jnp.ones((3, 3)), jnp.zeros(0, bool), data, INDICES, indptr, 1, 0, shape=(0, 3), backend=backend
        )
        return ring.sum()

    value, gradient = jax.value_and_grad(total)(jnp.ones(3))
    assert value == 9 and not gradient.any()


def test_limits_beyond_the_dtype_of_the_weights():
    w = jnp.array([250, 1, 1], jnp.uint8)
    trace = jnp.full(3, 5, jnp.uint8)

    def update(w_min, w_max):
        return update_csr_on_binary_pre(w, INDICES, INDPTR, jnp.array([True]), trace, w_min, w_max, shape=(1, 3))

    assert_array_equal(update(None, 300), [255, 6, 6])
    assert_array_equal(update(-1, None), [255, 6, 6])
    assert_array_equal(jax.jit(update)(-(2**31), 2**31 - 1), [255, 6, 6])


@each_backend
def test_bools_of_any_bytes_count_once(backend):
    spikes = np.full(1, 2, np.uint8).view(bool)
    found = update_csr_on_binary_pre(jnp.zeros(3), INDICES, INDPTR, spikes, jnp.ones(3), shape=(1, 3), backend=backend)
    assert_array_equal(found, np.ones(3))
    assert_array_equal(update_dense_on_binary_pre(jnp.zeros((1, 3)), spikes, jnp.ones(3), backend=backend), [[1, 1, 1]])
    assert_array_equal(
        csr_delay_deliver(jnp.zeros((2, 3)), spikes, jnp.ones(3), INDICES, INDPTR, 1, 0, shape=(1, 3), backend=backend),
        [[0, 0, 0], [1, 1, 1]],
    )


def test_states_that_cannot_hold_what_a_rule_returns():
    for state, rule in ((jnp.ones(3), lambda w, *_: w + 1j), (jnp.ones(3, int), lambda w, *_: w + 0.5)):
        with pytest.raises(DtypeError, match="rule returns numbers of dtype"):
            csr_apply_on_pre(rule, state, INDICES, INDPTR, jnp.array([True]), shape=(1, 3))


@each_backend
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_rows_of_any_integer_dtype(dtype, backend):
    n = 1000
    A = CSR((jnp.arange(n, dtype=jnp.float32), jnp.zeros(n, jnp.int32), jnp.arange(n + 1)), (n, 1))
    rows = jnp.array([0, 100, 127], dtype)
    found = csr_slice_rows(A.data, A.indices, A.indptr, rows, shape=A.shape, backend=backend)
    assert_array_equal(found[:, 0], [0, 100, 127])


def test_a_weak_type_is_kept_in_elementwise_products():
    A = CSR((jnp.ones(3, jnp.bfloat16), INDICES, INDPTR), (1, 3))
    weak = jnp.broadcast_to(jnp.asarray(2.0), 3)
    assert weak.weak_type and (A * weak).dtype == (A.tocoo() * weak).dtype == jnp.bfloat16


def test_seeds_and_dtypes_of_procedural_matrices():
    def matrix(seed):
        return ProceduralMatrix.uniform(0.0, 1.0, seed=seed, probability=0.5, shape=(4, 4))

    with pytest.raises(InputError, match="expected an integer from 0"):
        matrix(jnp.array(-1))
    key = jax.random.PRNGKey(3)
    assert_array_equal(matrix(key).todense(), matrix(jax.random.wrap_key_data(key)).todense())
    with pytest.raises(DtypeError, match="uniform weights are floating-point"):
        matrix(0).astype(int)
    with pytest.raises(ArgumentError, match="probability is traced"):
        jax.jit(lambda p: ProceduralMatrix.homogeneous(1.0, seed=0, probability=p, shape=(4, 4)).todense())(0.5)


def test_a_part_of_a_matrix_stays_on_its_device():
    device = jax.devices("cpu")[-1]
    A = jax.device_put(CSR.from_dense(jnp.eye(4)), device)
    part = A[[1, 2]]
    assert all(array.devices() == {device} for array in (part.data, part.indices, part.indptr))


@pytest.mark.parametrize("number", [np.int64(2**40 + 1), np.array(2**40 + 1)])
def test_integers_that_jax_would_wrap(number):
    A = CSR((jnp.ones(3), INDICES, INDPTR), shape=(1, 3))
    for what, call in (
        ("t", lambda: deliver(3, 1, number)),
        ("rows", lambda: csr_slice_rows(A.data, INDICES, INDPTR, number.reshape(1), shape=A.shape)),
        ("w_max", lambda: A.update_on_pre(jnp.ones(1, bool), jnp.ones(3), w_max=number)),
        ("data", lambda: CSR((np.full(3, number), INDICES, INDPTR), shape=(1, 3))),
    ):
        with pytest.raises(DtypeError, match=rf"{what} holds 1099511627777; int32 ranges from .*jax_enable_x64"):
            call()
    with pytest.raises(InputError, match=r"t is .* of type int; .* JAX's integers go up to 2147483647"):
        deliver(3, 1, 2**40)


def test_masked_elements_are_refused():
    with pytest.raises(InputError, match=r"from_dense: dense is .*x.filled\(0\)"):
        CSR.from_dense(np.ma.masked_equal(np.eye(2), 1))


def test_bounds_whose_difference_exceeds_half_precision():
    A = ProceduralMatrix.uniform(jnp.float16(-40000), jnp.float16(40000), seed=1, probability=0.5, shape=(20, 50))
    assert jnp.isfinite(A.todense()).all()
    assert abs(A.tocsr().data).max() <= 40000


def test_compressed_columns_have_no_delivery():
    with pytest.raises(AttributeError, match=r"A.tocsr\(\).delay_deliver"):
        _ = CSR.from_dense(np.eye(2)).tocsc().delay_deliver
