"""Numbers of programs that XLA compiles for the first eager use of a method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.sparse import CSR, BitPackedArray, CompactArray

pytestmark = pytest.mark.usefixtures("plain_jax")

#: Uses of a matrix, and the most programs for each. No other test has arrays of these shapes: programs that were
#: compiled before would not be counted.
USES = {
    "todense": (lambda A: A.todense(), 1),
    "diagonal": (lambda A: A.diagonal(), 1),
    "coordinates": (lambda A: A.tocoo(), 3),
    "columns": (lambda A: A.tocsc(), 1),
    "sum": (lambda A: A.sum(), 4),
    "rows of it": (lambda A: A[[0, 2]], 0),  # selected on the host
    "a row": (lambda A: A[1], 2),
    "times a number": (lambda A: 2 * A, 3),
    "times a dense array": (lambda A: A * np.ones(A.shape, np.float32), 7),
    "squared": (lambda A: A**2, 4),
    "prepared": (lambda A: A.prepare(), 2),
}


@pytest.fixture(scope="module")
def matrix():
    return CSR.from_dense(jnp.eye(43, 47))


@pytest.mark.parametrize(("use", "most"), USES.values(), ids=USES)
def test_uses_of_a_matrix(matrix, compilations, use, most):
    assert min(most, 1) <= compilations(lambda: use(matrix)) <= most


def test_making_one(compilations):
    dense, key = jnp.eye(41, 47), jax.random.key(0)
    assert 0 < compilations(lambda: CSR.from_dense(dense)) <= 7
    assert 0 < compilations(lambda: CSR.random(key, (37, 47), density=0.2)) <= 7


@pytest.mark.parametrize("kind", [BitPackedArray, CompactArray])
def test_event_arrays(kind, compilations):
    spikes = jnp.arange(53) % 3 == 0
    assert 0 < compilations(lambda: kind(spikes).value) <= 2
