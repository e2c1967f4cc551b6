"""The Warp kernels: products with vectors, on the CPU and on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from structures import draw, sum_entries

from xlakernel.core.errors import BackendNotFoundError, DtypeError, PlatformError
from xlakernel.sparse import binary_csrmv, csr_sddmm, csrmm, csrmv, weighted_csrmv

pytest.importorskip("xlakernel.warp", reason="the extra [warp] is not installed")

STRUCTURES = {
    "square": lambda: draw(0, (30, 30)),
    "padding": lambda: draw(1, (5, 200), 20, padding=3),
    "empty rows": lambda: draw(5, (50, 40), 0.3),
    "no entries": lambda: draw(6, (4, 6), 0),
    "no rows": lambda: draw(7, (0, 6), padding=2),
}
PRODUCTS = {"dense": csrmv, "binary": binary_csrmv, "weighted": weighted_csrmv}


@pytest.fixture(autouse=True, params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def _platform(request):
    with jax.default_device(jax.devices(request.param)[0]):
        yield


def arrays_of(structure, dtype, homogeneous):
    size = 1 if homogeneous else structure.indices.size
    return np.random.default_rng(1).integers(1, 9, size).astype(dtype), structure.indices, structure.indptr


@pytest.mark.parametrize("homogeneous", [False, True], ids=["weights", "homogeneous"])
@pytest.mark.parametrize("transpose", [False, True], ids=["A@x", "A.T@x"])
@pytest.mark.parametrize("operand", PRODUCTS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_product(name, operand, transpose, homogeneous):
    structure = STRUCTURES[name]()
    data, indices, indptr = arrays_of(structure, np.float32, homogeneous)
    results, length = structure.shape[::-1] if transpose else structure.shape
    x = (np.arange(length) % 3).astype(np.float32)
    found = PRODUCTS[operand](data, indices, indptr, x, shape=structure.shape, transpose=transpose, backend="warp")
    target, source = (structure.columns, structure.rows) if transpose else (structure.rows, structure.columns)
    weights = np.broadcast_to(data, indices.shape)[: structure.entries].astype(np.float64)
    values = x != 0 if operand == "binary" else x
    expected, _ = sum_entries(target, source, weights, values, results, operand)
    assert_allclose(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_dtypes(dtype):
    structure = STRUCTURES["square"]()
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        data, indices, indptr = arrays_of(structure, dtype, False)
        x = (np.arange(30) % 3).astype(dtype)
        found = csrmv(data, indices, indptr, x, shape=structure.shape, backend="warp")
        assert found.dtype == np.dtype(dtype)
        weights = data[: structure.entries].astype(np.float64)
        assert_allclose(found, sum_entries(structure.rows, structure.columns, weights, x, 30, "dense")[0])


def test_gradient():
    structure = STRUCTURES["padding"]()
    data, indices, indptr = arrays_of(structure, np.float32, False)
    x = (np.arange(200) % 3).astype(np.float32)

    def loss(data, x, backend):
        return (csrmv(data, indices, indptr, x, shape=structure.shape, backend=backend) ** 2).sum()

    for found, expected in zip(
        jax.grad(loss, (0, 1))(data, x, "warp"), jax.grad(loss, (0, 1))(data, x, "jax"), strict=True
    ):
        assert_allclose(found, expected)


@pytest.mark.parametrize("transpose", [False, True], ids=["A@x", "A.T@x"])
@pytest.mark.parametrize("operand", ["binary", "weighted"])
def test_inactive_events_have_no_part_in_the_gradient(operand, transpose):
    structure = STRUCTURES["padding"]()
    data, indices, indptr = arrays_of(structure, np.float32, False)
    results, length = structure.shape[::-1] if transpose else structure.shape
    x = (np.arange(length) % 2).astype(np.float32)
    options = {"shape": structure.shape, "transpose": transpose, "backend": "warp"}
    pull = jax.vjp(lambda data: PRODUCTS[operand](data, indices, indptr, x, **options), data)[1]
    (found,) = pull(np.full(results, np.nan, np.float32))
    lines = structure.rows if transpose else structure.columns
    expected = np.zeros(data.shape)
    expected[: structure.entries] = np.where(x[lines] != 0, np.nan, 0)
    np.testing.assert_array_equal(found, expected)


def test_unsupported_products():
    structure = STRUCTURES["square"]()
    data, indices, indptr = arrays_of(structure, np.float32, False)
    with pytest.raises(BackendNotFoundError, match="csrmm: no 'warp' kernel"):
        csrmm(data, indices, indptr, jnp.ones((30, 2)), shape=structure.shape, backend="warp")
    with pytest.raises(DtypeError, match=r"the product is of dtype complex64; .* Choose another backend"):
        csrmv(data, indices, indptr, jnp.ones(30, jnp.complex64), shape=structure.shape, backend="warp")
    with pytest.raises(PlatformError, match="multiplies vectors only"):
        csr_sddmm(indices, indptr, jnp.ones((30, 2)), jnp.ones((2, 30)), shape=structure.shape, backend="warp")
