"""Functions of elements with SciPy's names and meanings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xlakernel.core.errors import ArgumentError, DtypeError
from xlakernel.sparse import CSR

pytestmark = pytest.mark.usefixtures("plain_jax")

FUNCTIONS = (
    *("sqrt", "sign", "sin", "tan", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh", "expm1", "log1p"),
    *("rint", "floor", "ceil", "trunc", "deg2rad", "rad2deg"),
)
OF_REALS = ("floor", "ceil", "trunc", "deg2rad", "rad2deg")


def test_absolute_values(matrix, known):
    assert_array_equal(abs(matrix).toarray(), abs(known).toarray())


@pytest.mark.parametrize("n", [1, 2, 3, 2.0, 0.5, np.int32(2)])
def test_powers(matrix, known, n):
    matrix, known = (abs(matrix), abs(known)) if n == 0.5 else (matrix, known)
    assert_allclose(matrix.power(n).toarray(), known.power(n).toarray(), rtol=1e-6)
    assert_array_equal((matrix**n).toarray(), matrix.power(n).toarray())
    assert_allclose(jax.jit(lambda matrix: matrix**n)(matrix).toarray(), known.power(n).toarray(), rtol=1e-6)


@settings(max_examples=8)
@given(data=st.data())
def test_duplicates_are_added_up_first(kind, build, dense_of, entries, data):
    found = data.draw(entries)
    expected = dense_of(found)
    matrix = build(kind, found)
    for result, elements in ((abs(matrix), abs(expected)), (matrix**2, expected**2)):
        assert type(result) is kind and result.structure[0] is matrix.structure[0]
        assert_array_equal(result.toarray(), elements)
        assert_array_equal(result @ np.arange(4.0), elements @ np.arange(4.0))


def test_elements_of_equal_weights(kind, build, odd, dense_of):
    matrix = build(kind, odd, equal=-3.0)
    expected = dense_of([(i, j, -3.0) for i, j, _ in odd])
    assert abs(matrix).homogeneous
    assert_array_equal(abs(matrix).toarray(), abs(expected))
    assert_array_equal((matrix**2).toarray(), expected**2)


@pytest.mark.parametrize(
    ("dtype", "size", "square"),
    [
        ("int8", "int8", "int8"),
        ("float16", "float16", "float16"),
        ("complex64", "float32", "complex64"),
    ],
)
def test_dtypes_of_elements(build, odd, dtype, size, square):
    matrix = build(CSR, odd, dtype=dtype)
    assert abs(matrix).dtype == size and (matrix**2).dtype == square
    assert_array_equal(abs(matrix).toarray(), jnp.abs(matrix.toarray()))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_elements_of_empty_matrices(kind, shape):
    for nnz in (0, 2):
        matrix = kind.from_dense(np.zeros(shape, np.float32), nnz=nnz)
        assert_array_equal(abs(matrix).toarray(), np.zeros(shape))
        assert_array_equal((matrix**2).toarray(), np.zeros(shape))


def test_derivatives_of_elements(kind, build, odd):
    """Duplicates share a derivative; an infinite derivative at 0 reaches no gradient."""
    matrix = build(kind, odd).with_data(jnp.arange(1.0, 11).at[7:].set(jnp.nan))
    row, column = matrix.coordinates()

    def dense(data):
        return jnp.zeros((5, 4)).at[row, column].add(data, mode="drop")

    def loss(data, elements):
        return (elements(matrix.with_data(data)).toarray() * jnp.arange(1.0, 21).reshape(5, 4)).sum()

    def expected(data, power):
        elements = jnp.where(dense(data) > 0, dense(data), 1) ** power
        return (jnp.where(dense(data) > 0, elements, 0) * jnp.arange(1.0, 21).reshape(5, 4)).sum()

    for elements, power in ((abs, 1), (lambda a: a**2, 2), (lambda a: a**0.5, 0.5)):
        gradient = jax.grad(loss)(matrix.data, elements)
        assert_allclose(gradient, jax.grad(expected)(matrix.data, power), rtol=1e-6)
        assert_array_equal(gradient[7:], 0)
        tangent = jnp.ones(10)
        _, along = jax.jvp(lambda data, f=elements: loss(data, f), (matrix.data,), (tangent,))
        assert_allclose(along, gradient.sum(), rtol=1e-6)


def test_numbers_of_jax_and_numpy(build, odd):
    matrix = build(CSR, odd)
    for two in (jnp.float32(2), jnp.asarray(2), np.array(2.0), np.float16(2), jnp.bfloat16(2)):
        assert_allclose((matrix**two).toarray(), (matrix**2).toarray(), rtol=1e-6)
        assert_array_equal(matrix.minimum(two).toarray(), matrix.minimum(2).toarray())
        assert_array_equal(matrix.maximum(-two).toarray(), matrix.maximum(-2).toarray())
    for refuse in (lambda n: matrix**n, matrix.maximum, matrix.minimum):
        with pytest.raises(ArgumentError, match=r"expected a (matrix, or a )?number"):
            jax.jit(refuse)(jnp.float32(2))


def test_exponents_share_a_program(build, odd, compilations):
    matrix = build(CSR, odd)
    for first, other in ((4, 5), (1.5, 2.5)):
        assert_allclose((matrix**first).toarray().imag, 0)
        assert compilations(lambda n=other: matrix**n) == 0
        assert_allclose((abs(matrix) ** other).toarray(), abs(matrix).toarray() ** other, rtol=1e-5)


@pytest.mark.parametrize("n", [0, -1, -0.5, float("nan"), 1j, "2", None, np.ones((5, 4))], ids=str)
def test_powers_that_fill_the_matrix_are_refused(matrix, n):
    with pytest.raises(ArgumentError, match=r"expected a number above 0.*A\.todense\(\) \*\* n"):
        matrix**n
    with pytest.raises(ArgumentError, match="expected a number above 0"):
        matrix.power(matrix)


# The functions share the code that is particular to a format, which powers and absolute values test.
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "complex64"])
def test_functions(build, odd, dtype):
    matrix = build(CSR, [(i, j, w / 4) for i, j, w in odd] if dtype != "int8" else odd, dtype=dtype)
    names = [name for name in FUNCTIONS if dtype != "complex64" or name not in OF_REALS]
    found = jax.jit(lambda matrix: {name: getattr(matrix, name)().toarray() for name in names})(matrix)
    for name in names:
        expected = getattr(jnp, name)(matrix.toarray())
        assert found[name].dtype == expected.dtype
        assert_allclose(
            found[name].astype(complex), expected.astype(complex), rtol=1e-6 if dtype != "float16" else 1e-2
        )
    if dtype == "float32":
        with np.errstate(invalid="ignore", divide="ignore"):
            for name in names:
                assert_allclose(found[name], getattr(matrix.to_scipy(), name)().toarray(), rtol=1e-6)


@pytest.mark.parametrize("name", OF_REALS)
def test_functions_of_real_numbers(kind, build, odd, name):
    expected = f"{kind.__name__}.{name}: the matrix is of dtype complex64; expected integers or real numbers"
    with pytest.raises(DtypeError, match=expected):
        getattr(build(kind, odd, dtype="complex64"), name)()


def test_parts_of_complex_numbers(kind, build, odd):
    entries = [(i, j, w * (1 + 2j)) for i, j, w in odd]
    matrix = build(kind, entries, dtype="complex64")
    assert_array_equal(matrix.real.toarray(), matrix.toarray().real)
    assert_array_equal(matrix.imag.toarray(), matrix.toarray().imag)
    assert matrix.real.imag.dtype == "float32" and not matrix.real.imag.toarray().any()


def test_the_greater_and_the_smaller_of_elements_and_numbers(kind, build, odd):
    matrix = build(kind, odd)
    assert_array_equal(matrix.maximum(-1.5).toarray(), np.maximum(matrix.toarray(), -1.5))
    assert_array_equal(matrix.minimum(0).toarray(), np.minimum(matrix.toarray(), 0))
    for dtype, low, high in (("int8", -128, 127), ("uint8", 0, 255)):
        narrow = abs(matrix).astype(dtype)
        assert_array_equal(narrow.maximum(-300).toarray(), np.maximum(narrow.toarray(), low))
        assert_array_equal(narrow.minimum(300).toarray(), np.minimum(narrow.toarray(), high))
        assert narrow.maximum(-300).dtype == narrow.minimum(300).dtype == dtype
    for method, wrong in (("maximum", 1), ("maximum", float("nan")), ("minimum", -1), ("minimum", "0")):
        with pytest.raises(ArgumentError, match=f"{method}: other is .*; expected a matrix, or a number of at"):
            getattr(matrix, method)(wrong)
