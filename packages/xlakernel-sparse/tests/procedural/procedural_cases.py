"""Comparisons of products of procedural matrices with the oracle, which the tests of all backends share."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from xlakernel.sparse import BinaryArray, CompactArray, ProceduralMatrix, WeightedArray

PARAMETERS = {"homogeneous": (0.5,), "uniform": (-1.0, 2.0), "normal": (1.0, 0.5)}
OPERANDS = {
    "dense": lambda x: x,
    "binary": lambda x: BinaryArray(x > 0),
    "weighted": lambda x: WeightedArray(x * (x > 0)),
}
SEED = 2**40 + 3

#: Distribution, shape, connection. Lines of one chunk and of several, chunks of one batch and of several.
MATRICES = {
    "several chunks": ("homogeneous", (13, 900), {"probability": 0.3}),
    "one chunk": ("uniform", (20, 70), {"probability": 0.1}),
    "few entries": ("normal", (40, 100), {"probability": 0.01}),
    "all places": ("normal", (5, 230), {"probability": 1}),
    "no place": ("uniform", (4, 9), {"probability": 0}),
    "tiny probability": ("homogeneous", (3, 1000), {"probability": 1e-8}),
    "by number": ("homogeneous", (6, 50), {"per_row": 7}),
    "several chunks by number": ("normal", (3, 50), {"per_row": 300}),
    "as many as columns": ("uniform", (4, 11), {"per_row": 11}),
    "none by number": ("uniform", (4, 11), {"per_row": 0}),
    "no rows": ("homogeneous", (0, 5), {"probability": 0.5}),
    "no columns": ("normal", (5, 0), {"per_row": 3}),
    "one column": ("uniform", (60, 1), {"probability": 0.5}),
}

each_matrix = pytest.mark.parametrize("name", MATRICES)
each_operand = pytest.mark.parametrize("operand", OPERANDS)
each_distribution = pytest.mark.parametrize("distribution", PARAMETERS)


def slow_but(names, first):
    """Return *names* as parameters; all but *first* are marked slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in first)) for name in names]


def has_columns(distribution, operand):
    """Return True if products of a distribution and an operand are tested with matrices, too.

    Native products with vectors are tested with all combinations. Those with matrices are tested with equal weights and
    events, and with drawn weights and dense operands: each compiles a kernel.
    """
    return (distribution == "homogeneous") != (operand == "dense")


def make(distribution, shape, *, seed=SEED, dtype="float64", **connection):
    """Return a matrix, and the same as a dense array of the oracle."""
    given = [jnp.asarray(value, dtype) for value in PARAMETERS[distribution]]
    matrix = getattr(ProceduralMatrix, distribution)(*given, seed=seed, shape=shape, **connection)
    parameters = [float(value) for value in given]
    return matrix, oracle.dense(distribution, parameters, seed, shape, **connection)


def plain(events):
    """Return an operand of a product as a NumPy array in double precision."""
    return np.asarray(events if hasattr(events, "shape") and not hasattr(events, "value") else events.value, np.float64)


def check_products(matrix, dense, operand, columns, *, sides=("left", "right"), rtol=1e-5, atol=1e-4):
    """Compare the products from both *sides* with vectors, or with matrices of several *columns*."""
    rng = np.random.default_rng(0)
    rows, length = matrix.shape
    wrap = OPERANDS[operand]
    x = wrap(jnp.asarray(rng.normal(size=(length, *columns)), matrix.dtype))
    z = wrap(jnp.asarray(rng.normal(size=(*columns, rows)), matrix.dtype))
    for side in sides:
        found, expected = (matrix @ x, dense @ plain(x)) if side == "left" else (z @ matrix, plain(z) @ dense)
        assert found.dtype == matrix.dtype
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=rtol, atol=atol)


def check_compact(matrix, dense):
    """Compare products with spikes given by their indices."""
    rng = np.random.default_rng(0)
    rows, columns = matrix.shape
    x, z = rng.random(columns) < 0.3, rng.random(rows) < 0.3
    np.testing.assert_allclose(matrix @ CompactArray(x), dense @ x, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(CompactArray(z) @ matrix, z @ dense, rtol=1e-5, atol=1e-4)
