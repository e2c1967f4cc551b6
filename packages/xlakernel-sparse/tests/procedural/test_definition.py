"""The definition of procedural matrices: golden values, the oracle, and the statistics of what is drawn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import scipy.stats
from procedural_cases import MATRICES, each_matrix, make

from xlakernel.core import use_backend
from xlakernel.sparse import ProceduralMatrix
from xlakernel.sparse.operators.connections import LOGARITHM

# Seed, shape, connection, and the places of the entries in each row. They may never change.
GOLDEN = [
    (
        0,
        (3, 60),
        {"probability": 0.1},
        [[11, 13, 31, 34, 41, 56, 57], [2, 7, 15, 19, 27, 37, 40, 57], [18, 25, 26, 37, 53, 57, 58]],
    ),
    (1, (2, 1000), {"probability": 0.005}, [[177, 257, 445, 496, 882], [531, 649, 748, 808, 921]]),
    (
        2**63 + 12345,
        (2, 40),
        {"probability": 0.25},
        [[2, 3, 14, 16, 17, 22, 23, 25, 27, 28, 30, 33, 34, 35], [4, 8, 12, 16, 22, 25, 29, 31, 32, 33, 38]],
    ),
    (7, (3, 100), {"per_row": 5}, [[66, 45, 37, 99, 29], [85, 36, 47, 36, 75], [99, 2, 38, 98, 36]]),
]
# The weights of a matrix of two rows and twelve columns, with the seed 3 and the probability 0.3, at `PLACES`.
WEIGHTS = {
    "uniform": (0.133028, 0.937212, 0.394078, 0.367679, 0.34925, 0.863521, 0.151141),
    "normal": (0.49328, -0.20537, 0.67908, -0.55912, 0.77724, 1.16149, 1.62299),
}
PLACES = (0, 0, 0, 1, 1, 1, 1), (3, 4, 11, 2, 3, 6, 9)

each_backend = pytest.mark.parametrize("backend", ["numba", "jax"])


@each_backend
@pytest.mark.parametrize(("seed", "shape", "connection", "places"), GOLDEN)
def test_golden_places(seed, shape, connection, places, backend):
    expected = np.zeros(shape)
    np.add.at(expected, (np.repeat(range(shape[0]), list(map(len, places))), np.concatenate(places)), 1)
    with use_backend(backend):
        matrix = ProceduralMatrix.homogeneous(1.0, seed=seed, shape=shape, **connection)
        np.testing.assert_array_equal(matrix.todense(), expected)


@each_backend
@pytest.mark.parametrize("distribution", WEIGHTS)
def test_golden_weights(distribution, backend):
    expected = np.zeros((2, 12))
    expected[PLACES] = WEIGHTS[distribution]
    with use_backend(backend):
        matrix = getattr(ProceduralMatrix, distribution)(0.0, 1.0, seed=3, shape=(2, 12), probability=0.3)
        np.testing.assert_allclose(matrix.todense(), expected, atol=1e-5)


@pytest.mark.usefixtures("x64")
@each_matrix
def test_entries(name):
    """`tocsr` has the entries of the definition in their order, and `todense` their sums."""
    distribution, shape, connection = MATRICES[name]
    matrix, dense = make(distribution, shape, **connection)
    rows, columns, _ = oracle.entries(distribution, 2**40 + 3, shape, **connection)
    with use_backend("jax"):  # native products of the same matrices have tests of their own
        stored, transposed, dense_of_it = matrix.tocsr(), matrix.T.tocsr(), matrix.todense()
    np.testing.assert_array_equal(stored.indices, columns)
    np.testing.assert_array_equal(np.diff(stored.indptr), np.bincount(rows, minlength=shape[0])[: shape[0]])
    for found, expected in (
        (stored.to_scipy().toarray(), dense),
        (dense_of_it, dense),
        (transposed.to_scipy().toarray(), dense.T),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_key_of_jax_random_is_a_seed():
    key = jax.random.key(5)
    low, high = map(int, jax.random.bits(key, (2,), jnp.uint32))
    arguments = {"shape": (5, 50), "probability": 0.1}
    matrix = ProceduralMatrix.homogeneous(1.0, seed=key, **arguments)
    same = ProceduralMatrix.homogeneous(1.0, seed=high << 32 | low, **arguments)
    np.testing.assert_array_equal(matrix.todense(), same.todense())


def test_the_logarithm_is_within_its_error():
    f = np.concatenate([np.arange(0, 2**32, 4_194_301), 2**32 - 2 - 2 * np.arange(5000)]).astype(np.uint64)
    power = np.full(f.shape, LOGARITHM[-1], np.uint64)
    for coefficient in LOGARITHM[-2::-1]:
        power = np.uint64(coefficient) - (f * power >> np.uint64(32))
    found = f * power >> np.uint64(32)
    assert found.max() < 2**31
    np.testing.assert_allclose(found / 2**31, np.log2(1 + f / 2**32), atol=1.8e-7)


# Statistics: each test fails with a probability of about 1e-4 for numbers that are drawn well, and seeds are fixed.


@pytest.mark.parametrize("probability", [0.5, 0.1, 0.004])
def test_gaps_are_geometric(probability):
    rows = int(200 / probability**0.5)
    stored = ProceduralMatrix.homogeneous(1.0, seed=11, probability=probability, shape=(rows, 4000)).tocsr()
    flat = np.asarray(stored.coordinates()[0], np.int64) * 4000 + np.asarray(stored.indices)
    gaps = np.diff(flat) - 1
    most = math.ceil(math.log(20 / gaps.size) / math.log1p(-probability))
    edges = np.unique(np.linspace(0, most, 60).astype(int))
    observed = np.histogram(gaps, np.append(edges, gaps.max() + 2))[0]
    tail = np.append((1 - probability) ** edges.astype(float), 0)
    assert scipy.stats.chisquare(observed, -np.diff(tail) * gaps.size).pvalue > 1e-4


@pytest.mark.parametrize("connection", [{"probability": 0.05}, {"per_row": 50}])
def test_columns_are_equally_likely(connection):
    matrix = ProceduralMatrix.homogeneous(1, seed=12, shape=(20_000, 1000), **connection)
    counts = np.asarray(jnp.ones(20_000, jnp.int32) @ matrix)
    variance = 1000 * (1 - connection.get("probability", 0.001))
    chi_square = ((counts - counts.mean()) ** 2 / variance).sum()
    assert 1e-4 < scipy.stats.chi2.sf(chi_square, 999) < 1 - 1e-4
    assert abs(counts.mean() - 1000) < 4 * math.sqrt(variance / 1000)


def test_rows_and_seeds_are_independent():
    """The overlaps of all pairs of rows, of one matrix and of matrices with neighbouring seeds, are binomial."""
    dense = [
        np.asarray(ProceduralMatrix.homogeneous(1.0, seed=seed, probability=0.1, shape=(150, 3000)).todense())
        for seed in (0, 1, 2**32)
    ]
    rows = np.concatenate(dense)
    overlap = (rows @ rows.T)[np.triu_indices(450, 1)]
    mean, variance = 3000 * 0.01, 3000 * 0.01 * 0.99
    assert abs(overlap.mean() - mean) < 0.1 and abs(overlap.var() / variance - 1) < 0.03


def test_numbers_of_entries_in_rows_are_binomial():
    matrix = ProceduralMatrix.homogeneous(1, seed=13, probability=0.2, shape=(5000, 2000))
    counts = np.asarray(matrix.sum(axis=1))
    assert abs(counts.mean() - 400) < 4 * math.sqrt(320 / 5000)
    assert abs(counts.var() / 320 - 1) < 0.1


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_weights_have_their_distribution(distribution):
    matrix = getattr(ProceduralMatrix, distribution)(-1.0, 2.0, seed=14, probability=0.1, shape=(500, 4000))
    data = np.asarray(matrix.tocsr().data, np.float64)
    cumulative = scipy.stats.uniform(-1, 3).cdf if distribution == "uniform" else scipy.stats.norm(-1, 2).cdf
    assert scipy.stats.kstest(data, cumulative).pvalue > 1e-4
    assert abs(np.corrcoef(data[1:], data[:-1])[0, 1]) < 4 / math.sqrt(data.size)
    # Weights do not depend on the gaps that the same slots have.
    gaps = np.diff(np.asarray(matrix.tocsr().indices, np.int64))
    assert abs(np.corrcoef(data[1:], gaps)[0, 1]) < 4 / math.sqrt(data.size)
