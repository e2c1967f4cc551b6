"""Arguments and results of exported programs, and symbolic sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import symbolic_shape

from xlakernel.core import deserialize, export
from xlakernel.core.errors import ShapeError
from xlakernel.sparse import COO, CSC, CSR, BinaryArray, BitPackedArray, CompactArray, WeightedArray, csrmv

DENSE = np.array([[0, 0, 1], [2, 3, 0], [4, 0, 5], [0, 6, 0]], "float32")
X, U = np.array([1, 0, 2], "float32"), np.array([0, 1, 0, 3], "float32")


@pytest.fixture(autouse=True)
def _(plain_jax):
    """Export does not depend on the kernels."""


def reload(function, *arguments):
    """Return the exported program, written and read again."""
    return deserialize(export(jax.jit(function))(*arguments).serialize()).call


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", [CSR, CSC, COO])
def test_matrices_are_arguments_and_results(kind, prepared):
    if prepared and kind is COO:
        pytest.skip("coordinates are not prepared")
    matrix = kind.from_dense(DENSE)
    matrix = matrix.prepare(blocks=True) if prepared else matrix
    twice = reload(lambda A: A * 2, matrix)(matrix)
    assert type(twice) is kind and twice.shape == (4, 3)
    assert jax.tree.structure(twice) == jax.tree.structure(matrix)
    np.testing.assert_array_equal(twice @ X, 2 * DENSE @ X)


@pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray, CompactArray])
def test_events_are_arguments_and_results(kind):
    events = kind(U)
    again, product = reload(lambda events, A: (events, events @ A), events, CSR.from_dense(DENSE))(
        events, CSR.from_dense(DENSE)
    )
    assert type(again) is kind and again.shape == (4,)
    np.testing.assert_array_equal(again.value, events.value)
    np.testing.assert_array_equal(product, events.value.astype("float32") @ DENSE)


@pytest.mark.parametrize("kind", [CSR, COO])
def test_a_batch_may_be_symbolic(kind):
    A = kind.from_dense(DENSE)
    (b,) = symbolic_shape("b")
    programs = {
        "operands": (lambda w, x: jax.vmap(lambda x: A @ x)(x), lambda w, x: x @ DENSE.T),
        "weights": (
            lambda w, x: jax.vmap(lambda w, x: A.with_data(w) @ x)(w, x),
            lambda w, x: x @ DENSE.T * w[:, :1] / A.data[0],
        ),
        "gradients": (
            lambda w, x: jax.vmap(jax.grad(lambda x, w: ((A.with_data(w) @ x) ** 2).sum()))(x, w),
            lambda w, x: 2 * x @ DENSE.T @ DENSE * (w[:, :1] / A.data[0]) ** 2,
        ),
    }
    calls = {name: reload(f, struct(b, A.nnz), struct(b, 3)) for name, (f, _) in programs.items()}
    for size in (1, 3):
        w, x = np.arange(1, size + 1)[:, None] * A.data, np.arange(3.0 * size, dtype="float32").reshape(size, 3)
        for name, (_, expected) in programs.items():
            np.testing.assert_allclose(calls[name](w, x), expected(w, x), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", [CSR, CSC, COO])
def test_the_number_of_entries_may_be_symbolic(kind):
    """One program is for all matrices of a shape."""
    some, more = kind.from_dense(DENSE), kind.from_dense(np.ones_like(DENSE))
    (k,) = symbolic_shape("k")
    of_any = jax.tree.map(lambda leaf: struct(k, dtype=leaf.dtype) if leaf.shape == (some.nnz,) else leaf, some)

    def program(A, x):
        assert "nnz=k" in repr(A)
        gradient = jax.grad(lambda w: ((A.with_data(w) @ x) ** 2).sum())(A.data)
        other = A.tocsr().tocoo() if kind is not CSR else A.tocoo().tocsc()
        return A @ x, (A * 2).todense(), gradient.sum(), other.T @ U, A.sum(0)

    call = reload(program, of_any, X)
    for matrix, dense in ((some, DENSE), (more, np.ones_like(DENSE))):
        gradient = (2 * np.outer(dense @ X, X) * (dense != 0)).sum()
        expected = dense @ X, 2 * dense, gradient, U @ dense, dense.sum(0)
        for found, known in zip(call(matrix, X), expected, strict=True):
            np.testing.assert_allclose(found, known)


def test_the_number_of_entries_of_a_matrix_to_be_prepared_may_be_symbolic():
    A = CSR.from_dense(DENSE)
    (k,) = symbolic_shape("k")
    of_any = jax.tree.map(lambda leaf: struct(k, dtype=leaf.dtype) if leaf.shape == (A.nnz,) else leaf, A)
    for blocks in (False, True):
        call = reload(lambda A, blocks=blocks: A.prepare(blocks=blocks), of_any)
        for found, expected in zip(*map(jax.tree.leaves, (call(A), A.prepare(blocks=blocks))), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_how_many_events_may_be_may_be_symbolic():
    (k,) = symbolic_shape("k")
    A = CSR.from_dense(DENSE)
    call = reload(lambda numbers: CompactArray.from_indices(numbers, 4) @ A, struct(k, dtype="int32"))
    for numbers in ([2], [0, 3, 1]):
        np.testing.assert_array_equal(call(np.array(numbers, "int32")), DENSE[numbers].sum(0))


def test_the_shape_of_a_matrix_may_not_be_symbolic():
    (columns,) = symbolic_shape("c")
    A = CSR.from_dense(DENSE)
    with pytest.raises(ShapeError, match=r"shape is \(4, c\).*for a matrix of one shape; the number of entries"):
        export(jax.jit(lambda x: csrmv(A.data, *A.structure, x, shape=(4, *x.shape))))(struct(columns))
    with pytest.raises(ShapeError, match=r"x has the shape \(c,\)"):
        export(jax.jit(lambda x: A @ x))(struct(columns))
    assert (A @ jnp.ones(3)).shape == (4,)
