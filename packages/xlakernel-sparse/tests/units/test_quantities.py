"""Quantities with units as weights and operands: results have the product of the units, or an error is raised."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from quantities import AMPERE, MILLIVOLT, SIEMENS, VOLT, Quantity

from xlakernel import sparse
from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import COO, CSC, CSR, BinaryArray, CompactArray, FixedNumPerPre, ProceduralMatrix, WeightedArray
from xlakernel.sparse.networks import Network, Population, Projection

DENSE = np.array([[1, 0, 2], [0, -3, 4], [5, 6, 0]], np.float32)
X = np.array([0.5, 0, 2], np.float32)
SPIKES = np.array([True, False, True])
PLAIN = {kind: kind.from_dense(DENSE) for kind in (CSR, CSC, COO)}
PLAIN["FixedNumPerPre"] = FixedNumPerPre.from_dense(DENSE)
PLAIN["prepared"] = PLAIN[CSR].prepare()
MILLIAMPERE = MILLIVOLT * SIEMENS

matrices = pytest.mark.parametrize("plain", PLAIN.values(), ids=map(str, PLAIN))


def with_unit(plain, unit=SIEMENS):
    return plain.with_data(plain.data * unit)


def check(found, expected, unit):
    """Check that *found*, an array or a matrix, is *expected* with this unit."""
    if isinstance(expected, sparse.SparseMatrix):
        assert type(found) is type(expected)
        assert_array_equal(found.todense().mantissa, expected.todense())
        assert found.data.unit == unit
        return
    assert isinstance(found, Quantity) and found.unit == unit
    assert_allclose(found.mantissa, expected, rtol=1e-6)
    assert found.mantissa.dtype == expected.dtype


#: Products of a matrix and an operand, as functions of both, and the operand.
PRODUCTS = {
    "A @ x": (lambda A, x: A @ x, X),
    "A @ X": (lambda A, x: A @ x, DENSE),
    "x @ A": (lambda A, x: A.__rmatmul__(x), X),
    "A.dot(x)": (lambda A, x: A.dot(x), X),
    "A * x": (lambda A, x: (A * x).todense(), X),
    "A * 2": (lambda A, x: (A * x).todense(), np.float32(2)),
    "A.multiply(X)": (lambda A, x: A.multiply(x).todense(), DENSE),
}


@matrices
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_products_have_the_product_of_the_units(plain, product):
    multiply, x = product
    expected = multiply(plain, x)
    check(multiply(with_unit(plain), x), expected, SIEMENS)
    check(multiply(plain, x * MILLIVOLT), expected, MILLIVOLT)
    check(multiply(with_unit(plain), x * MILLIVOLT), expected, MILLIAMPERE)


@matrices
@pytest.mark.parametrize("events", [BinaryArray(SPIKES), WeightedArray(X), CompactArray(SPIKES)], ids=str)
def test_products_with_events_have_the_unit_of_the_weights(plain, events):
    check(with_unit(plain) @ events, plain @ events, SIEMENS)
    check(events @ with_unit(plain), events @ plain, SIEMENS)


def test_events_multiply_dense_quantities():
    events = BinaryArray(SPIKES)
    check(events @ (DENSE * VOLT), events @ DENSE, VOLT)
    check(events.__rmatmul__(DENSE * VOLT), DENSE @ events, VOLT)


def test_products_of_matrices():
    A, B = with_unit(PLAIN[CSR]), PLAIN[CSC]
    check(A @ B, PLAIN[CSR] @ B, SIEMENS)
    check(A @ with_unit(B, MILLIVOLT), PLAIN[CSR] @ B, MILLIAMPERE)
    check(A * with_unit(B, MILLIVOLT), PLAIN[CSR] * B, MILLIAMPERE)
    check(sparse.kron(A, with_unit(B, MILLIVOLT)), sparse.kron(PLAIN[CSR], B), MILLIAMPERE)


#: Methods that are linear in the weights.
LINEAR = {
    "todense": lambda A: A.todense(),
    "toarray": lambda A: A.toarray(),
    "sum": lambda A: A.sum(),
    "sum(0)": lambda A: A.sum(axis=0),
    "mean(1)": lambda A: A.mean(axis=1),
    "diagonal": lambda A: A.diagonal(1),
    "trace": lambda A: A.trace(),
    "max": lambda A: A.max(),
    "min(0)": lambda A: A.min(axis=0),
    "nanmax": lambda A: A.nanmax(1),
    "nanmin": lambda A: A.nanmin(),
    "T": lambda A: A.T,
    "transpose": lambda A: A.transpose(),
    "tocsr": lambda A: A.tocsr(),
    "tocsc": lambda A: A.tocsc(),
    "tocoo": lambda A: A.tocoo(),
    "A[1]": lambda A: A[1],
    "A[:, 1]": lambda A: A[:, 1],
    "A[1, 2]": lambda A: A[1, 2],
    "A[1:]": lambda A: A[1:],
    "A[[2, 0]]": lambda A: A[[2, 0]],
    "A[rows, columns]": lambda A: A[np.array([0, 2]), np.array([2, 2])],
    "-A": lambda A: -A,
    "A * 2": lambda A: A * 2,
    "2 * A": lambda A: 2 * A,
    "A / 2": lambda A: A / 2,
    "A + A": lambda A: A + A,
    "A - A": lambda A: A - A,
    "A + 0": lambda A: A + 0,
    "sum([A, A])": lambda A: sum([A, A]),
    "abs": abs,
    "astype": lambda A: A.astype(jnp.float16),
    "conj": lambda A: A.conj(),
    "real": lambda A: A.real,
    "sum_duplicates": lambda A: A.sum_duplicates(),
    "eliminate_zeros": lambda A: A.eliminate_zeros(),
    "hstack": lambda A: sparse.hstack([A, A], format="csr"),
    "block_diag": lambda A: sparse.block_diag([A, A], format="coo"),
    "tril": lambda A: sparse.tril(A.tocsr()),
    "maximum": lambda A: A.maximum(A.T),
}


@matrices
@pytest.mark.parametrize("method", LINEAR.values(), ids=LINEAR)
def test_linear_methods_keep_the_unit(plain, method):
    check(method(with_unit(plain)), method(plain), SIEMENS)


@matrices
def test_positions_and_counts_have_no_unit(plain):
    A = with_unit(plain)
    assert_array_equal(A.argmax(0), plain.argmax(0))
    assert_array_equal(A.argmin(), plain.argmin())
    assert_array_equal(A.count_nonzero(1), plain.count_nonzero(1))
    assert_array_equal(A.nonzero(), plain.nonzero())
    assert (A.dtype, A.nnz, A.homogeneous) == (plain.dtype, plain.nnz, plain.homogeneous)
    assert "unit 1 A^1 V^-1" in repr(A)


def test_matrices_are_made_of_quantities():
    plain = PLAIN[CSR]
    for A in (CSR((plain.data * VOLT, *plain.structure), shape=plain.shape), CSR.from_dense(DENSE * VOLT)):
        check(A, plain, VOLT)
    one = CSR((np.ones(1, np.float32) * VOLT, *plain.structure), shape=plain.shape)
    assert one.homogeneous
    check(one.sum(), jnp.float32(plain.nnz), VOLT)
    fixed = PLAIN["FixedNumPerPre"]
    check(FixedNumPerPre(fixed.data * VOLT, fixed.indices, shape=fixed.shape), fixed, VOLT)
    with pytest.raises(ShapeError, match="data has the shape"):
        plain.with_data(jnp.ones(2) * VOLT)


def test_prepared_matrices_stay_prepared():
    A = with_unit(PLAIN["prepared"])
    assert A.prepared is not None
    check(A.with_data(2 * A.data.mantissa * VOLT) @ X, 2 * (PLAIN[CSR] @ X), VOLT)
    check(with_unit(PLAIN[CSR]).prepare() @ X, PLAIN[CSR] @ X, SIEMENS)


def test_units_are_converted_to_that_of_the_first():
    A = with_unit(PLAIN[CSR], MILLIVOLT)
    B = with_unit(PLAIN["prepared"], VOLT)
    check(A + B, PLAIN[CSR] * 1001, MILLIVOLT)
    check(B - with_unit(PLAIN[CSR], VOLT), PLAIN[CSR] * 0, VOLT)
    check(A + DENSE * VOLT, DENSE * np.float32(1001), MILLIVOLT)
    check(sparse.vstack([A, B]), sparse.vstack([PLAIN[CSR], PLAIN[CSR] * 1000]), MILLIVOLT)
    check(A.setdiag(X * VOLT), PLAIN[CSR].setdiag(1000 * X), MILLIVOLT)


def arrays():
    A = PLAIN[CSR]
    return A.data, *A.structure


@pytest.mark.parametrize("name", ["csrmv", "csrmm", "binary_csrmv", "binary_csrmm", "weighted_csrmv", "weighted_csrmm"])
def test_functions_of_arrays(name):
    multiply, (data, *structure) = getattr(sparse, name), arrays()
    x = X if name.endswith("v") else DENSE
    expected = multiply(data, *structure, x, shape=(3, 3))
    check(multiply(data * SIEMENS, *structure, x, shape=(3, 3)), expected, SIEMENS)
    check(multiply(data, *structure, x * VOLT, shape=(3, 3)), expected, VOLT)
    check(multiply(data * SIEMENS, *structure, x * MILLIVOLT, shape=(3, 3), backend="jax"), expected, MILLIAMPERE)


def test_other_functions_of_arrays():
    data, *structure = arrays()
    q, shape = data * SIEMENS, (3, 3)
    rows = sparse.csr_slice_rows(data, *structure, [2, 0], shape=shape)
    check(sparse.csr_slice_rows(q, *structure, [2, 0], shape=shape), rows, SIEMENS)
    moved, *transposed = sparse.csr_to_csc(q, *structure, shape=shape)
    expected = sparse.csr_to_csc(data, *structure, shape=shape)
    check(moved, expected[0], SIEMENS)
    assert_array_equal(transposed[0], expected[1])
    one, *_ = sparse.csr_to_csc(data[:1] * SIEMENS, *structure, shape=shape)
    check(one, data[:1], SIEMENS)
    sampled = sparse.csr_sddmm(*structure, X, X, shape=shape)
    check(sparse.csr_sddmm(*structure, X * SIEMENS, X * MILLIVOLT, shape=shape), sampled, MILLIAMPERE)
    check(sparse.binary_densemv(weights=DENSE * VOLT, spikes=SPIKES), sparse.binary_densemv(DENSE, SPIKES), VOLT)
    events = SPIKES[:, None]
    check(sparse.binary_densemm(DENSE * VOLT, events), sparse.binary_densemm(DENSE, events), VOLT)


def test_updates_convert_trace_and_limits_to_the_unit_of_the_weights():
    data, *structure = arrays()
    expected = sparse.update_csr_on_binary_pre(data, *structure, SPIKES, 1000 * X, 0, 900.0, shape=(3, 3))
    found = sparse.update_csr_on_binary_pre(data * MILLIVOLT, *structure, SPIKES, X * VOLT, 0, 0.9 * VOLT, shape=(3, 3))
    check(found, expected, MILLIVOLT)
    transposed = sparse.csr_transpose(*structure, shape=(3, 3))
    lower = 2000 * np.ones(6, np.float32)
    expected = sparse.update_csr_on_binary_post(data, *transposed, 1000 * X, SPIKES, lower, shape=(3, 3))
    found = sparse.update_csr_on_binary_post(
        data * MILLIVOLT, *transposed, X * VOLT, SPIKES, lower / 1000 * VOLT, shape=(3, 3)
    )
    check(found, expected, MILLIVOLT)
    expected = sparse.update_dense_on_binary_pre(DENSE, SPIKES, 1000 * X)
    check(sparse.update_dense_on_binary_pre(DENSE * MILLIVOLT, SPIKES, X * VOLT), expected, MILLIVOLT)


@pytest.mark.parametrize("kind", [CSR, CSC, "FixedNumPerPre", "prepared"], ids=str)
def test_updates_of_matrices(kind):
    plain = PLAIN[kind]
    A = with_unit(plain, MILLIVOLT)
    expected = plain.update_on_pre(SPIKES, 1000 * X, w_max=900.0)
    found = A.update_on_pre(SPIKES, X * VOLT, w_max=0.9 * VOLT)
    check(found, expected, MILLIVOLT)
    check(found @ SPIKES, expected @ SPIKES, MILLIVOLT)
    check(A.update_on_post(X * VOLT, SPIKES), plain.update_on_post(1000 * X, SPIKES), MILLIVOLT)

    def double(weight, pre, post, params):
        return Quantity(weight.mantissa * 2, weight.unit) if isinstance(weight, Quantity) else weight * 2

    applied = plain.apply_on_pre(double, SPIKES)
    check(A.apply_on_pre(double, SPIKES), applied, MILLIVOLT)


def test_deliveries_convert_to_the_unit_of_the_ring():
    A, ring = PLAIN[CSR], jnp.ones((3, 3))
    expected = A.delay_deliver(ring, 2 * X, 1, 0, weighted=True)
    found = (with_unit(A) / 1000).delay_deliver(ring * AMPERE, 2000 * X * VOLT, 1, 0, weighted=True)
    check(found, expected, AMPERE)
    check(with_unit(A).delay_deliver(ring * SIEMENS, SPIKES, 1, 0), A.delay_deliver(ring, SPIKES, 1, 0), SIEMENS)


def test_other_products_take_quantities():
    drawn = ProceduralMatrix.uniform(0.0, 1.0, seed=1, per_row=2, shape=(3, 3))
    check(drawn @ (X * VOLT), drawn @ X, VOLT)
    check(drawn.__rmatmul__(X * VOLT), drawn.__rmatmul__(X), VOLT)
    sharded = PLAIN[CSR].shard(jax.make_mesh((1,), ("d",)), "d")
    check(sharded @ (X * VOLT), sharded @ X, VOLT)


@matrices
def test_transformations(plain):
    A, x = with_unit(plain), X * MILLIVOLT
    check(jax.jit(lambda A, x: A @ x)(A, x), plain @ X, MILLIAMPERE)
    check(jax.jit(lambda A: 2 * A)(A), 2 * plain, SIEMENS)
    check(jax.jit(lambda A: A.sum())(A), plain.sum(), SIEMENS)
    found = jax.vmap(lambda data: A.with_data(data) @ x)(jnp.stack([plain.data, plain.data]) * SIEMENS)
    check(found, jnp.stack([plain @ X, plain @ X]), MILLIAMPERE)
    batch = jax.vmap(lambda scale: A * scale)(jnp.arange(2.0))
    check(jax.vmap(lambda A: A @ X)(batch), jnp.stack([0 * (plain @ X), plain @ X]), SIEMENS)
    expected = jax.grad(lambda data: (plain.with_data(data) @ X).sum())(plain.data)
    gradient = jax.grad(lambda data: (A.with_data(data) @ x).mantissa.sum())(A.data)
    assert_allclose(gradient.mantissa, expected, rtol=1e-6)


def test_matrices_are_copied_and_pickled():
    A = with_unit(PLAIN["prepared"])
    for other in (copy.deepcopy(A), pickle.loads(pickle.dumps(A))):
        check(other @ X, PLAIN[CSR] @ X, SIEMENS)


#: Methods that are refused for weights with a unit: without a meaning, or not supported.
REFUSED = {
    "sqrt": lambda A: A.sqrt(),
    "A ** 2": lambda A: A**2,
    "expm1": lambda A: A.expm1(),
    "maximum": lambda A: A.maximum(0),
    "A / q": lambda A: PLAIN[CSR] / (2.0 * VOLT),
    "solve": lambda A: A.solve(X),
    "solve of q": lambda A: PLAIN[CSR].solve(X * VOLT),
    "to_scipy": lambda A: A.to_scipy(),
    "coo.to_scipy": lambda A: A.tocoo().to_scipy(),
    "to_bcoo": lambda A: A.to_bcoo(),
    "to_bcsr": lambda A: A.to_bcsr(),
    "save_npz": lambda A: sparse.save_npz("not_written.npz", A),
    "shard": lambda A: A.shard(jax.make_mesh((1,), ("d",)), "d"),
    "BinaryArray": lambda A: BinaryArray(X * VOLT),
    "WeightedArray": lambda A: WeightedArray(X * VOLT),
    "ProceduralMatrix": lambda A: ProceduralMatrix.homogeneous(1.0 * VOLT, seed=1, per_row=2, shape=(3, 3)),
    "diags_array": lambda A: sparse.diags_array(X * VOLT),
    "indices": lambda A: CSR((A.data, A.indices * VOLT, A.indptr), shape=A.shape),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_no_unit_is_dropped(call):
    with pytest.raises(InputError, match=r"is a quantity with the unit .*expected an array.*in_unit"):
        call(with_unit(PLAIN[CSR]))


def test_networks_have_no_units():
    population = Population(numba.njit(lambda state, arrived, p, rng: (state, False)), 3)
    with pytest.raises(InputError, match=r"matrix\.data is a quantity with the unit 1 V"):
        Network(population, [Projection(with_unit(PLAIN[CSR], VOLT), 1, "excitatory")])


#: Values whose units do not fit each other, and the error.
UNFIT = {
    "A + plain": (lambda A: A + PLAIN[CSR], "x has no unit; expected 1 A"),
    "plain + A": (lambda A: PLAIN[CSR] + A, "x has the unit 1 A.* expected none"),
    "A - other": (lambda A: A - with_unit(PLAIN[CSR], VOLT), "x has the unit 1 V.*expected 1 A"),
    "A + 1": (lambda A: A + 1, "x has no unit"),
    "vstack": (lambda A: sparse.vstack([A, PLAIN[CSR]]), "a matrix has no unit"),
    "setdiag": (lambda A: A.setdiag(1.0), "values has no unit"),
    "trace": (lambda A: A.update_on_pre(SPIKES, X), "post_trace has no unit"),
    "plain": (lambda A: PLAIN[CSR].update_on_post(X * VOLT, SPIKES), "pre_trace has the unit 1 V.*expected none"),
    "other": (lambda A: A.update_on_pre(SPIKES, X * VOLT), "post_trace has the unit 1 V.*expected 1 A"),
    "limit": (lambda A: A.update_on_pre(SPIKES, X * SIEMENS, 0, 1.0), "w_max has no unit"),
    "ring": (lambda A: A.delay_deliver(jnp.ones((3, 3)), SPIKES, 1, 0), "has the unit 1 A.*expected none"),
    "data": (lambda A: PLAIN[CSR].delay_deliver(jnp.ones((3, 3)) * VOLT, SPIKES, 1, 0), "has no unit; expected 1 V"),
    "maximum": (lambda A: A.maximum(PLAIN[CSR]), "other has no unit"),
}


@pytest.mark.parametrize("case", UNFIT.values(), ids=UNFIT)
def test_units_that_do_not_fit(case):
    call, message = case
    with pytest.raises(DtypeError, match=message):
        call(with_unit(PLAIN[CSR]))


def test_quantities_of_saiunit():
    u = pytest.importorskip("saiunit", reason="saiunit is not installed; the other tests have quantities of their own")
    plain = PLAIN[CSR]
    A, x = plain.with_data(plain.data * u.siemens), X * u.mV
    for found in (A @ x, jax.jit(lambda A, x: A @ x)(A, x), sparse.csrmv(A.data, *A.structure, x, shape=A.shape)):
        assert found.unit == u.siemens * u.mV
        assert_allclose(found.to_decimal(u.mA), plain @ X, rtol=1e-6)
    assert_allclose((x @ A).to_decimal(u.mA), X @ plain, rtol=1e-6)
    assert_allclose((BinaryArray(SPIKES) @ A).to_decimal(u.siemens), BinaryArray(SPIKES) @ plain, rtol=1e-6)
    assert_allclose((2 * u.mV * A).sum().to_decimal(u.mA), 2 * plain.sum(), rtol=1e-6)
    assert_allclose((A + A * (1000 * u.UNITLESS)).sum().to_decimal(u.siemens), 1001 * plain.sum(), rtol=1e-6)
    updated = A.update_on_pre(SPIKES, X * u.mS, 0, 2 * u.siemens)
    assert_allclose(updated.data.to_decimal(u.siemens), plain.update_on_pre(SPIKES, X / 1000, 0, 2).data, rtol=1e-6)
    with pytest.raises(DtypeError, match="post_trace has the unit mV; expected S"):
        A.update_on_pre(SPIKES, x)
    with pytest.raises(InputError, match="with the unit S"):
        A.sqrt()
