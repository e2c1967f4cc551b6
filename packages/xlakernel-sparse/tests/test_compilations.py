"""Numbers of programs that XLA compiles for the first eager use of a method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlakernel.sparse import CSR, BinaryArray, BitPackedArray, CompactArray

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
    "absolute values": (abs, 3),
    "prepared": (lambda A: A.tocsr().prepare(), 2),
}

FURTHER = (
    lambda A: A**0.5,
    lambda A: BinaryArray(jnp.ones(A.shape[0], bool)) @ A,
    lambda A: CompactArray(jnp.ones(A.shape[0], bool)) @ A,
    lambda A: CSR.from_dense(np.eye(*A.shape)),
    lambda A: CSR.random(jax.random.key(0), A.shape, density=0.2),
)
OF_COMPRESSED = (
    lambda A: A.update_on_pre(jnp.ones(A.shape[0], bool), jnp.ones(A.shape[1])),
    lambda A: A.update_on_post(jnp.ones(A.shape[0]), jnp.ones(A.shape[1], bool)),
    lambda A: A.apply_on_pre(take_first, jnp.ones(A.shape[0], bool), pre_vals=np.ones(A.shape[0]), params=1.0),
    lambda A: A.delay_deliver(jnp.zeros((2, A.shape[1])), jnp.ones(A.shape[0], bool), jnp.ones(1, int), 0),
)


def take_first(state, pre, post, params):
    return pre


@pytest.fixture(scope="module")
def matrix():
    return CSR.from_dense(jnp.eye(43, 47))


@pytest.mark.parametrize(("use", "most"), USES.values(), ids=USES)
def test_uses_of_a_matrix(matrix, compilations, use, most):
    assert min(most, 1) <= compilations(lambda: use(matrix)) <= most


@pytest.mark.parametrize("form", [CSR.tocsr, CSR.tocoo, CSR.prepare], ids=["rows", "coordinates", "prepared"])
@pytest.mark.parametrize("use", [*(use for use, _ in USES.values()), *FURTHER])
def test_a_second_use_compiles_nothing(matrix, compilations, form, use):
    A = form(matrix)
    use(A)
    assert compilations(lambda: use(A)) == 0


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("use", OF_COMPRESSED)
def test_a_second_use_of_compressed_rows_compiles_nothing(matrix, compilations, prepare, use):
    A = matrix.prepare() if prepare else matrix
    use(A)
    assert compilations(lambda: use(A)) == 0


def test_powers_of_equal_numbers_have_their_own_dtypes(matrix):
    whole = matrix.astype(jnp.int32)
    assert [(whole**n).dtype for n in (2, 2.0, 2)] == [jnp.int32, jnp.float32, jnp.int32]


def test_making_one(compilations):
    dense, key = jnp.eye(41, 47), jax.random.key(0)
    assert 0 < compilations(lambda: CSR.from_dense(dense)) <= 7
    assert 0 < compilations(lambda: CSR.random(key, (37, 47), density=0.2)) <= 7


@pytest.mark.parametrize("kind", [BitPackedArray, CompactArray])
def test_event_arrays(kind, compilations):
    spikes = jnp.arange(53) % 3 == 0
    assert 0 < compilations(lambda: kind(spikes).value) <= 2
