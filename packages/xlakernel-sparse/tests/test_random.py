"""Random matrices: the same everywhere, without duplicates, and all equally likely."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from xlakernel.core.errors import ArgumentError, DtypeError, InputError, ShapeError
from xlakernel.sparse import COO, CSC, CSR

pytestmark = pytest.mark.usefixtures("plain_jax")


def places(matrix):
    """Return the entries' places as a sorted list of pairs."""
    return sorted(zip(*(array.tolist() for array in matrix.coordinates()), strict=True))


# Golden values: a key gives the same matrix in every release and on every device.


def test_by_rows():
    matrix = CSR.random(jax.random.key(7), (4, 9), per_row=3)
    assert matrix.indptr.tolist() == [0, 3, 6, 9, 12]
    assert matrix.indices.tolist() == [0, 5, 6, 1, 4, 6, 0, 3, 4, 0, 6, 7]
    np.testing.assert_allclose(matrix.data[:4], [0.6751336, 0.8261764, 0.3939867, 0.4243201], rtol=1e-6)


def test_many_by_rows():
    """More than half of a row: those left out are drawn."""
    matrix = CSR.random(jax.random.key(7), (3, 6), per_row=4)
    assert matrix.indices.tolist() == [0, 1, 2, 4, 1, 2, 3, 5, 0, 2, 4, 5]


def test_by_density():
    matrix = CSR.random(jax.random.key(7), (5, 7), density=0.2)
    assert places(matrix) == [(0, 1), (0, 6), (3, 0), (3, 1), (3, 2), (4, 3), (4, 4)]


def test_many_by_density():
    matrix = CSR.random(jax.random.key(7), (3, 4), density=0.75)
    assert places(matrix) == [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (2, 0), (2, 2), (2, 3)]


@pytest.mark.parametrize("how", [{"per_row": 3}, {"density": 0.75}])
@pytest.mark.usefixtures("x64")
def test_64_bit_types_change_nothing(how):
    wide = CSR.random(jax.random.key(3), (5, 8), **how)
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        narrow = CSR.random(jax.random.key(3), (5, 8), **how)
    for mine, others in zip(jax.tree.leaves(wide), jax.tree.leaves(narrow), strict=True):
        assert mine.dtype == others.dtype
        assert_array_equal(mine, others)


@pytest.mark.parametrize("how", [{"per_row": 3}, {"density": 0.25}, {"density": 0.75}])
def test_all_formats_are_the_same_matrix(how):
    dense = [kind.random(jax.random.key(1), (5, 8), **how).todense() for kind in (CSR, CSC, COO)]
    assert_array_equal(dense[1], dense[0])
    assert_array_equal(dense[2], dense[0])


# Both ways to draw with one format; the others convert what is drawn.
@pytest.mark.parametrize(("kind", "how"), [(CSR, {"per_row": 3}), (CSC, {"density": 0.25}), (COO, {"per_row": 3})])
def test_it_is_the_same_inside_of_jit(kind, how):
    def draw(key):
        return kind.random(key, (5, 8), **how)

    key = jax.random.key(2)
    outside, inside = draw(key), jax.jit(draw)(key)
    assert type(inside) is kind
    for mine, others in zip(jax.tree.leaves(outside), jax.tree.leaves(inside), strict=True):
        assert_array_equal(mine, others)


@pytest.mark.parametrize("how", [{"per_row": 3}, {"density": 0.25}, {"density": 0.75}])
def test_a_second_draw_compiles_nothing(kind, how, compilations):
    kind.random(jax.random.key(3), (5, 8), **how)
    assert compilations(lambda: kind.random(jax.random.key(4), (5, 8), **how)) == 0


def test_keys_of_both_kinds_and_several_at_once():
    keys = jax.random.split(jax.random.key(2), 3)
    many = jax.vmap(lambda key: CSR.random(key, (5, 8), density=0.25).todense())(keys)
    for key, dense in zip(keys, many, strict=True):
        assert_array_equal(CSR.random(key, (5, 8), density=0.25).todense(), dense)
        assert_array_equal(CSR.random(jax.random.key_data(key), (5, 8), density=0.25).todense(), dense)
    assert not np.array_equal(many[0], many[1])


# Which entries


@pytest.mark.parametrize("per_row", [0, 4, 8, np.int64(5)])
def test_each_row_has_its_number(kind, per_row):
    matrix = kind.random(jax.random.key(0), (6, 8), per_row=per_row)
    assert matrix.nnz == 6 * per_row
    found = places(matrix)
    assert len(set(found)) == len(found)
    assert [row for row, _ in found] == [row for row in range(6) for _ in range(per_row)]
    assert all(0 <= column < 8 for _, column in found)


