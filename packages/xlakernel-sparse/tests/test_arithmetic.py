"""Elementwise operators, sums and diagonals."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from xlakernel.core import use_backend
from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError, StructureError
from xlakernel.sparse import COO, CSC, CSR, BinaryArray

pytestmark = pytest.mark.usefixtures("plain_jax")


def same_structure(one, other):
    return type(one) is type(other) and all(a is b for a, b in zip(one.structure, other.structure, strict=True))


# Scaling


def test_a_number_scales_from_both_sides(matrix, dense):
    for scaled in (matrix * 2, 2 * matrix, np.float32(2) * matrix, jnp.float32(2) * matrix, matrix.multiply(2)):
        assert same_structure(scaled, matrix) and scaled.dtype == jnp.float32
        assert_array_equal(scaled.todense(), 2 * dense)
    assert_array_equal((matrix / 2).todense(), dense / 2)
    assert_array_equal((-matrix).todense(), -dense)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_number_keeps_one_weight(kind, build, odd, shape):
    matrix = build(kind, odd, equal=3.0) * np.full(shape, 2.0, np.float32)
    assert matrix.homogeneous and matrix.data.tolist() == [6.0]
    assert (matrix / 4).homogeneous


def test_a_traced_number_scales(matrix, dense):
    assert_array_equal(jax.jit(lambda a: (a * matrix).todense())(3.0), 3 * dense)


@pytest.mark.parametrize("equal", [None, 3.0], ids=["weights", "equal"])
def test_gradients_in_a_factor_see_no_padding(kind, build, odd, dense_of, equal):
    matrix = build(kind, odd, equal=equal)
    assert equal or np.isnan(matrix.data[7:]).all()
    x = jnp.arange(1.0, 5)
    expected = (dense_of([(i, j, equal or weight) for i, j, weight in odd]) @ x).sum()
    for scaled in (lambda a: a * matrix, lambda a: matrix * a, lambda a: matrix * a.reshape(1, 1)):
        assert jax.grad(lambda a, f=scaled: (f(a) @ x).sum())(2.0 * jnp.ones(())) == expected
        assert jax.jvp(lambda a, f=scaled: (f(a) @ x).sum(), (jnp.ones(()),), (jnp.ones(()),))[1] == expected
    assert jax.grad(lambda a: ((matrix / a) @ x).sum())(0.5) == -4 * expected
    assert jax.grad(jax.grad(lambda a: ((a * a * matrix) @ x).sum()))(3.0) == 2 * expected


def test_gradients_in_a_factor_see_no_padding_that_is_alone(kind, build):
    """One weight may be that of all entries, or that of padding."""
    matrix = build(kind, [], room=1)
    assert np.isnan(matrix.data).tolist() == [True]
    assert jax.grad(lambda a: ((a * matrix) @ jnp.ones(4)).sum())(2.0) == 0


@pytest.mark.parametrize(("kind", "prepared"), [(CSR, False), (CSR, True), (CSC, False), (CSC, True), (COO, False)])
def test_gradients_in_scaled_weights_see_no_padding(kind, build, odd, prepared):
    matrix = build(kind, odd)
    matrix = matrix.prepare() if prepared else matrix
    x = jnp.arange(1.0, 5)

    def loss(data, factor):
        return ((matrix.with_data(data) * factor) @ x).sum()

    column = np.asarray(matrix.coordinates()[1][:7])
    for factor in (jnp.float32(2), jnp.full((5, 1), 2.0), jnp.full(4, 2.0)):
        of_data, of_factor = jax.grad(loss, (0, 1))(matrix.data, factor)
        assert_array_equal(of_data, np.append(2 * x[column], [0, 0, 0]))
        assert np.isfinite(of_factor).all()
    # Not even a factor that is infinite gives padding a gradient.
    assert_array_equal(jax.grad(loss)(matrix.data, jnp.inf)[7:], 0)


@pytest.mark.parametrize(
    ("dtype", "other", "product", "quotient"),
    [
        ("float16", 2, "float16", "float16"),
        ("bfloat16", 2.0, "bfloat16", "bfloat16"),
        ("float16", np.float32(2), "float32", "float32"),
        ("int8", 2, "int8", "float32"),
        ("int32", 2.0, "float32", "float32"),
        ("float32", 2j, "complex64", "complex64"),
        ("int32", True, "int32", "float32"),
        ("float32", np.ones((5, 1), bool), "float32", "float32"),
        ("int8", np.ones((5, 4), "int16"), "int16", "float32"),
    ],
)
def test_dtypes_are_those_of_jax(build, odd, dtype, other, product, quotient):
    matrix = build(CSR, odd, dtype=dtype)
    assert (matrix * other).dtype == product
    assert (matrix / other).dtype == quotient


# Dense factors


@settings(max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("shape", [(5, 4), (4,), (5, 1), (1, 4)])
def test_a_dense_factor_broadcasts(kind, shape, build, dense_of, entries, data):
    found = data.draw(entries)
    factor = np.arange(2, 2 + np.prod(shape), dtype=np.float32).reshape(shape)
    with use_backend("jax"):
        matrix = build(kind, found)
        product = matrix * factor
        assert same_structure(product, matrix)
        assert_array_equal(product.todense(), dense_of(found) * factor)
        equal = build(kind, found, equal=2.0) * factor
        assert_array_equal(equal.todense(), dense_of([(i, j, 2) for i, j, _ in found]) * factor)


def test_dense_factors_of_all_sides(matrix, dense):
    factor = np.arange(1.0, 21, dtype=np.float32).reshape(5, 4)
    for product in (factor * matrix, jnp.asarray(factor) * matrix, matrix.multiply(factor), matrix * factor.tolist()):
        assert_array_equal(product.todense(), factor * dense)
    assert_array_equal((matrix / factor).with_data(matrix.data).todense(), dense)
    np.testing.assert_allclose((matrix / factor).todense(), dense / factor, rtol=1e-6)
    assert_array_equal((matrix * BinaryArray(factor - 1)).todense(), dense * (factor != 1))


def test_only_entries_are_divided(kind, build):
    """0 / 0 is not a number, but only where there is an entry."""
    matrix = build(kind, [(0, 1, 1.0), (2, 2, 0.0)]) / np.zeros((5, 4), np.float32)
    expected = np.zeros((5, 4))
    expected[0, 1], expected[2, 2] = np.inf, np.nan
    assert_array_equal(matrix.todense(), expected)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty_factors(kind, shape):
    for nnz in (0, 2):
        matrix = kind.from_dense(np.zeros(shape, np.float32), nnz=nnz)
        assert_array_equal((matrix * np.zeros(shape, np.float32)).todense(), np.zeros(shape))


def test_gradients_reach_a_dense_factor(matrix, dense):
    gradient = jax.grad(lambda factor: (matrix * factor).todense().sum())(jnp.ones((5, 4)))
    assert_array_equal(gradient, dense)


@pytest.mark.parametrize("shape", [(5,), (4, 1), (4, 5), (2, 5, 4), (1, 1, 1), (0,), (1, 5, 4)])
def test_factors_that_do_not_broadcast_are_refused(matrix, shape):
    with pytest.raises(ShapeError, match=r"\* x: x has the shape .*, which does not broadcast to \(5, 4\).* A @ x"):
        matrix * np.ones(shape, np.float32)


def test_factors_that_are_no_arrays_are_refused(matrix):
    with pytest.raises(InputError, match=r"0 / 0.*A\.with_data\(A\.data / B\.data\)"):
        matrix / matrix
    with pytest.raises(InputError, match="expected an array"):
        matrix * "text"
    with pytest.raises(TypeError, match="unsupported operand"):
        2 / matrix


# Sums of two matrices


def test_matrices_of_one_structure_add_up(kind, build, odd, matrix, dense):
    again = build(kind, odd) * 3
    assert again.structure[0] is not matrix.structure[0]
    assert_array_equal((matrix + again).todense(), 4 * dense)
    assert_array_equal((matrix - again).todense(), -2 * dense)
    assert same_structure(matrix + again, matrix)


def test_one_weight_and_many_add_up(kind, build, odd, matrix, dense_of):
    equal = build(kind, odd, equal=2.0)
    expected = dense_of([(i, j, weight + 2) for i, j, weight in odd])
    assert_array_equal((matrix + equal).todense(), expected)
    assert_array_equal((equal + matrix).todense(), expected)
    assert (equal + equal).homogeneous


def test_sums_have_the_wider_dtype(matrix):
    assert (matrix.astype("int8") + matrix.astype("float16")).dtype == jnp.float16


@pytest.mark.parametrize("kind", [CSR, CSC])
def test_sums_stay_prepared(build, odd, dense, kind):
    total = build(kind, odd).prepare() + build(kind, odd)
    assert total.prepared is not None
    assert_array_equal(total @ jnp.ones(4), 2 * dense.sum(axis=1))
    assert_array_equal(jnp.ones(5) @ total, 2 * dense.sum(axis=0))


def test_inside_of_jit_one_structure_is_known_by_identity(matrix, dense):
    @jax.jit
    def total(matrix):
        return (matrix + matrix.with_data(matrix.data * 2)).todense()

    assert_array_equal(total(matrix), 3 * dense)
    with pytest.raises(
        StructureError, match=r"places of the entries are traced.*A\.with_data\(f\(A\.data, B\.data\)\)"
    ):
        jax.jit(lambda a, b: a + b)(matrix, matrix)


def test_dense_arrays_of_other_shapes_are_not_added(matrix):
    other = np.zeros(4, "float32")
    for add in (lambda: matrix + other, lambda: other + matrix, lambda: matrix - other, lambda: other - matrix):
        with pytest.raises(ShapeError, match=r"x has the shape \(4,\); expected that of the matrix, \(5, 4\)"):
            add()


@pytest.mark.parametrize("other", [1.5, "0", jnp.zeros(())])
def test_only_matrices_are_added(matrix, other):
    for add in (lambda: matrix + other, lambda: other + matrix, lambda: matrix - other, lambda: other - matrix):
        with pytest.raises(InputError, match=r"expected a sparse matrix.*A\.todense\(\) [+-] x"):
            add()


def test_sums_with_dense_matrices_are_dense(matrix, dense):
    for other in (np.arange(20.0, dtype=np.float32).reshape(5, 4), jnp.ones((5, 4))):
        for found, expected in (
            (matrix + other, dense + other),
            (other + matrix, other + dense),
            (matrix - other, dense - other),
            (other - matrix, other - dense),
        ):
            assert isinstance(found, jax.Array)
            assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [CSR, CSC, COO])
@pytest.mark.parametrize("other", ["int32", "float32", "uint8", "int8"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
def test_differences_of_dense_matrices_are_of_the_result_s_dtype(kind, dtype, other):
    dense = np.array([[1, np.iinfo(dtype).min], [0, 3]], dtype)
    given = np.full((2, 2), 100, other)
    matrix = kind.from_dense(dense)
    assert_array_equal(given - matrix, jnp.asarray(given) - jnp.asarray(dense))
    assert_array_equal(matrix - given, jnp.asarray(dense) - jnp.asarray(given))


def test_matrices_of_scipy_are_refused(matrix):
    theirs = matrix.to_scipy()
    for operate in (operator.add, operator.mul):
        with pytest.raises(InputError, match=r"SciPy's .*from_scipy"):
            operate(matrix, theirs)
    with pytest.raises(InputError, match=r"both are sparse.*CSR\.from_scipy"):
        matrix @ theirs
    with pytest.raises(
        InputError, match=r"A\.to_scipy\(\)"
    ):  # SciPy converts to an array before Python tries __rmatmul__
        theirs @ matrix


# Sums of entries


@settings(max_examples=8)
@given(data=st.data())
def test_sums_are_those_of_the_dense_matrix(kind, build, dense_of, entries, data):
    found = data.draw(entries)
    expected = dense_of(found)
    with use_backend("jax"):
        matrix = build(kind, found)
        for axis in (0, 1, -1, -2, None):
            assert_array_equal(matrix.sum(axis), expected.sum(axis))
        equal = build(kind, found, equal=2.0)
        assert equal.sum() == 2 * len(found)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float16", "bfloat16", "complex64"])
def test_sums_have_the_dtype_that_jax_gives(build, odd, dtype, axis):
    matrix = build(CSR, [(i, j, abs(weight)) for i, j, weight in odd], dtype=dtype)
    expected = jnp.sum(matrix.todense(), axis)
    assert matrix.sum(axis).dtype == expected.dtype
    assert_array_equal(matrix.sum(axis), expected)


def test_small_integers_do_not_overflow(kind, build):
    matrix = build(kind, [(0, column, 100) for column in range(4)], dtype="int8")
    assert matrix.sum() == 400
    assert matrix.sum(axis=1)[0] == 400


def test_half_precision_is_summed_in_single(kind, build):
    entries = [(0, 0, 2048.0), (0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0), (0, 3, 1.0)]
    assert build(kind, entries, dtype="float16").sum(axis=1)[0] == 2052  # 2048 + 1 is 2048 in float16


@pytest.mark.parametrize(
    ("dtype", "rows"), [("float16", [[60000, 60000], [-60000, -60000]]), ("bfloat16", [[256, 1], [-256, 0]])]
)
def test_the_sum_of_all_rounds_no_row(kind, dtype, rows):
    matrix = kind.from_dense(jnp.array(rows, dtype))
    assert matrix.sum().dtype == dtype
    assert matrix.sum() == np.sum(rows)


def test_duplicates_of_half_precision_are_added_up_in_single(kind, build):
    matrix = build(kind, [(0, 0, 1.0)] * 600, dtype="bfloat16", room=600)  # 256 + 1 is 256 in bfloat16
    assert matrix.todense().dtype == matrix.diagonal().dtype == jnp.bfloat16
    assert matrix.todense()[0, 0] == matrix.diagonal()[0] == matrix[0, 0] == matrix.sum() == 600


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_sums_of_nothing(kind, shape):
    for nnz in (0, 2):
        matrix = kind.from_dense(np.zeros(shape, np.float32), nnz=nnz)
        assert_array_equal(matrix.sum(axis=0), np.zeros(shape[1]))
        assert_array_equal(matrix.sum(axis=1), np.zeros(shape[0]))
        assert matrix.sum() == 0


@pytest.mark.parametrize("axis", [2, -3, (0, 1), "rows", True, np.array([0, 1]), 1.0, np.array(1.0)], ids=str)
def test_axes_are_those_of_a_matrix(matrix, axis):
    with pytest.raises(ShapeError, match=r"sum: axis is .*; allowed: 0, 1, -1, -2 or None"):
        matrix.sum(axis)


def test_gradients_pass_through_sums(matrix):
    gradient = jax.grad(lambda data: (matrix.with_data(data).sum(axis=1) ** 2).sum())(matrix.data)
    rows = np.asarray(matrix.coordinates()[0][:7])
    assert_array_equal(gradient[:7], 2 * matrix.sum(axis=1)[rows])
    assert_array_equal(gradient[7:], 0)


# Diagonals


@settings(max_examples=8)
@given(data=st.data())
def test_diagonals_are_those_of_the_dense_matrix(kind, build, dense_of, entries, data):
    found = data.draw(entries)
    with use_backend("jax"):
        matrix = build(kind, found)
        for offset in (-5, -4, -1, 0, 1, 3, 4):
            assert_array_equal(matrix.diagonal(offset), np.diagonal(dense_of(found), offset))


def test_a_diagonal_of_equal_weights_and_in_jit(kind, build, odd, dense_of):
    matrix = build(kind, odd, equal=2)
    expected = np.diagonal(dense_of([(i, j, 2) for i, j, _ in odd]), -1)
    assert_array_equal(jax.jit(lambda matrix: matrix.diagonal(-1))(matrix), expected)


@pytest.mark.parametrize("offset", [-(2**40), -6, 5, 2**40])
def test_diagonals_outside_are_empty(matrix, offset):
    assert matrix.diagonal(offset).shape == (0,)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_diagonals_of_empty_matrices(kind, shape):
    assert kind.from_dense(np.zeros(shape, np.float32), nnz=2).diagonal().shape == (0,)


def test_results_without_elements_have_zero_gradients(kind, matrix):
    assert_array_equal(jax.grad(lambda data: matrix.with_data(data).diagonal(7).sum())(matrix.data), 0)
    empty = kind.from_dense(np.zeros((3, 0), np.float32), nnz=2)
    assert_array_equal(jax.grad(lambda data: empty.with_data(data).todense().sum())(empty.data), 0)


def test_an_offset_is_an_integer(matrix):
    assert_array_equal(matrix.diagonal(np.int8(-1)), matrix.diagonal(-1))
    with pytest.raises(ArgumentError, match=r"diagonal: offset is 1\.5; expected an integer"):
        matrix.diagonal(1.5)


def test_weights_of_bool_are_refused(matrix):
    with pytest.raises(DtypeError, match="bool"):
        matrix.with_data(matrix.data > 0)
