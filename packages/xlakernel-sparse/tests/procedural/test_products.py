"""Products of procedural matrices with every operand, from both sides, compared with the oracle."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from procedural_cases import MATRICES, OPERANDS, check_compact, check_products, has_columns, make, slow_but

from xlakernel.core import use_backend
from xlakernel.sparse import BinaryArray, ProceduralMatrix, WeightedArray

pytestmark = pytest.mark.usefixtures("x64")

each_backend = pytest.mark.parametrize("backend", ["numba", "jax"])


# Every operand with every matrix; all but one operand for each matrix are marked slow, because each compiles programs.
@pytest.mark.parametrize(
    ("name", "operand"),
    [
        pytest.param(name, operand, marks=[pytest.mark.slow] * ((i + j) % 3 != 0))
        for i, name in enumerate(MATRICES)
        for j, operand in enumerate(OPERANDS)
    ],
)
def test_vectors(name, operand):
    distribution, shape, connection = MATRICES[name]
    check_products(*make(distribution, shape, **connection), operand, ())


@pytest.mark.parametrize("name", slow_but(MATRICES, ("one chunk", "few entries", "by number", "no rows")))
def test_matrices(name):
    distribution, shape, connection = MATRICES[name]
    operand = next(operand for operand in ("dense", "binary", "weighted") if has_columns(distribution, operand))
    check_products(*make(distribution, shape, **connection), operand, (3,))


@pytest.mark.parametrize(
    ("name", "operand", "columns"),
    [("several chunks", "dense", ()), ("few entries", "binary", (3,)), ("several chunks by number", "weighted", ())],
)
def test_plain_jax(name, operand, columns):
    distribution, shape, connection = MATRICES[name]
    with use_backend("jax"):
        check_products(*make(distribution, shape, **connection), operand, columns)


@each_backend
def test_the_transpose_has_the_same_entries(backend):
    matrix, dense = make("normal", (20, 300), probability=0.1)
    with use_backend(backend):
        check_products(matrix.T, dense.T, "dense", (2,))
        check_products(matrix.T, dense.T, "binary", ())


def test_compact_events():
    check_compact(*make("uniform", (20, 70), probability=0.1))


@pytest.mark.parametrize("columns", [(), (1,), (5,), (40,)])
def test_several_threads(columns):
    """Lines and private results are divided among threads; SciPy adds them up in another order."""
    given = {"seed": 1, "probability": 0.05, "shape": (3000, 2000)}
    drawn = ProceduralMatrix.normal(1.0, 0.5, **given)
    equal = drawn if columns in ((), (1,)) else ProceduralMatrix.homogeneous(0.5, **given)
    rng = np.random.default_rng(0)
    x, z = (rng.normal(size=(size, *columns)) for size in (2000, 3000))
    z *= rng.random(z.shape) < 0.6
    stored = drawn.tocsr().to_scipy()
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    close(drawn @ jnp.asarray(x), stored @ x)
    close(jnp.asarray(z.T) @ drawn, z.T @ stored)
    stored = equal.tocsr().to_scipy()
    close(WeightedArray(z.T) @ equal, z.T @ stored)
    close(BinaryArray(z.T) @ equal, (z.T != 0) @ stored)


DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "int8", "int32", "uint8"]


# Native products from both sides in turn: each compiles a kernel for each dtype. Those of float64 are tested above, and
# an integer of 32 bits is added up like one of 8; these are marked slow.
@pytest.mark.parametrize(
    ("dtype", "backend", "sides"),
    [
        *((dtype, "jax", ["left", "right"]) for dtype in DTYPES),
        *(
            pytest.param(
                *(dtype, "numba", [["left", "right"][i % 2]]),
                marks=[pytest.mark.slow] * (dtype in ("float64", "int32")),
            )
            for i, dtype in enumerate(DTYPES)
        ),
    ],
)
def test_dtypes_of_equal_weights(dtype, backend, sides):
    weight = jnp.asarray(2, dtype)
    matrix = ProceduralMatrix.homogeneous(weight, seed=4, probability=0.2, shape=(9, 40))
    entries = np.asarray(ProceduralMatrix.homogeneous(2.0, seed=4, probability=0.2, shape=(9, 40)).todense())
    spikes = jnp.asarray(np.arange(9) % 2 == 0)
    with use_backend(backend):
        if "right" in sides:
            found = BinaryArray(spikes) @ matrix
            assert found.dtype == dtype
            np.testing.assert_array_equal(np.asarray(found.astype("complex64")), spikes @ entries)
        if "left" in sides:
            found = matrix @ jnp.arange(40).astype(dtype)
            assert found.dtype == dtype
            expected = (entries @ np.arange(40)).astype("int64").astype(jnp.zeros(0, dtype).dtype)
            np.testing.assert_allclose(np.asarray(found, expected.dtype), expected, rtol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "sides"), [("float16", ["right"]), ("bfloat16", ["left"]), ("float32", ["left", "right"])]
)
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_dtypes_of_drawn_weights(dtype, distribution, sides):
    """All precisions have the same entries."""
    matrix, dense = make(distribution, (20, 70), dtype=dtype, probability=0.1)
    assert matrix.dtype == dtype
    check_products(matrix, dense, "dense", (), sides=sides, rtol=2e-2, atol=5e-2)
    np.testing.assert_allclose(matrix.astype("float64").todense(), dense, rtol=1e-2, atol=1e-2)


def test_integer_operands_and_weights_of_floats():
    matrix, dense = make("uniform", (20, 70), dtype="float32", probability=0.1)
    assert (matrix @ jnp.arange(70)).dtype == jnp.result_type("float32", "int64")
    np.testing.assert_allclose(matrix @ jnp.arange(70), dense @ np.arange(70), rtol=1e-5)


def test_dense_infinities_propagate_and_inactive_events_do_not():
    matrix, dense = make("homogeneous", (6, 20), probability=0.3)
    x = jnp.zeros(20).at[3].set(jnp.inf)
    with np.errstate(invalid="ignore"):
        expected = np.where(dense[:, 3] != 0, np.inf, 0)
    for backend in ("numba", "jax"):
        with use_backend(backend):
            np.testing.assert_array_equal(matrix @ x, expected)
            bad = matrix.with_parameters(jnp.nan)
            assert not jnp.isnan(BinaryArray(jnp.zeros(6)) @ bad).any()
            assert not jnp.isnan(bad @ BinaryArray(jnp.zeros(20))).any()


@settings(max_examples=25, derandomize=True)
@given(
    distribution=st.sampled_from(["homogeneous", "uniform", "normal"]),
    shape=st.tuples(st.integers(0, 12), st.integers(0, 400)),
    connection=st.fixed_dictionaries({"probability": st.just(0.0) | st.floats(1e-8, 1)})
    | st.fixed_dictionaries({"per_row": st.integers(0, 300)}),
    seed=st.integers(0, 2**64 - 1),
    operand=st.sampled_from(list(OPERANDS)),
    columns=st.sampled_from([(), (2,)]),
)
def test_any_product(distribution, shape, connection, seed, operand, columns):
    columns = columns if has_columns(distribution, operand) else ()
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        check_products(*make(distribution, shape, seed=seed, **connection), operand, columns)