@pytest.mark.parametrize("density", [0, 0.5, 0.51, 1])
def test_density(density):
    matrix = CSR.random(jax.random.key(0), (6, 8), density=density)
    assert matrix.nnz == round(density * 48)
    found = places(matrix)
    assert len(set(found)) == len(found)
    assert all(0 <= row < 6 and 0 <= column < 8 for row, column in found)


def test_columns_ascend_in_rows():
    for how in ({"density": 0.3}, {"density": 0.8}, {"per_row": 4}):
        row, column = CSR.random(jax.random.key(0), (6, 8), **how).coordinates()
        assert (np.diff(np.asarray(row) * 8 + np.asarray(column)) > 0).all()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_empty_matrices(kind, shape):
    for how in ({"density": 0.5}, {"per_row": 0}):
        matrix = kind.random(jax.random.key(0), shape, **how)
        assert (matrix.shape, matrix.nnz) == (shape, 0)


@pytest.mark.parametrize("number", [2, 4])
def test_all_sets_are_equally_likely(number):
    """Two of six places, or the two that are left out: 15 sets, of which each has 1/15 of 6000 draws."""

    @jax.jit
    @jax.vmap
    def draw(key):
        return CSR.random(key, (2, 3), density=number / 6, weights=1.0).todense().reshape(-1)

    dense = np.asarray(draw(jax.random.split(jax.random.key(5), 6000)), int)
    assert (dense.sum(axis=1) == number).all()
    _, counts = np.unique(dense @ (1 << np.arange(6)), return_counts=True)
    assert len(counts) == math.comb(6, number)
    statistic = ((counts - 400) ** 2 / 400).sum()
    assert statistic < 36.1  # the chi-squared distribution of 14 degrees exceeds this once in 1000 times


def test_rows_are_independent_and_uniform():
    """Of 6000 rows of one matrix, each has two of four columns."""
    matrix = CSR.random(jax.random.key(6), (6000, 4), per_row=2, weights=1.0)
    pairs = np.asarray(matrix.indices).reshape(6000, 2)
    _, counts = np.unique(pairs @ [4, 1], return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # 5 degrees of freedom, once in 1000 times
    _, counts = np.unique(pairs[:-1] @ [4, 1] * 16 + pairs[1:] @ [4, 1], return_counts=True)
    assert len(counts) == 36
    assert ((counts - 5999 / 36) ** 2 / (5999 / 36)).sum() < 66.6  # 35 degrees


# Weights


def test_weights_are_drawn_by_any_function_of_jax_random():
    key, of_weights = jax.random.key(4), []

    def weights(key, shape, dtype):
        of_weights.append((shape, dtype))
        return jax.random.normal(key, shape, dtype)

    matrix = CSR.random(key, (5, 8), per_row=2, weights=weights, dtype="float16")
    assert of_weights == [((10,), "float16")]
    assert matrix.dtype == jnp.float16 and (matrix.data < 0).any()


def test_weights_and_places_are_drawn_apart():
    key = jax.random.key(4)
    one, other = (CSR.random(key, (5, 8), per_row=2, weights=w) for w in (jax.random.uniform, jax.random.normal))
    assert_array_equal(one.indices, other.indices)
    assert one.dtype == other.dtype == jnp.float32
    assert (one.data >= 0).all() and (one.data < 1).all() and len(set(one.data.tolist())) == 10


@pytest.mark.parametrize(("dtype", "expected"), [(None, "float32"), ("bfloat16", "bfloat16"), ("int8", "int8")])
def test_one_number_is_the_weight_of_all(kind, dtype, expected):
    matrix = kind.random(jax.random.key(0), (5, 8), per_row=2, weights=2.0, dtype=dtype)
    assert matrix.homogeneous and matrix.data.tolist() == [2.0] and matrix.dtype == jnp.dtype(expected)


def test_equal_weights_have_a_dtype_as_others_have():
    """That of a Python number is weak, and the product with half precision would be of half precision."""
    matrix = CSR.random(jax.random.key(0), (5, 8), per_row=2, weights=2.0)
    assert not matrix.data.weak_type
    assert (matrix @ jnp.ones(8, "bfloat16")).dtype == matrix.dtype == jnp.float32


# Errors


@pytest.mark.parametrize(
    "key", [0, None, "0", np.random.default_rng(0), jnp.ones(3)], ids=lambda key: type(key).__name__
)
def test_a_key_is_one_of_jax(kind, key):
    expected = r"expected one key of jax\.random, such as jax\.random\.key\(0\)"
    with pytest.raises(InputError, match=rf"random: key is .* of type {type(key).__name__}; {expected}"):
        kind.random(key, (5, 8), per_row=2)


def test_several_keys_are_refused(kind):
    with pytest.raises(InputError, match=r"(?s)key is .*; expected one key of jax\.random"):
        kind.random(jax.random.split(jax.random.key(0), 3), (5, 8), per_row=2)


def test_a_shape_in_place_of_the_key(kind):
    with pytest.raises(InputError, match=r"key is \(5, 8\) of type tuple; expected one key of jax\.random"):
        kind.random((5, 8), per_row=2)
    with pytest.raises(ShapeError, match=r"shape is None; expected \(rows, columns\)"):
        kind.random(jax.random.key(0), per_row=2)


def test_old_keys_are_keys_too(kind):
    one, other = (kind.random(new(0), (5, 8), per_row=2) for new in (jax.random.key, jax.random.PRNGKey))
    assert_array_equal(one.todense(), other.todense())


@pytest.mark.parametrize("how", [{}, {"density": 0.1, "per_row": 2}])
def test_either_density_or_rows(kind, how):
    with pytest.raises(ArgumentError, match=r"random: give either density or per_row; got"):
        kind.random(jax.random.key(0), (5, 8), **how)


@pytest.mark.parametrize("per_row", [-1, 9, 2.0, True, "2"])
def test_a_number_in_each_row(kind, per_row):
    with pytest.raises(ArgumentError, match=r"per_row is .*; allowed: 0 to 8, the number of columns"):
        kind.random(jax.random.key(0), (5, 8), per_row=per_row)


@pytest.mark.parametrize("density", [-0.1, 1.1, np.nan, "0.5", True, [0.5, 0.5], 1j, np.ones(2), Ellipsis], ids=str)
def test_a_density_is_a_fraction(kind, density):
    with pytest.raises(ArgumentError, match=r"density is .*; allowed: numbers from 0 to 1"):
        kind.random(jax.random.key(0), (5, 8), density=density)
    assert kind.random(jax.random.key(0), (5, 8), density=jnp.float32(0.5)).nnz == 20
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda density: kind.random(jax.random.key(0), (5, 8), density=density))(0.5)


