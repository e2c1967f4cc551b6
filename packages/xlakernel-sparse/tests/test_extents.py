"""Numbers beyond what the dtype of the indices holds: JAX would wrap them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO
from numpy.testing import assert_array_equal

from xlakernel import sparse
from xlakernel.core.errors import ArgumentError, DtypeError
from xlakernel.sparse import COO, CSC, CSR
from xlakernel.sparse.operators.arguments import check_entries
from xlakernel.sparse.operators.products.blocks import make_blocks

pytestmark = pytest.mark.usefixtures("plain_jax")

LIMIT = 2**31 - 1  # the largest int32, and so the largest extent
X64 = "jax_enable_x64"


def wide(kind, extent, index="int32"):
    """A matrix of two lines and this extent across, with three entries."""
    data, place, lines = np.ones(3, np.float32), np.array([0, 5, extent - 1], index), np.array([0, 1, 1], index)
    if kind is COO:
        return COO((data, lines, place), shape=(2, extent))
    return kind((data, place, np.array([0, 1, 3], index)), shape=(2, extent) if kind is CSR else (extent, 2))


def x64_as(enabled):
    return (jax if hasattr(jax, "enable_x64") else jax.experimental).enable_x64(enabled)


def struct(length, dtype="int32"):
    return jax.ShapeDtypeStruct((length,), dtype)


def test_the_largest_extent(kind):
    matrix = wide(kind, LIMIT)
    across = matrix.coordinates()[0 if kind is CSC else 1]
    assert across.dtype == jnp.int32 and across.tolist() == [0, 5, LIMIT - 1]


@pytest.mark.parametrize("enabled", [False, True])
def test_extents_without_room_are_refused(kind, enabled):
    with x64_as(enabled):
        with pytest.raises(DtypeError, match=rf"{kind.__name__}: rows and columns up to {LIMIT + 1} .*int32") as caught:
            wide(kind, LIMIT + 1)
        assert (X64 in str(caught.value)) is not enabled


@pytest.mark.usefixtures("x64")
def test_indices_of_64_bits_have_room(kind):
    matrix = wide(kind, 2**40, "int64")
    line, across = matrix.coordinates() if kind is not CSC else matrix.coordinates()[::-1]
    assert (line.tolist(), across.tolist()) == ([0, 1, 1], [0, 5, 2**40 - 1])
    assert_array_equal((matrix * 2).data, [2, 2, 2])
    assert_array_equal((matrix**2).data, [1, 1, 1])
    assert matrix.diagonal(-4 if kind is CSC else 4).tolist() == [0, 1]
    assert jax.grad(lambda a: (a * matrix).data.sum())(2.0) == 3
    assert matrix.to_scipy().shape == matrix.shape


@pytest.mark.usefixtures("x64")
def test_padding_has_room_behind_the_last():
    padded = CSR((np.ones(3), np.zeros(3, "int64"), np.array([0, 0, 1], "int64")), shape=(2, 2**40))
    assert padded.coordinates()[1].tolist() == [0, 2**40, 2**40]


@pytest.mark.parametrize("kind", [CSR, CSC])
def test_lines_without_room_are_refused(kind):
    lines, shape = LIMIT + 1, (LIMIT + 1, 4) if kind is CSR else (4, LIMIT + 1)
    with pytest.raises(DtypeError, match=f"rows and columns up to {lines}"):
        jax.eval_shape(lambda *arrays: kind(arrays, shape=shape).data, struct(3), struct(3), struct(lines + 1))


def test_more_entries_than_indptr_counts_are_refused():
    arrays = struct(LIMIT + 1, "float32"), struct(LIMIT + 1), struct(3)
    for function in (
        lambda *arrays: CSR(arrays, shape=(2, 4)).data,
        lambda *arrays: sparse.csrmv(*arrays, jnp.ones(4), shape=(2, 4)),
        lambda *arrays: sparse.csr_to_csc(*arrays, shape=(2, 4)),
    ):
        with pytest.raises(DtypeError, match=f"numbers of entries up to {LIMIT + 1} do not fit into int32.*{X64}"):
            jax.eval_shape(function, *arrays)


def test_more_entries_are_not_sorted_in_32_bits():
    entries = LIMIT + 1

    def converted(*arrays):
        return COO(arrays, shape=(2, 4)).tocsr()

    with pytest.raises(DtypeError, match=f"numbers of entries up to {entries} do not fit into int32.*{X64}"):
        jax.eval_shape(converted, struct(entries, "float32"), struct(entries), struct(entries))
    with x64_as(True):
        found = jax.eval_shape(converted, struct(entries, "float32"), struct(entries), struct(entries))
    assert found.nnz == entries and found.indptr.dtype == jnp.int64


def test_the_functions_check_as_well():
    with pytest.raises(DtypeError, match="csrmv: rows and columns up to"):
        jax.eval_shape(
            lambda data, indices, indptr, x: sparse.csrmv(data, indices, indptr, x, shape=(2, LIMIT + 1)),
            *(struct(3, "float32"), struct(3), struct(3), struct(LIMIT + 1, "float32")),
        )


def test_what_is_made_of_others(kind):
    dense = jax.ShapeDtypeStruct((2**16, 2**15), "float32")
    with pytest.raises(DtypeError, match=rf"{kind.__name__}.from_dense: numbers of elements up to {LIMIT + 1} .*{X64}"):
        jax.eval_shape(lambda dense: kind.from_dense(dense, nnz=3).data, dense)
    bcoo = BCOO((jnp.ones(1), jnp.zeros((1, 2), jnp.int32)), shape=(2, LIMIT + 1))
    with pytest.raises(DtypeError, match=rf"{kind.__name__}.from_bcoo: rows and columns up to {LIMIT + 1}"):
        kind.from_bcoo(bcoo)
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}.random: .*drawn in int32, up to {LIMIT} of each"):
        kind.random(jax.random.key(0), (2, LIMIT + 1), per_row=1)


def test_blocks_of_too_many_rows():
    rows, columns = 2**30, 2**20
    with pytest.raises(DtypeError, match=f"rows of all blocks up to .*{X64}"):
        jax.eval_shape(
            lambda indices, indptr: make_blocks(indices, indptr, shape=(rows, columns), dtype="float32"),
            *(struct(3), struct(rows + 1)),
        )


@pytest.mark.parametrize("rows", [40_000, 70_000])
def test_entries_of_a_result_that_wrapped_around_are_counted(rows):
    """The sum of the numbers is negative for 40 000 rows, and positive for 70 000."""
    indptr = (np.arange(rows + 1) * 70_000).astype(np.int32)
    with pytest.raises(DtypeError, match=f"A @ B: numbers of entries up to {rows * 70_000} do not fit into int32"):
        check_entries("A @ B", jnp.asarray(indptr))
