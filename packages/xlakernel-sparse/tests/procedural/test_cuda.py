"""The Numba CUDA kernels of procedural matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from procedural_cases import MATRICES, PARAMETERS, check_compact, check_products, each_matrix, each_operand, make

from xlakernel.cuda._kernels.recipe import COMPILER
from xlakernel.sparse import BinaryArray, ProceduralMatrix, WeightedArray
from xlakernel.sparse.kernels.cuda import procedural
from xlakernel.sparse.kernels.cuda.device.drawing import Draws
from xlakernel.sparse.operators.connections import Rule, walk_of

each_columns = pytest.mark.parametrize("columns", [(), (1,), (3,), (40,)], ids=str)


@pytest.mark.parametrize("draws", [Draws("normal", False), Draws("homogeneous", True)])
def test_kernels_can_be_exported(draws):
    """Their content hashes are the same in every process."""
    kernels = [
        procedural._gather_vector("dense", np.float32, draws, 32),
        procedural._gather_matrix("weighted", np.float32, draws, 8),
        procedural._scatter_vector("binary", np.float32, draws, 16),
        procedural._scatter_matrix("binary", np.float32, draws, 1),
    ]
    for kernel in kernels:
        assert COMPILER.examine(COMPILER.fresh(kernel)).unknown == []


@pytest.mark.parametrize(
    ("rule", "places", "threads"),
    [
        (Rule("uniform", 0.1, None), 10_000, 32),
        (Rule("uniform", 0.01, None), 1000, 8),
        (Rule("uniform", 1e-8, None), 1000, 1),
        (Rule("uniform", None, 6), 1000, 2),
        (Rule("uniform", None, 4000), 10_000, 32),
    ],
)
def test_a_group_draws_most_chunks_at_once(rule, places, threads):
    assert procedural.group_size(rule, places, walk_of(rule, places).chunks) == threads


@pytest.mark.parametrize("lines", [1, 1000, 10**6])
@pytest.mark.parametrize("chunks", [1, 7, 10**6])
def test_a_grid_is_within_its_limits(lines, chunks):
    across, along, tiles = procedural._grid(lines, 8, chunks, 3)
    assert 1 <= along <= min(chunks, 65_535) and 1 <= across <= max(1, lines) and tiles == 3


@pytest.mark.gpu
class TestCuda:
    @pytest.fixture(autouse=True)
    def _on_the_gpu_with_64_bits(self, x64):
        before = jax.config.jax_default_device
        jax.config.update("jax_default_device", jax.devices("cuda")[0])
        yield
        jax.config.update("jax_default_device", before)

    @each_matrix
    @each_operand
    @each_columns
    def test_products(self, name, operand, columns):
        distribution, shape, connection = MATRICES[name]
        check_products(*make(distribution, shape, **connection), operand, columns)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
    @pytest.mark.parametrize("distribution", PARAMETERS)
    @each_columns
    def test_dtypes(self, dtype, distribution, columns):
        matrix, dense = make(distribution, (20, 70), dtype=dtype, probability=0.1)
        check_products(matrix, dense, "dense", columns, rtol=2e-2, atol=5e-2)

    @pytest.mark.parametrize("dtype", ["complex64", "complex128", "int8", "int32", "int64", "uint8", "uint64"])
    def test_equal_weights_of_dtype(self, dtype):
        matrix = ProceduralMatrix.homogeneous(jnp.asarray(2, dtype), seed=4, probability=0.2, shape=(9, 40))
        entries = np.asarray(ProceduralMatrix.homogeneous(2.0, seed=4, probability=0.2, shape=(9, 40)).todense())
        for found, expected in (
            (matrix @ jnp.ones(40, dtype), entries.sum(axis=1)),
            (jnp.ones(9, dtype) @ matrix, entries.sum(axis=0)),
            (matrix @ jnp.ones((40, 3), dtype), np.repeat(entries.sum(axis=1)[:, None], 3, 1)),
            (BinaryArray(jnp.arange(9) % 2 == 0) @ matrix, entries[::2].sum(axis=0)),
        ):
            assert found.dtype == dtype
            np.testing.assert_array_equal(np.asarray(found.astype("complex128")), expected)

    def test_the_transpose_and_compact_events(self):
        matrix, dense = make("normal", (20, 300), probability=0.1)
        check_products(matrix.T, dense.T, "binary", ())
        check_compact(matrix, dense)

    @pytest.mark.parametrize("distribution", PARAMETERS)
    @pytest.mark.parametrize(
        ("shape", "connection"),
        [
            ((20_000, 5_000), {"probability": 0.02}),
            ((3, 2_000_000), {"probability": 0.05}),
            ((300_000, 900), {"probability": 0.01}),
            ((5_000, 70_000), {"per_row": 333}),
        ],
    )
    def test_a_stored_matrix_has_the_same_products(self, distribution, shape, connection):
        """Plain JAX draws what is stored, on the same device."""
        parameters = PARAMETERS[distribution]
        matrix = getattr(ProceduralMatrix, distribution)(*parameters, seed=9, shape=shape, **connection)
        stored, rng = matrix.tocsr(), np.random.default_rng(0)
        x, z = (jnp.asarray(rng.normal(size=size)) for size in shape[::-1])
        for active in (0.001, 0.1, 1):
            spikes = jnp.asarray(rng.random(shape[0]) < active)
            for events in (BinaryArray(spikes), WeightedArray(jnp.where(spikes, z, 0))):
                np.testing.assert_allclose(events @ matrix, events @ stored, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(matrix @ x, stored @ x, rtol=1e-4, atol=1e-3)

    def test_the_cpu_draws_the_same_entries(self):
        matrix = ProceduralMatrix.homogeneous(1, seed=21, probability=0.03, shape=(4000, 3000))
        on_cpu = jax.device_put(matrix, jax.devices("cpu")[0])
        rows = jnp.arange(4000) % 7
        expected = jax.device_put(rows, jax.devices("cpu")[0]) @ on_cpu
        np.testing.assert_array_equal(rows @ matrix, expected)
        np.testing.assert_array_equal(matrix.sum(axis=1), on_cpu.sum(axis=1))

    def test_derivatives_and_ensembles(self):
        arguments = {"shape": (30, 400), "probability": 0.1}
        spikes = BinaryArray(jnp.arange(30) % 3 == 0)

        def total(mean, std, seed):
            return jnp.sin(spikes @ ProceduralMatrix.normal(mean, std, seed=seed, **arguments)).sum()

        found = jax.jit(jax.vmap(jax.grad(total, (0, 1)), in_axes=(None, None, 0)))(0.5, 0.2, jnp.arange(3))
        for seed in range(3):
            ones = ProceduralMatrix.normal(1.0, 0.0, seed=seed, **arguments).todense()
            drawn = ProceduralMatrix.normal(0.0, 1.0, seed=seed, **arguments).todense()
            active = spikes.value.astype(ones.dtype)
            known = jax.grad(lambda m, s: jnp.sin(active @ (m * ones + s * drawn)).sum(), (0, 1))(0.5, 0.2)  # noqa: B023
            np.testing.assert_allclose([part[seed] for part in found], known, rtol=1e-4, atol=1e-4)

    def test_more_entries_than_memory_could_hold(self):
        """24 * 10^9 entries; the sums of columns are binomial numbers."""
        rows, probability = 2_400_000, 0.01
        matrix = ProceduralMatrix.homogeneous(1.0, seed=1, probability=probability, shape=(rows, 1_000_000))
        spikes = BinaryArray(jnp.arange(rows) % 100 == 0)
        counts = np.asarray(spikes @ matrix)
        assert abs(counts.mean() - 240) < 0.1 and abs(counts.var() / (240 * 0.99) - 1) < 0.02