def test_weights_are_a_number_or_a_function(kind):
    for wrong in ("normal", None, 2**40, [1.0, 2.0]):
        with pytest.raises(
            ArgumentError, match=rf"weights is {re.escape(repr(wrong))}; expected a number, or a function"
        ):
            kind.random(jax.random.key(0), (5, 8), per_row=2, weights=wrong)
    with pytest.raises(ArgumentError, match=r"weights is 300; expected a number that int8 can hold, or a function"):
        kind.random(jax.random.key(0), (5, 8), per_row=2, weights=300, dtype="int8")
    with pytest.raises(DtypeError, match="weights is of dtype bool"):
        kind.random(jax.random.key(0), (5, 8), per_row=2, weights=True)
    for wrong, shape in ((jnp.ones(3), r"\(3,\)"), (1.0, r"\(\)")):
        with pytest.raises(
            ArgumentError, match=rf"weights returned an array of shape {shape}; expected \(10,\), or \(1,\)"
        ):
            kind.random(jax.random.key(0), (5, 8), per_row=2, weights=lambda key, shape, dtype, wrong=wrong: wrong)
    with pytest.raises(DtypeError, match="the result of weights is of dtype bool"):
        kind.random(jax.random.key(0), (5, 8), per_row=2, weights=lambda key, shape, dtype: jnp.ones(shape, bool))


def test_a_shape_is_two_integers(kind):
    with pytest.raises(ShapeError, match="expected \\(rows, columns\\)"):
        kind.random(jax.random.key(0), (5,), per_row=2)


@pytest.mark.parametrize("shape", [None, 5, "58", (5, 8.0), (5, 8, 2)])
def test_other_shapes_are_refused(kind, shape):
    with pytest.raises(ShapeError, match=r"random: shape is .*; expected \(rows, columns\), two integers"):
        kind.random(jax.random.key(0), shape, per_row=2)
    with pytest.raises(ShapeError, match=r"random: shape is \(-5, 8\); both must be at least 0"):
        kind.random(jax.random.key(0), (-5, 8), per_row=2)


@pytest.mark.parametrize("dtype", ["number", Ellipsis, 3, ("f4", "f8"), np.dtype("datetime64[s]"), str], ids=str)
@pytest.mark.parametrize("weights", [jax.random.uniform, 2.0], ids=["drawn", "equal"])
def test_other_dtypes_are_refused(kind, dtype, weights):
    with pytest.raises(DtypeError, match=r"random: dtype is .*; allowed: float16, bfloat16, float32, "):
        kind.random(jax.random.key(0), (5, 8), per_row=2, weights=weights, dtype=dtype)


def test_a_function_of_weights_that_fails_is_named(kind):
    with pytest.raises(
        ArgumentError, match=r"random: weights, uniform, drew nothing of shape \(10,\) and dtype int32: "
    ):
        kind.random(jax.random.key(0), (5, 8), per_row=2, dtype="int32")
    with pytest.raises(
        ArgumentError, match=r"drew nothing of shape \(10,\) and dtype float32: .*takes 1 positional argument"
    ):
        kind.random(jax.random.key(0), (5, 8), per_row=2, weights=lambda key: jnp.ones(10))
