"""Matrices with another structure, and matrices made from others: SciPy's functions, and weights of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import (
    COO,
    CSC,
    CSR,
    SparseMatrix,
    block_array,
    block_diag,
    diags_array,
    eye_array,
    hstack,
    kron,
    load_npz,
    save_npz,
    tril,
    triu,
    vstack,
)

pytestmark = pytest.mark.usefixtures("plain_jax")


def blocks(a, b):
    zeros = np.zeros_like(a)
    return np.block([[a, zeros], [zeros, b]])


def with_diagonal(a, values, k):
    """Return a copy of a dense matrix with *values* on a diagonal, as SciPy sets them."""
    found = scipy.sparse.csr_array(a)
    found.setdiag(values, k)
    return found.toarray()


# Each of two matrices: ours, and what NumPy makes of the dense matrices.
OPERATIONS = {
    "hstack": (lambda a, b: hstack([a, b]), lambda a, b: np.hstack([a, b])),
    "vstack": (lambda a, b: vstack([a, b]), lambda a, b: np.vstack([a, b])),
    "block_array": (lambda a, b: block_array([[a, None], [None, b]]), blocks),
    "block_diag": (lambda a, b: block_diag([a, b]), blocks),
    "kron": (kron, np.kron),
    "tril": (lambda a, _: tril(a, 1), lambda a, _: np.tril(a, 1)),
    "triu": (lambda a, _: triu(a, -1), lambda a, _: np.triu(a, -1)),
    "reshape": (lambda a, _: a.reshape(-1, 2), lambda a, _: a.reshape(-1, 2)),
    "reshape columns": (lambda a, _: a.reshape(2, -1, order="F"), lambda a, _: a.reshape(2, -1, order="F")),
    "setdiag": (lambda a, b: a.setdiag(b.data[:2], 1), None),
    "sum_duplicates": (lambda a, _: a.sum_duplicates(), lambda a, _: a),
}
# The functions with ``format=``, of the matrices A and B.
IN_FORMATS = {
    "hstack": lambda a, b, **options: hstack([a, b], **options),
    "vstack": lambda a, b, **options: vstack([a, b], **options),
    "block_array": lambda a, b, **options: block_array([[a], [b]], **options),
    "block_diag": lambda a, b, **options: block_diag([a, b], **options),
    "diags_array": lambda a, b, **options: diags_array([a.data, b.data], offsets=[0, 1], **options),
    "kron": kron,
    "tril": lambda a, _, **options: tril(a, **options),
    "triu": lambda a, _, **options: triu(a, **options),
    "eye_array": lambda a, _, **options: eye_array(*a.shape, **options),
    "asformat": lambda a, _, format=None: a.asformat(format),
}
with_dense = pytest.mark.parametrize("name", [name for name, (_, dense) in OPERATIONS.items() if dense])


@with_dense
@settings(max_examples=4)
@given(data=st.data(), other=st.sampled_from([CSR, CSC, COO]))
def test_results_are_those_of_dense_matrices(kind, build, dense_of, entries, name, data, other):
    """With duplicates, zeros and padding, whose weights are NaN."""
    of_a, of_b = data.draw(entries), data.draw(entries)
    operation, expected = OPERATIONS[name]
    found = operation(build(kind, of_a), build(other, of_b, room=12))
    assert type(found) is kind
    # Compiles less than todense.
    assert_array_equal(found.to_scipy().toarray(), expected(dense_of(of_a), dense_of(of_b)))


@pytest.mark.parametrize("name", OPERATIONS)
def test_weights_may_be_traced_and_differentiated(kind, build, odd, smooth, name, x64):
    a, b = build(kind, odd, room=7, dtype="float64"), build(CSR, odd[2:], room=5, dtype="float64")
    operation, _ = OPERATIONS[name]

    @jax.jit
    def dense(of_a, of_b):
        return operation(a.with_data(of_a), b.with_data(of_b)).todense()

    assert_allclose(dense(a.data, b.data), operation(a, b).todense())
    smooth(dense, a.data, b.data)
    batch = np.stack([a.data, 2 * a.data])
    found = jax.vmap(dense, (0, None))(batch, b.data)
    assert_allclose(found, np.stack([dense(each, b.data) for each in batch]))


@pytest.mark.parametrize("dtypes", [("float32", "int8"), ("float16", "float16"), ("int32", "complex64")])
@pytest.mark.parametrize("name", ["hstack", "kron"])
def test_dtypes_are_those_of_jax(build, odd, name, dtypes):
    a, b = (build(kind, odd[:k], dtype=dtype) for kind, k, dtype in zip((CSR, CSC), (7, 6), dtypes, strict=True))
    operation, expected = OPERATIONS[name]
    found = operation(a, b)
    assert found.dtype == jnp.result_type(*dtypes)
    assert_allclose(
        found.todense().astype(complex), expected(*(x.todense().astype(complex) for x in (a, b))), rtol=1e-2
    )


@pytest.mark.parametrize("k", [-2, 0, 3])
@pytest.mark.parametrize("values", [5.0, np.arange(1.0, 3.0), np.arange(1.0, 9.0)])
def test_setdiag_is_that_of_scipy(kind, build, odd, dense_of, values, k):
    a = build(kind, odd)
    assert_array_equal(a.setdiag(values, k).to_scipy().toarray(), with_diagonal(dense_of(odd), values, k))


def test_results_of_sum_duplicates_are_sorted_and_without_duplicates(kind, build, odd):
    found = build(kind, odd, room=9).sum_duplicates()
    row, column = (np.asarray(each) for each in found.coordinates())
    places = column * found.shape[0] + row if kind is CSC else row * found.shape[1] + column
    assert (np.diff(places) > 0).all()


def test_eliminate_zeros_removes_sums_that_are_zero(kind):
    data, row, column = jnp.array([1.0, 2.0, -1.0, 0.0]), jnp.array([0, 1, 0, 2]), jnp.array([1, 0, 1, 2])
    a = getattr(COO((data, row, column), (3, 3)), f"to{kind.__name__.lower()}")()
    found = a.eliminate_zeros()
    assert found.nnz == 1
    assert_array_equal(found.todense(), a.todense())
    with pytest.raises(StructureError, match="the weights are traced"):
        jax.jit(lambda w: a.with_data(w).eliminate_zeros().todense())(a.data)


def test_pairs_of_rows_and_columns_select_elements(kind, build, odd, dense_of):
    a, dense = build(kind, odd, room=0), dense_of(odd)
    rows, columns = np.indices(dense.shape).reshape(2, -1)
    assert_array_equal(a[rows, columns], dense[rows, columns])
    assert_array_equal(a[[-1, 0], [0, -1]], dense[[-1, 0], [0, -1]])
    assert_array_equal(a[[1], [0, 1, 2]], dense[[1], [0, 1, 2]])
    weights = jax.grad(lambda w: a.with_data(w)[rows, columns].sum())(a.data)
    assert_array_equal(weights, jnp.ones(a.nnz))
    with pytest.raises(ArgumentError, match="there are 2 rows and 3 columns"):
        a[[0, 1], [0, 1, 2]]
    with pytest.raises(IndexError, match="out of range"):
        a[[0], [dense.shape[1]]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
def test_solutions_of_linear_systems(kind, dtype, x64):
    dense = np.array([[4, 1, 0], [0, 3, 0], [2, 0, 5]]).astype(dtype)
    a = kind.from_dense(dense, nnz=8)  # with padding
    for b in (np.array([1.0, 2.0, 3.0]), np.arange(6.0).reshape(3, 2)):
        assert_allclose(a.solve(b.astype(dtype)), np.linalg.solve(dense, b), rtol=1e-5)
        assert_allclose(jax.jit(a.solve)(b.astype(dtype)), np.linalg.solve(dense, b), rtol=1e-5)


def test_derivatives_of_solutions(kind, smooth, x64):
    a = kind.from_dense(np.array([[4.0, 1, 0], [0, 3, 0], [2, 0, 5]]))
    smooth(jax.jit(lambda w, b: a.with_data(w).solve(b)), a.data, np.array([1.0, 2.0, 3.0]))


def test_wrong_systems_are_refused():
    a = CSR.from_dense(np.eye(3, dtype=np.float32))
    with pytest.raises(ShapeError, match=r"shape \(2, 3\) and b \(2,\)"):
        a[:2].solve(jnp.ones(2))
    with pytest.raises(ShapeError, match="one element of b"):
        a.solve(jnp.ones(2))
    with pytest.raises(DtypeError, match="half precision"):
        a.astype("float16").solve(jnp.ones(3))
    assert not np.isfinite(CSR.from_dense(np.zeros((2, 2), np.float32)).solve(jnp.ones(2))).any()


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_eye_array_has_one_weight(k):
    found = eye_array(3, 4, k=k, dtype="int32")
    assert found.homogeneous
    assert_array_equal(found.todense(), np.eye(3, 4, k, dtype="int32"))
    assert_array_equal(eye_array(2).todense(), np.eye(2))
    with pytest.raises(ArgumentError, match=r"m is 2\.0"):
        eye_array(2.0)
    with pytest.raises(ArgumentError, match="the diagonal is 'k'"):
        eye_array(2, k="k")


@pytest.mark.parametrize(
    ("diagonals", "options"),
    [
        ([1.0, 2.0, 3.0], {}),
        (np.arange(3.0), {"offsets": 1}),
        ([[1.0, 0.0, 3.0], [4.0, 5.0]], {"offsets": [0, 1]}),
        ([[1.0], [2.0]], {"offsets": [0, -1], "shape": (3, 4)}),
        (np.arange(6.0).reshape(2, 3), {"offsets": [0, -1], "shape": (3, 3)}),
    ],
)
def test_diags_array_is_that_of_scipy(diagonals, options):
    expected = scipy.sparse.diags_array(diagonals, **options).toarray()
    assert_array_equal(diags_array(diagonals, **options).todense(), expected)


def test_diagonals_may_be_traced_and_differentiated():
    def dense(a, b):
        return diags_array([a, b], offsets=[0, 1]).todense()

    a, b = jnp.arange(3.0), jnp.ones(2)
    assert_array_equal(jax.jit(dense)(a, b), np.diag(a) + np.diag(b, 1))
    check_grads(dense, (a, b), 1)


@pytest.mark.parametrize(
    ("diagonals", "options", "error", "message"),
    [
        ([[1.0], [2.0]], {"offsets": [0]}, ArgumentError, "2 diagonals and 1 offsets"),
        ([[1.0], [2.0]], {"offsets": [0, 1.5]}, ArgumentError, r"^diags_array: the diagonal is 1\.5"),
        ([[1.0, 2.0]], {"offsets": [0], "shape": (4, 4)}, ShapeError, "diags_array: "),
        ([[1.0], [2.0]], {"offsets": [0, 0], "shape": (2, 2)}, ShapeError, "duplicate"),
        ([True, False], {}, DtypeError, "a diagonal is of dtype bool"),
    ],
)
def test_wrong_diagonals_are_refused(diagonals, options, error, message):
    with pytest.raises(error, match=message):
        diags_array(diagonals, **options)


def test_files_are_those_of_scipy(tmp_path, kind, build, odd, dense_of):
    a = build(kind, odd)
    save_npz(tmp_path / "a.npz", a)
    found = load_npz(tmp_path / "a.npz")
    assert type(found) is kind
    assert_array_equal(found.todense(), dense_of(odd))
    assert_array_equal(scipy.sparse.load_npz(tmp_path / "a.npz").toarray(), dense_of(odd))
    scipy.sparse.save_npz(tmp_path / "b.npz", scipy.sparse.bsr_array(np.eye(4)))
    assert type(load_npz(tmp_path / "b.npz")) is CSR


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: hstack([]), ShapeError, "there are no matrices"),
        (hstack, InputError, "got CSR; expected a list or a tuple"),
        (lambda a: block_array([a, a]), InputError, "got CSR; expected a list or a tuple"),
        (lambda a: block_array([[a, None], [None, None]]), ShapeError, "a row or a column has no matrices"),
        (lambda a: block_array([[a, None], [a, None]]), ShapeError, "a row or a column has no matrices"),
        (lambda a: a[[[0], [1]], [0, 1]], ArgumentError, r"For a submatrix write A\[np.ix_\(rows, columns\)\]"),
        (lambda a: a.setdiag(1j), DtypeError, "cannot hold its numbers"),
        (lambda a: a.astype("int32").setdiag([2.7]), DtypeError, "cannot hold its numbers"),
        (lambda a: eye_array(2, 3, k=9), ArgumentError, "from -1 to 2"),
        (lambda a: diags_array([]), ShapeError, "there are no diagonals"),
        (lambda a: block_diag([]), ShapeError, "there are no matrices"),
        (lambda a: vstack([a, a[:, :2]]), ShapeError, r"the blocks have the shapes \[\[\(3, 4\)\], \[\(3, 2\)\]\]"),
        (lambda a: hstack([a, a.to_scipy()]), InputError, "got csr_array; expected a matrix of xlakernel.sparse"),
        (lambda a: kron(a, np.eye(2)), InputError, "got ndarray"),
        (lambda a: tril(np.eye(2)), InputError, "got ndarray"),
        (lambda a: save_npz("file", np.eye(2)), InputError, "got ndarray"),
        (lambda a: triu(a, 0.5), ArgumentError, r"the diagonal is 0\.5"),
        (lambda a: a.reshape(5, 2), ShapeError, "whose product is 12"),
        (lambda a: a.reshape(12), ShapeError, "expected two numbers"),
        (lambda a: a.setdiag(1, 4), ArgumentError, "from -2 to 3"),
        (lambda a: a.setdiag(np.ones((2, 2))), ShapeError, r"values has the shape \(2, 2\)"),
        (lambda a: kron(kron(a, eye_array(50_000)), eye_array(50_000)), DtypeError, "do not fit into int32"),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(CSR.from_dense(np.ones((3, 4), np.float32)))


def test_traced_structures_are_refused():
    a = CSR.from_dense(np.ones((2, 2), np.float32))
    for name, operation in {
        "hstack": lambda A: hstack([A, A]),
        "CSR.sum_duplicates": SparseMatrix.sum_duplicates,
        "tril": tril,
        "CSR.solve": lambda A: A.solve(jnp.ones(2)),
    }.items():
        with pytest.raises(StructureError, match=f"^{name}: the places of the entries are traced"):
            jax.jit(operation)(a)


@pytest.mark.parametrize("name", IN_FORMATS)
def test_a_format_may_be_asked_for(name):
    operation = IN_FORMATS[name]
    a, b = CSC.from_dense(jnp.eye(3)), CSR.from_dense(jnp.eye(3)[:2] if name == "vstack" else jnp.eye(3)[:, ::-1])
    usual = operation(a, b)
    assert type(usual) is (CSR if name in ("diags_array", "eye_array") else CSC)
    for format_, kind in (("csr", CSR), ("csc", CSC), ("coo", COO)):
        found = operation(a, b, format=format_)
        assert type(found) is kind
        assert_array_equal(found.todense(), usual.todense())
    with pytest.raises(ArgumentError, match=rf"{name}: format is 'lil'; allowed: \('csr', 'csc', 'coo'\) or None"):
        operation(a, b, format="lil")


@pytest.mark.parametrize("name", ["hstack", "vstack", "block_array", "block_diag", "diags_array", "eye_array"])
def test_a_dtype_may_be_asked_for(name):
    a = CSR.from_dense(jnp.eye(3))
    found = IN_FORMATS[name](a, a, dtype="int8")
    assert found.dtype == "int8"
    assert_array_equal(found.todense(), IN_FORMATS[name](a, a).todense())


def test_an_order_of_elements_that_does_not_exist_is_refused():
    with pytest.raises(ArgumentError, match="order is 'K'; allowed: 'C' for rows, 'F' for columns"):
        CSR.from_dense(jnp.eye(3)).reshape(1, 9, order="K")
