"""Products of events and dense matrices: values, inactive events, derivatives, transformations, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.export import symbolic_shape

from xlakernel.core import export, use_backend
from xlakernel.core.errors import DtypeError, InputError, ShapeError
from xlakernel.sparse import (
    BinaryArray,
    BitPackedArray,
    CompactArray,
    WeightedArray,
    binary_densemm,
    binary_densemv,
)

each_backend = pytest.mark.parametrize("backend", ["numba", "jax", pytest.param("numba_cuda", marks=pytest.mark.gpu)])
DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8", "uint8", "int32", "int64"]


def arrays(rows, columns, vectors, rate, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-9, 9, (rows, columns)) + (1j if np.dtype(dtype).kind == "c" else 0)
    events = (rng.random((vectors, rows)) < rate) * rng.integers(1, 4, (vectors, rows))
    return matrix.astype(dtype), events


@each_backend
@given(
    rows=st.integers(0, 70),
    columns=st.integers(0, 40),
    vectors=st.integers(0, 9),
    rate=st.sampled_from([0, 0.02, 0.1, 0.6, 1]),
    weighted=st.booleans(),
)
def test_values(backend, rows, columns, vectors, rate, weighted):
    matrix, events = arrays(rows, columns, vectors, rate)
    kind, values = (WeightedArray, events) if weighted else (BinaryArray, events != 0)
    with use_backend(backend):
        found = kind(jnp.asarray(events, "float32")) @ jnp.asarray(matrix)
        np.testing.assert_array_equal(found, values.astype("float64") @ matrix)
        if not weighted:
            found = binary_densemm(jnp.asarray(matrix.T), jnp.asarray(events.T))
            np.testing.assert_array_equal(found, (values.astype("float64") @ matrix).T)


PRODUCTS = {
    "rows": lambda matrix, events: BinaryArray(events) @ matrix,
    "columns": lambda matrix, events: binary_densemv(matrix.T, events[0])[None],
    "values": lambda matrix, events: WeightedArray(events.astype("float32")) @ matrix,
}


# Native products in turn: each compiles a kernel for each dtype.
@pytest.mark.parametrize(
    ("dtype", "product", "backend"),
    [
        *((dtype, product, "jax") for dtype in DTYPES for product in PRODUCTS),
        *((dtype, list(PRODUCTS)[i % 3], "numba") for i, dtype in enumerate(DTYPES)),
        *(
            pytest.param(dtype, product, "numba_cuda", marks=pytest.mark.gpu)
            for dtype in DTYPES
            for product in PRODUCTS
        ),
    ],
)
def test_dtypes(dtype, product, backend, x64):
    matrix, events = arrays(20, 30, 3, 0.3, dtype)  # XLA multiplies four vectors or more of so many events
    exact = matrix.astype("complex128" if np.dtype(dtype).kind == "c" else "float64")
    kinds = [events.astype("float64")]
    result = jnp.result_type(dtype, "float32")
    if product != "values":
        kinds += [events != 0, events.astype("int8")]
        events, result = events != 0, jnp.dtype(dtype)
    expected = (events.astype("int64") @ exact).astype(result).astype(exact.dtype)
    for kind in kinds:
        with use_backend(backend):
            found = PRODUCTS[product](jnp.asarray(matrix), jnp.asarray(kind))
        assert found.dtype == result
        np.testing.assert_allclose(found.astype(exact.dtype), expected[: len(found)], 1e-2)


@pytest.mark.parametrize("kind", [BinaryArray, WeightedArray, BitPackedArray, CompactArray])
def test_kinds_of_events(kind):
    matrix, events = arrays(50, 6, 1, 0.3)
    found = kind(jnp.asarray(events[0] != 0)) @ jnp.asarray(matrix)
    np.testing.assert_array_equal(found, (events[0] != 0) @ matrix)


@pytest.mark.parametrize("kind", [BinaryArray, WeightedArray])
@pytest.mark.parametrize(
    ("events", "matrix"),
    [
        *[((7,), (7,)), ((3, 7), (7,)), ((7,), (2, 7, 4)), ((3, 7), (2, 7, 4)), ((2, 3, 7), (7, 4))],
        *[((2, 3, 7), (2, 7, 4)), ((5, 1, 3, 7), (2, 7, 4)), ((0, 7), (7, 4)), ((7,), (7, 0)), ((2, 0), (0, 4))],
    ],
)
def test_shapes_are_those_of_numpy(kind, events, matrix):
    rng = np.random.default_rng(0)
    s, x = rng.integers(0, 2, events).astype("float32"), rng.integers(-5, 5, matrix).astype("float32")
    expected = s @ x
    found = kind(s) @ jnp.asarray(x)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(jax.jit(lambda s, x: kind(s) @ x)(s, x), expected)
    np.testing.assert_array_equal(kind(s) @ x, expected)  # an array of NumPy


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3000, 700, 1), (5000, 40, 20), (30, 3000, 3), (200_000, 3, 9)])
def test_values_of_many_blocks(shape):
    matrix, events = arrays(*shape, rate=0.02)
    expected = (events != 0).astype("float64") @ matrix
    with use_backend("numba_cuda"):
        np.testing.assert_array_equal(BinaryArray(events) @ jnp.asarray(matrix), expected)
        np.testing.assert_array_equal(binary_densemm(jnp.asarray(matrix.T), jnp.asarray(events.T)), expected.T)


@each_backend
@pytest.mark.parametrize("vectors", [1, 6])
@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inactive_events_add_nothing(backend, vectors, rate, bad):
    matrix, events = arrays(60, 8, vectors, rate)
    events[:, 3] = 0
    events[0, 4] = 1
    matrix[3], matrix[4, 2] = bad, bad
    clean = np.where(np.arange(60)[:, None] == 3, 0, matrix)
    with np.errstate(invalid="ignore"):
        expected = np.stack([np.where((e != 0)[:, None], clean, 0).sum(0) for e in events])
    with use_backend(backend):
        np.testing.assert_array_equal(BinaryArray(events) @ jnp.asarray(matrix), expected)
        np.testing.assert_array_equal(binary_densemm(jnp.asarray(matrix.T), events.T), expected.T)
        cotangent = np.ones((vectors, 8), "float32")
        cotangent[-1] = bad
        events[-1] = 0
        (found,) = jax.vjp(lambda m: BinaryArray(events) @ m, jnp.asarray(clean))[1](jnp.asarray(cotangent))
        np.testing.assert_array_equal(found, (events[:-1] != 0).T.astype("float32") @ cotangent[:-1])


@each_backend
@pytest.mark.parametrize("transpose", [False, True])
def test_derivatives(backend, smooth, transpose, x64):
    rng = np.random.default_rng(0)
    matrix = jnp.asarray(rng.normal(size=(9, 5) if transpose else (5, 9)))
    events = jnp.asarray(rng.normal(size=(9, 4)) * (rng.random((9, 4)) < 0.5))

    def loss(m, x):
        return (binary_densemm(m, x, transpose=transpose) ** 2).sum()

    def expected_loss(m, x):
        active = jnp.where(x != 0, 1 + x - jax.lax.stop_gradient(x), x)
        return (((m.T if transpose else m) @ active) ** 2).sum()

    with use_backend(backend):
        smooth(jax.jit(lambda m: binary_densemm(m, events, transpose=transpose)), matrix)
        smooth(jax.jit(lambda m: binary_densemv(m, events[:, 0], transpose=transpose)), matrix)
        for order in (jax.grad, lambda f, n: jax.jacrev(jax.grad(f, n), n)):
            found, expected = (jax.jit(order(f, (0, 1)))(matrix, events) for f in (loss, expected_loss))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)


@each_backend
def test_vmap(backend):
    rng = np.random.default_rng(0)
    matrices, events = rng.normal(size=(3, 9, 5)).astype("float32"), (rng.random((4, 3, 9)) < 0.4)

    def product(e, m):
        return BinaryArray(e) @ m

    with use_backend(backend):
        for axes, given_events, given_matrices, form in (
            ((1, None), events[0].T, matrices[0], "nc,nm->cm"),
            ((None, 0), events[0, 0], matrices, "n,cnm->cm"),
            ((0, 0), events[0], matrices, "cn,cnm->cm"),
        ):
            found = jax.vmap(product, axes)(jnp.asarray(given_events), jnp.asarray(given_matrices))
            expected = np.einsum(form, given_events.astype("float64"), given_matrices)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        twice = jax.vmap(jax.vmap(product, (0, None)), (1, 0))(jnp.asarray(events), jnp.asarray(matrices))
        np.testing.assert_allclose(twice, np.einsum("kcn,cnm->ckm", events * 1.0, matrices), rtol=1e-5, atol=1e-5)


def test_several_threads():
    rng = np.random.default_rng(0)
    matrix = rng.integers(-9, 9, (3000, 2000)).astype("float32")
    for rate in (0.01, 0.3):
        events = rng.random(3000) < rate
        np.testing.assert_array_equal(BinaryArray(events) @ jnp.asarray(matrix), events.astype("float64") @ matrix)
        found = binary_densemv(jnp.asarray(matrix.T), events)
        np.testing.assert_array_equal(found, events.astype("float64") @ matrix)


def test_a_matrix_of_bools_is_multiplied_by_jax():
    events = jnp.array([True, False, True])
    found = BinaryArray(events) @ jnp.ones((3, 2), bool)
    assert found.dtype == bool
    assert found.all()


def test_strict_promotion_of_dtypes_and_ranks():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        np.testing.assert_array_equal(BinaryArray(jnp.ones(3)) @ jnp.ones((3, 2), "float16"), 3)
        np.testing.assert_array_equal(jax.grad(lambda m: (BinaryArray(jnp.ones(3)) @ m).sum())(jnp.ones((3, 2))), 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: binary_densemv(jnp.ones(3), jnp.ones(3)), ShapeError, r"weights has the shape \(3,\); expected two"),
        (lambda: binary_densemv(jnp.ones((2, 3)), jnp.ones(2)), ShapeError, r"spikes has the shape \(2,\); .* \(3,\)"),
        (lambda: binary_densemm(jnp.ones((2, 3)), jnp.ones(3)), ShapeError, r"it must be \(3, k\)"),
        (lambda: binary_densemv(jnp.ones((2, 3)), jnp.ones(3, complex)), DtypeError, "spikes is of dtype complex64"),
        (lambda: binary_densemv(jnp.ones((2, 3), bool), jnp.ones(3)), DtypeError, "weights is of dtype bool"),
        (lambda: binary_densemv("W", jnp.ones(3)), InputError, "weights is 'W' of type str"),
        (lambda: BinaryArray(jnp.ones(3)) @ jnp.ones((2, 3)), ShapeError, "BinaryArray @ x: x has the shape"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@each_backend
def test_a_linear_transpose_in_the_events(backend):
    matrix, cotangent = jnp.arange(6.0).reshape(3, 2), jnp.array([[1.0, 2.0]])
    with use_backend(backend):
        (found,) = jax.linear_transpose(lambda x: WeightedArray(x) @ matrix, jnp.zeros((1, 3)))(cotangent)
    np.testing.assert_array_equal(found, cotangent @ matrix.T)


def test_a_symbolic_number_of_vectors():
    matrix = jnp.arange(12.0).reshape(4, 3)
    (count,) = symbolic_shape("k")
    program = export(jax.jit(lambda x: BinaryArray(x) @ matrix))(jax.ShapeDtypeStruct((count, 4), "float32"))
    for k in (1, 7):
        events = np.asarray(np.arange(4 * k).reshape(k, 4) % 3 == 0, "float32")
        np.testing.assert_array_equal(program.call(events), events @ matrix)


def test_an_infinite_complex_number_is_kept():
    found = BinaryArray(jnp.array([True, False])) @ jnp.array([[complex(np.inf, 1)], [1]])
    np.testing.assert_array_equal(found, [complex(np.inf, 1)])


def test_programs_for_a_gpu_are_exported_for_any_extents():
    """The kernels for a GPU need known extents; other programs are those of plain JAX."""
    rows, columns = symbolic_shape("m, n")
    struct = jax.ShapeDtypeStruct
    given = struct((rows, columns), "float32"), struct((columns,), bool)
    exported = jax.export.export(jax.jit(binary_densemv), platforms=["cuda"])(*given)
    assert exported.platforms == ("cuda",)
